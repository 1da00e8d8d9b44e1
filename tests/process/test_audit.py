"""--audit-rate (CG-30, CG-41): served tokens are those of a server without, and what an audit finds is on record."""
import json
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BIN, TINY, Server, wait_for, within

MODEL = TINY / "qwen3"
GOLDEN = json.loads((MODEL / "expected.json").read_text())
# Chunked prompts, mixed steps, and too few blocks for all: some rows are preempted and computed again.
SMALL = ["--dtype", "float32", "--max-num-batched-tokens", 24, "--max-num-seqs", 4, "--max-model-len", 352,
         "--block-size", 8, "--num-gpu-blocks-override", 48, "--no-enable-prefix-caching"]
DRAWN = {"temperature": 1.2, "seed": 5, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "max_tokens": 40, "ignore_eos": True}


def metric(server, name):
    lines = [line for line in server.get("/metrics")[1].splitlines() if line.startswith((name + " ", name + "{"))]
    assert len(lines) == 1, name
    return float(lines[0].rsplit(" ", 1)[1])


def ask(server, prompt, fields):
    status, text = server.post("/v1/completions", {"model": MODEL.name, "prompt": prompt, "return_token_ids": True, **fields})
    assert status == 200, text
    return [choice["token_ids"] for choice in json.loads(text)["choices"]]


def all_answers(server):
    greedy = [({"temperature": 0, "max_tokens": len(entry["output_ids"])}, entry["prompt_ids"]) for entry in GOLDEN]
    # The last four together need twice the blocks there are.
    drawn = [*((DRAWN, entry["prompt_ids"]) for entry in GOLDEN), ({**DRAWN, "n": 4, "max_tokens": 200}, [5, 6, 7, 8])]
    with ThreadPoolExecutor(len(greedy) + len(drawn)) as pool:
        return list(pool.map(lambda job: ask(server, job[1], job[0]), greedy + drawn))


@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "FULL"])
def test_an_audited_server_gives_the_same_tokens_and_finds_nothing_CG41(start_server, mode):
    options = [*SMALL, "--cudagraph-mode", mode]
    plain = start_server(*options, model=MODEL, tp=2)
    expected = all_answers(plain)
    assert metric(plain, "refrain:audit_steps_total") == 0
    assert plain.stop() == 0
    assert expected[:len(GOLDEN)] == [[entry["output_ids"]] for entry in GOLDEN]

    server = start_server(*options, "--audit-rate", 0.5, model=MODEL, tp=2)
    assert all_answers(server) == expected
    assert metric(server, "refrain:num_preemptions_total") > 0
    steps = metric(server, "refrain:steps_total")
    assert 0.4 * steps < metric(server, "refrain:audit_steps_total") < 0.6 * steps
    for name in ("audit_differences_total", "audit_worst_logit", "audit_worst_kv", "worker_group_restarts_total",
                 "incidents_total"):
        assert metric(server, "refrain:" + name) == 0, name
    audit = json.loads(server.get("/cudagraphs")[1])["audit"]
    assert audit["steps"] >= 0.4 * steps and audit["differences"] == 0 and audit["first"] is None
    assert "0 differences beyond the bound" in server.get("/cudagraphs?format=html")[1]
    assert server.stop() == 0


COORDINATOR = """#!/usr/bin/env python3
import os, signal, sys
report = int(sys.argv[sys.argv.index("--report-fd") + 1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.write(report, b'{"group": 0, "ready": true}\\n')
os.write(report, b'{"group": 0, "ready": false, "audit": {"group": 0, "step": 8, "differences": 2, "first": "rank 1, program p, key FULL 4: sample"}}\\n')
while True:
    signal.pause()
"""
WORKER = """#!/usr/bin/env python3
import signal
signal.pause()
"""


def test_what_an_audit_finds_leaves_an_incident_record_and_loses_nobody_CG41_R12(tmp_path):
    """The supervisor's part, with a coordinator that tells of a difference."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "refrain").write_bytes((BIN / "refrain").read_bytes())
    (programs / "coordinator").write_text(COORDINATOR)
    (programs / "worker").write_text(WORKER)
    for program in programs.iterdir():
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    server = Server(tmp_path / "serve.log", "--incident-dir", tmp_path / "incidents", "--api-server-count", 0, model=MODEL, tp=2)
    server.command[0] = str(programs / "refrain")
    server.start(ready=False)
    try:
        [path] = wait_for(lambda: list((tmp_path / "incidents").glob("incident-*.json")), 20, "an incident record")
        record = json.loads(path.read_text())
        assert record["detector"] == "audit" and record["step"] == 8 and record["differences"] == 2
        assert record["reason"] == "rank 1, program p, key FULL 4: sample"
        assert record["lagging_rank"] is None and len(record["ranks"]) == 2
        assert server.process.poll() is None
        wait_for(lambda: "incident: the audit of step 8 found 2 differences" in server.log.read_text(), 20, "it is logged")
        assert "is lost" not in server.log.read_text()
    finally:
        server.process.terminate()
        assert server.process.wait(timeout=within(40)) == 0


def test_a_rate_that_is_no_share_is_refused(tmp_path):
    server = Server(tmp_path / "serve.log", "--audit-rate", 1.5, model=MODEL).start(ready=False)
    assert server.process.wait(timeout=within(40)) == 64
    assert "--audit-rate" in server.log.read_text()
