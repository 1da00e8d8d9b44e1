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
    ("decode", ["--prompt-len", "4", "--first-tokens", "2", "--last-tokens", "6"], "host"),
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


@pytest.mark.parametrize("arguments, word", [
    (["decode", "--batch", "3"], "--max-num-seqs"), (["decode", "--batch", "0"], "--batch"),
    (["serve", "--num-requests", "-1"], "--num-requests"), (["prefill", "--lengths", "0"], "--lengths"),
    (["serve", "--request-rate", "-2"], "--request-rate"), (["nonsense"], "kind"), ([], "kind"),
    (["prefill", "--lengths", "100000"], "max_model_len"),
])
def test_options_that_make_no_sense_are_named(arguments, word):
    done = bench(*arguments, *MODEL)
    assert done.returncode == 64 and word in done.stderr, (done.returncode, done.stderr)
