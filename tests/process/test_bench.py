"""`refrain bench`: the fields that readers of its JSON rely on, and options that make no sense."""
import json
import subprocess

import pytest
from conftest import BIN, TINY

FIELDS = ["case", "model", "device", "tp", "mode", "batch", "context", "runs", "min", "median", "p99", "achieved",
          "limit", "limit_source"]
MODEL = ["--model", str(TINY / "qwen3"), "--max-num-seqs", "2", "--runs", "2"]


def bench(*arguments):
    return subprocess.run([str(BIN / "refrain"), "bench", *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("kind, options, device", [
    ("decode", ["--prompt-len", "4", "--first-tokens", "2", "--last-tokens", "402"], "host"),
    ("prefill", ["--lengths", "8"], "host"), ("capture", [], "host"), ("dispatch", [], "host"),
    ("serve", ["--num-requests", "3", "--prompt-len", "4", "--output-len", "4"], "host"),
])
def test_every_case_has_the_fields_that_are_relied_on(kind, options, device):
    done = bench(kind, *MODEL, *options, "--json")
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)
    assert cases
    for case in cases:
        assert not set(FIELDS) - set(case), case
        assert case["case"] == kind and case["device"] == device and case["tp"] == 1
        assert case.get("ms_per_step", case.get("tokens_per_s")) > 0
        assert case["runs"] > 0 and 0 < case["min"] <= case["median"] <= case["p99"]
        assert case["achieved"] > 0 and (case["limit"] is None or case["limit"] > 0) and case["limit_source"]


def test_a_table_is_printed_for_people():
    done = bench("capture", *MODEL)
    assert done.returncode == 0 and done.stdout.startswith("case ") and "capture" in done.stdout.splitlines()[1]


@pytest.mark.parametrize("kind, options", [
    ("serve", ["--num-requests", "4", "--prompt-len", "4", "--output-len", "60"]),
    ("decode", ["--prompt-len", "4", "--first-tokens", "2", "--last-tokens", "60"]),
])
def test_figures_of_a_run_that_lost_its_workers_are_refused_R21(kind, options):
    """The request that meets the staged fault goes on with the next workers, past it."""
    done = bench(kind, *MODEL, *options, "--fault", "kind=oom,step=50")
    assert done.returncode == 70 and "the workers were lost" in done.stderr, (done.returncode, done.stderr[-2000:])
    assert not done.stdout


@pytest.mark.parametrize("arguments, word", [
    (["decode", "--batch", "3"], "--max-num-seqs"), (["decode", "--batch", "0"], "--batch"),
    (["serve", "--num-requests", "-1"], "--num-requests"), (["prefill", "--lengths", "0"], "--lengths"),
    (["serve", "--request-rate", "-2"], "--request-rate"), (["nonsense"], "kind"), ([], "kind"),
    (["prefill", "--lengths", "100000"], "max_model_len"),
])
def test_options_that_make_no_sense_are_named(arguments, word):
    done = bench(*arguments, *MODEL)
    assert done.returncode == 64 and word in done.stderr, (done.returncode, done.stderr)


# ---- of the device alone: kernels, sums over ranks, loading

DEVICE_KINDS = {
    "gemm": ["--batch", "1,16"], "attention": ["--batch", "1,2", "--context", "32", "--shared-prefix", "16", "--lengths", "32"],
    "all-reduce": ["--tensor-parallel-size", "2", "--message-bytes", "1024,65536"],
    "load": ["--tensor-parallel-size", "2"], "load dummy": ["--load-format", "dummy"],
}
LARGEST_SHARE = 10  # of a limit: more is a wrong unit, whatever else the machine does meanwhile


def device_cases(name):
    kind = name.split()[0]
    done = bench(kind, *MODEL, *DEVICE_KINDS[name], "--pool-mib", "8", "--json")
    assert done.returncode == 0, done.stderr
    return kind, json.loads(done.stdout)


@pytest.mark.parametrize("name", DEVICE_KINDS)
def test_what_the_device_does_is_beside_a_limit_measured_in_the_same_run(name):
    kind, cases = device_cases(name)
    assert cases
    for case in cases:
        assert not set([*FIELDS, "what", "device_name", "bytes", "gb_s"]) - set(case), case
        assert case["case"] == kind and case["device"] == "host" and case["runs"] == 2
        assert 0 < case["min"] <= case["median"] <= case["p99"] and case["gb_s"] > 0
        assert "measured" in case["limit_source"]
        assert 0 < case["achieved"] / case["limit"] <= LARGEST_SHARE, case


def test_gemm_covers_each_linear_of_the_model_at_each_batch():
    _, cases = device_cases("gemm")
    assert {case["what"].split()[0] for case in cases} == {
        "q_proj+k_proj+v_proj", "o_proj", "gate_proj+up_proj", "down_proj", "lm_head"}
    assert all(case["bound"] in ("memory", "arithmetic") and case["tflop_s"] > 0 for case in cases)
    assert [case["batch"] for case in cases] == [1, 16] * 4 + [1]  # two requests at most: no 16 rows of logits


def test_attention_covers_decodes_and_prompts_and_names_the_backends():
    _, cases = device_cases("attention")
    assert [(case["phase"], case["batch"], case["context"], case["cascade"]) for case in cases] == 2 * [
        ("decode", 1, 32, False), ("decode", 1, 32, True), ("decode", 2, 32, False), ("decode", 2, 32, True),
        ("prefill", 1, 32, False)]
    assert [case["backends"].split(", ")[0] for case in cases] == 5 * ["host"] + 5 * ["host_varlen"]
    assert all(case["shared_prefix"] == (16 if case["phase"] == "decode" else 0) for case in cases)
    assert cases[3]["bytes"] < cases[2]["bytes"], "read once"


def test_all_reduce_covers_each_message_in_each_way_and_needs_no_model():
    done = bench("all-reduce", *DEVICE_KINDS["all-reduce"], "--runs", "2", "--json")
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)
    assert [(case["bytes"], case["implementation"], case["own_choice"]) for case in cases] == [
        (1024, "exchange", True), (65536, "exchange", True)]
    assert all(case["latency_us"] > 0 and case["copy_to_next_rank_gb_s"] > 0 and case["tp"] == 2 for case in cases)


def test_load_gives_each_ranks_share_and_both_copies():
    _, cases = device_cases("load")
    assert sorted(case["rank"] for case in cases) == [0, 1]
    assert all(case["page_cache_limit"] > 0 and case["copy_limit"] > 0 and case["seconds"] > 0 for case in cases)


@pytest.mark.parametrize("arguments, word", [
    (["all-reduce"], "--tensor-parallel-size"), (["all-reduce", "--tensor-parallel-size", "2", "--message-bytes", "3"],
                                                 "--message-bytes"),
    (["gemm", "--model", "no-such-directory"], "no-such-directory"), (["gemm"], "--model"),
    (["attention", *MODEL, "--attention-backend", "nonsense"], "--attention-backend"),
])
def test_device_kinds_name_what_they_cannot_do(arguments, word):
    done = bench(*arguments)
    assert done.returncode == 64 and word in done.stderr, (done.returncode, done.stderr)
