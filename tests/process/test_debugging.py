"""--dump-values with tools/compare_values, --check-weights: what finds a fault in weights or kernels."""
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, within

COMPARE = Path(__file__).resolve().parents[2] / "tools" / "compare_values"
MODEL = TINY / "qwen3"
LINES = [{"prompt_ids": [5, 6, 7, 8, 9], "temperature": 0, "max_tokens": 4, "ignore_eos": True}]


def compare(*arguments):
    return subprocess.run([sys.executable, str(COMPARE), *map(str, arguments)], capture_output=True, text=True,
                          timeout=within(60))


def tensor_place(model, name):
    """(file, first byte, dtype) of a tensor."""
    file = model / "model.safetensors"
    with file.open("rb") as stream:
        size = struct.unpack("<Q", stream.read(8))[0]
        header = json.loads(stream.read(size))
    return file, 8 + size + header[name]["data_offsets"][0], header[name]["dtype"]


def plant(model, name, element, value):
    file, begin, dtype = tensor_place(model, name)
    bits = struct.pack("<f", value)
    width = 4 if dtype == "F32" else 2
    with file.open("r+b") as stream:
        stream.seek(begin + element * width)
        stream.write(bits if width == 4 else bits[2:])


@pytest.fixture
def dump(generate, tmp_path):
    def run(name, *options, model=MODEL):
        folder = tmp_path / name
        answers, _ = generate(LINES, "--dump-values", folder, "--dump-steps", 2, *options, model=model)
        return folder, answers[0]["output_ids"]
    return run


def test_two_runs_write_equal_values_and_the_tokens_of_a_run_without(dump, generate):
    plain, _ = generate(LINES, model=MODEL)
    first, tokens = dump("a")
    second, _ = dump("b", "--cudagraph-mode", "NONE")
    assert tokens == plain[0]["output_ids"]
    done = compare(first, second, "--rtol", 0, "--atol", 0)
    assert done.returncode == 0 and "no difference" in done.stdout, done.stdout + done.stderr
    index = json.loads((first / "rank0" / "step1" / "index.json").read_text())
    assert index["num_tokens"] == 5 and index["num_reqs"] == 1
    names = [op["name"] for op in index["ops"]]
    assert names[0] == "prepare_inputs" and names[-1] == "sample" and "attention" in names
    positions = np.load(first / "rank0" / "step1" / "0000.prepare_inputs.positions.npy")
    assert positions.ravel().tolist() == [0, 1, 2, 3, 4]
    sampled = index["ops"][-1]["values"][0]
    assert np.load(first / "rank0" / "step1" / sampled["file"]).ravel().tolist() == tokens[:1]


def test_every_rank_writes_its_values(dump):
    folder, _ = dump("tp", "--tensor-parallel-size", 2)
    assert (folder / "rank0" / "step1" / "index.json").exists() and (folder / "rank1" / "step2" / "index.json").exists()


def test_a_changed_weight_is_found_at_the_op_that_reads_it(dump, copy_model):
    changed = copy_model(MODEL)
    plant(changed, "model.layers.1.mlp.down_proj.weight", 3, 40.0)
    first, _ = dump("a")
    second, _ = dump("b", model=changed)
    done = compare(first, second, "--rtol", 1e-4)
    assert done.returncode == 1, done.stdout + done.stderr
    index = json.loads((first / "rank0" / "step1" / "index.json").read_text())
    downs = [op for op in index["ops"] if op["name"] == "linear" and "down" in op["values"][0]["name"]]
    assert f"op {downs[1]['op']} linear" in done.stdout and "step 1" in done.stdout, done.stdout


def test_a_difference_names_value_row_and_both_numbers(dump, tmp_path):
    first, _ = dump("a")
    second = tmp_path / "b"
    shutil.copytree(first, second)
    name = next(p.name for p in sorted((second / "rank0" / "step2").glob("*.linear.*")))
    array = np.load(second / "rank0" / "step2" / name)
    before = array[0, 7]
    array[0, 7] = before + 1000
    np.save(second / "rank0" / "step2" / name, array)
    done = compare(first, second)
    assert done.returncode == 1, done.stdout
    for part in ("rank 0, step 2", f"op {int(name[:4])} linear", name.split(".", 2)[2][:-4], "row 0, column 7",
                 f"{before}", f"{array[0, 7]}"):
        assert part in done.stdout, (part, done.stdout)


