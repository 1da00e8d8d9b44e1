"""`refrain generate` gives transformers' tokens: the real model and the tiny checkpoints, in float32, for every
tensor-parallel size and graph mode, one by one and all in one batch. Written by other programs, compared by
tools/compare_golden.py; tests/golden/smollm2-135m.json and tests/fixtures/models/README.md say how they were made.
"""
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import compare_golden  # noqa: E402

REFRAIN = Path(os.environ.get("REFRAIN_BUILD_DIR", ROOT / "build")) / "bin/refrain"
SMOLLM2 = ROOT / "build/models/SmolLM2-135M-Instruct"
MODES = ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]
BATCHES = {"one_by_one": 1, "all_at_once": 16}
# (tensor-parallel size, batch, modes) of the real model: what differs between modes differs in a batch, too, and
# three ranks take turns on two cores. The tiny checkpoints run in every mode on every number of ranks.
RUNS = [(1, "one_by_one", ["FULL_AND_PIECEWISE"]), (2, "one_by_one", ["NONE", "FULL_AND_PIECEWISE"]),
        (3, "one_by_one", ["FULL_AND_PIECEWISE"]),
        (1, "all_at_once", MODES), (2, "all_at_once", MODES), (3, "all_at_once", ["NONE", "FULL_AND_PIECEWISE"])]
TINY = sorted(path.parent for path in ROOT.glob("tests/fixtures/models/*/expected.json"))


@functools.cache
def golden(model):
    path = ROOT / "tests/golden/smollm2-135m.json" if model == SMOLLM2 else model / "expected.json"
    return compare_golden.load_golden(path)


def tensor_parallel_sizes(model):
    """One rank needs at least one head; several may have the same KV head."""
    heads = json.loads((model / "config.json").read_text())["num_attention_heads"]
    return range(1, min(heads, 3) + 1)


def generate(folder, model, options):
    """Runs every golden prompt of the model; the answers in order."""
    prompts, output = folder / "prompts.jsonl", folder / "answers.jsonl"
    compare_golden.write_prompts(golden(model), prompts)
    command = [REFRAIN, "generate", "--model", model, "--prompts", prompts, "--output", output, *options]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-4000:]
    return compare_golden.load_answers(output)


@pytest.fixture(scope="session")
def answers(tmp_path_factory):
    """answers(model, tp, mode, batch, dtype): cached, since several tests look at the same run."""
    @functools.cache
    def run(model, tp, mode, batch, dtype="float32"):
        return generate(tmp_path_factory.mktemp("golden"), model, [
            "--dtype", dtype, "--tensor-parallel-size", tp, "--cudagraph-mode", mode,
            "--max-num-seqs", BATCHES[batch]])
    return run


def assert_golden(model, found, tolerance=compare_golden.FLOAT32_TOLERANCE):
    rows = compare_golden.compare(golden(model), found, tolerance=tolerance)
    faults = [f"{row.name}: {row.fault}" for row in rows if row.fault]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(("tp", "batch", "mode"), [(tp, batch, mode) for tp, batch, modes in RUNS for mode in modes])
def test_smollm2_gives_the_golden_tokens(answers, tp, batch, mode):
    assert_golden(SMOLLM2, answers(SMOLLM2, tp, mode, batch))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("model", "tp"), [(model, tp) for model in TINY for tp in tensor_parallel_sizes(model)],
                         ids=lambda value: value.name if isinstance(value, Path) else f"tp{value}")
def test_tiny_model_gives_the_golden_tokens(answers, model, tp, mode):
    assert_golden(model, answers(model, tp, mode, "all_at_once"))


@pytest.mark.parametrize(("tp", "batch", "modes"), [run for run in RUNS if len(run[2]) > 1])
def test_every_mode_gives_the_same_bits(answers, tp, batch, modes):
    """CG-28: tokens, texts and log-probabilities of the modes are equal, not only close."""
    reference = answers(SMOLLM2, tp, "NONE", batch)
    for mode in modes[1:]:
        assert answers(SMOLLM2, tp, mode, batch) == reference, mode


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_a_batch_changes_no_answer(answers, tp):
    """Kernels are batch-invariant: an answer does not depend on what runs beside it."""
    assert answers(SMOLLM2, tp, "FULL_AND_PIECEWISE", "all_at_once") == \
        answers(SMOLLM2, tp, "FULL_AND_PIECEWISE", "one_by_one")


def test_smollm2_in_bfloat16_agrees_on_the_first_step(answers):
    found = answers(SMOLLM2, 2, "FULL_AND_PIECEWISE", "all_at_once", "bfloat16")
    faults = []
    for entry, answer in zip(golden(SMOLLM2), found):
        fault = compare_golden.compare_logprobs(entry, answer, compare_golden.BFLOAT16_TOLERANCE)[1]
        if fault:
            faults.append(f"{entry['name']}: {fault}")
    assert not faults, "\n".join(faults)
