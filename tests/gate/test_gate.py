"""The gate of answers in small (docs/gate.md): real head geometry and the trained model in bfloat16, each mode and number of
ranks once, under arrivals, chunks, preemption and prefix hits; every token judged. `tools/judge` runs all combinations."""
import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from gate import adapters, cases, checkpoints, verdict  # noqa: E402
from gate.reference import Reference  # noqa: E402
from gate.traffic import Traffic  # noqa: E402
from made_up_adapters import serve_options  # noqa: E402

BIN = Path(os.environ.get("REFRAIN_BUILD_DIR", ROOT / "build")) / "bin"
SMOLLM2 = ROOT / "build/models/SmolLM2-135M-Instruct"
PAIRS = [("kv2-of-64", "NONE", 1), ("kv2-of-64", "FULL", 2), ("kv2-of-64", "FULL_AND_PIECEWISE", 1),
         ("kv8-of-64", "PIECEWISE", 1), ("kv8-of-64", "FULL_AND_PIECEWISE", 2),
         ("kv2-of-128", "FULL_DECODE_ONLY", 1), ("kv2-of-128", "PIECEWISE", 2),
         ("kv8-of-128", "FULL", 1), ("kv8-of-128", "FULL_DECODE_ONLY", 2), ("kv8-of-128", "NONE", 2)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """models(name): its folder and its judge, made once."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = (checkpoints.make(folder, checkpoints.SHAPES[name]) if name in checkpoints.SHAPES else
                     checkpoints.with_made_up_tokenizer(folder, SMOLLM2))
            made[name] = model, judge_of(model)
        return made[name]
    return get


def judge_of(model):
    return verdict.Judge(Reference(model), Reference(model, bfloat16=True))


def outcome_of(model, judges, mode, tp, traffic, *options):
    """`judges` by adapter, "" for the model's own."""
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    outcome = asyncio.run(cases.run_case(BIN, model, vocab, mode, [*cases.SMALL, "--tensor-parallel-size", tp, *options],
                                     traffic, adapters=[name for name in judges if name]))
    assert not outcome.faults, "\n".join(outcome.faults)
    judged = sum(map(len, outcome.judged.values()))
    assert judged in [(1 + rounds) * traffic.requests + 2 for rounds in range(1, cases.AT_ONCE + 1)]
    return cases.judge_case(outcome, judges)


def assert_passes(model, judge, mode, tp, traffic, *options):
    faults = outcome_of(model, {"": judge}, mode, tp, traffic, *options).faults
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(("name", "mode", "tp"), PAIRS)
def test_every_token_of_a_random_model_is_near_the_best(models, name, mode, tp):
    assert_passes(*models(name), mode, tp, Traffic())


@pytest.mark.parametrize(("mode", "tp"), [("FULL_AND_PIECEWISE", 2)])
def test_every_token_of_the_trained_model_is_near_the_best(models, mode, tp):
    assert_passes(*models("SmolLM2"), mode, tp, Traffic(requests=8, prompt_most=150, output_most=48),
                  "--max-model-len", 256, "--num-gpu-blocks-override", 20)


@pytest.mark.parametrize(("mode", "tp"), [("FULL_AND_PIECEWISE", 1), ("FULL", 2)])
def test_every_token_of_an_adapter_is_near_the_best_of_the_merged_checkpoint(models, tmp_path, mode, tp):
    model, own = models("kv8-of-128")
    paths = adapters.make(tmp_path / "adapters", model, 3)
    judges = {path.name: judge_of(adapters.merged(tmp_path / "merged" / path.name, model, path)) for path in paths}
    # Fewer requests meet than elsewhere, as two adapters have a place at a time: the cache is smaller, so that some are preempted.
    small = ["--max-model-len", 288, "--num-gpu-blocks-override", 24]
    outcome = outcome_of(model, {"": own} | judges, mode, tp, Traffic(), *small, *serve_options(paths, adapters.RANK, 2))
    assert not outcome.faults, "\n".join(outcome.faults)
    assert set(outcome.judged) == {"", *judges}
    # The answers of one adapter are no answers of another, so that a row that took the wrong one would be found.
    assert verdict.faults_of(judges["adapter0"].distances(outcome.judged["adapter1"]))
    assert verdict.faults_of(own.distances(outcome.judged["adapter0"]))