def test_nan_in_weights_is_named_by_both_tools(generate, copy_model, tmp_path):
    broken = copy_model(MODEL)
    columns = json.loads((broken / "config.json").read_text())["hidden_size"]
    plant(broken, "model.layers.1.mlp.up_proj.weight", 2 * columns + 5, float("nan"))
    answers, done = generate(LINES, "--check-weights", model=broken, check=False)
    assert done.returncode == 64 and answers is None, done.stderr
    assert "model.layers.1.mlp.up_proj.weight" in done.stderr and "row 2, column 5" in done.stderr, done.stderr
    folder = tmp_path / "dump"
    generate(LINES, "--dump-values", folder, model=broken, check=False)
    done = compare(folder)
    assert done.returncode == 1 and "linear" in done.stdout and "nan" in done.stdout, done.stdout + done.stderr


def test_directories_that_cannot_be_compared_are_an_error(dump, tmp_path):
    folder, _ = dump("a")
    done = compare(folder, tmp_path / "none")
    assert done.returncode == 2 and "none" in done.stderr


def test_start_is_explained_in_the_log(generate):
    _, done = generate(LINES, "--log-level", "info", "--time-steps", model=MODEL)
    start = next(line for line in done.stderr.splitlines() if "start: process and device" in line)
    for part in ("program and communicator", "weights and buffers", "captures and cache", "in all"):
        assert part in start, start
    memory = next(line for line in done.stderr.splitlines() if "device memory: weights" in line)
    for tag in ("arena", "graphs", "collectives", "kv_cache", "free"):
        assert tag in memory, memory
    assert "idle between decode steps: median" in done.stderr


def test_audited_steps_change_no_answer_and_agree_with_their_replays_CG41(start_server):
    def answers(*options):
        server = start_server(*options, model=MODEL, tp=2)
        texts = []
        for prompt in ([5, 6, 7, 8, 9], list(range(3, 60)), [5, 6, 7, 8, 9]):
            for fields in ({"temperature": 0}, {"temperature": 1, "seed": 4, "repetition_penalty": 1.2}):
                status, body = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 12, "ignore_eos": True, **fields})
                assert status == 200, body
                texts.append(json.loads(body)["choices"][0]["text"])
        lines = (line.rsplit(" ", 1) for line in server.get("/metrics")[1].splitlines() if not line.startswith("#"))
        values = {name.split("{")[0]: float(value) for name, value in lines}
        return texts, values
    plain, counts = answers()
    assert counts["refrain:audit_steps_total"] == 0
    audited, counts = answers("--audit-rate", 0.5)
    assert audited == plain
    assert counts["refrain:audit_steps_total"] >= 20
    assert counts["refrain:audit_differences_total"] == 0
    assert counts["refrain:audit_worst_logit"] == counts["refrain:audit_worst_kv"] == 0, "bit for bit on the host device"


def test_a_trace_shows_the_requests_and_steps_of_a_server(start_server, tmp_path):
    path = tmp_path / "trace.json"
    server = start_server("--trace-file", path, model=TINY / "qwen3", tp=2)
    for length in (3, 4):
        body = {"prompt": [1, 2, 3], "max_tokens": length, "ignore_eos": True, "temperature": 0}
        assert server.post("/v1/completions", body)[0] == 200
    assert server.stop() == 0
    events = json.loads(path.read_text())
    requests = [event for event in events if event.get("cat") == "request"]
    assert [event["name"] for event in requests if event["ph"] == "b" and event["id"] == 2] == [
        "request 2", "waiting", "prefill", "decode"]
    ends = [event["args"] for event in requests if event["ph"] == "e" and event["name"].startswith("request")]
    assert ends == [{"finish_reason": "length", "output_tokens": length} for length in (3, 4)]
    steps = [event for event in events if event["ph"] == "X"]
    begins = [event["ts"] for event in steps]
    assert begins == sorted(begins) and sum(event["args"]["tokens"] for event in steps) == (3 + 2) + (3 + 3)
    assert any(event["name"] == "FULL 1" for event in steps) and all(event["dur"] > 0 for event in steps)
