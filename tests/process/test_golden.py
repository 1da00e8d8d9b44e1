"""The real model against reference tokens: every tensor-parallel size, every graph mode, one by one and together."""
import json

import compare_golden
import pytest
from conftest import ROOT, TINY

GOLDEN = ROOT / "tests/golden/smollm2-135m.json"
MODES = ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]
SMALL = ["--max-model-len", 512, "--max-num-batched-tokens", 512, "--max-num-seqs", 16]


def check(entries, answers, tolerance):
    rows = compare_golden.compare(entries, answers, compare_golden.MARGIN, tolerance)
    faults = [f"{row.name}: {row.fault}" for row in rows if row.fault]
    assert len(rows) == len(entries) and not faults, "\n".join(faults)


def prompt_lines(entries):
    longest = max(len(entry["output_ids"]) for entry in entries)
    return [compare_golden.prompt_line(entry, longest) for entry in entries]


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_all_golden_entries_in_one_batch_hold_with_float32(generate, tp, mode):
    entries = compare_golden.load_golden(GOLDEN)
    answers, _ = generate(prompt_lines(entries), "--dtype", "float32", "--tensor-parallel-size", tp,
                          "--cudagraph-mode", mode, *SMALL)
    check(entries, answers, compare_golden.FLOAT32_TOLERANCE)


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_golden_entries_one_by_one_give_the_same_bits_as_together(generate, tp):
    entries = compare_golden.load_golden(GOLDEN)
    options = ["--dtype", "float32", "--tensor-parallel-size", tp, *SMALL]
    together, _ = generate(prompt_lines(entries), *options)
    alone, _ = generate(prompt_lines(entries), *options, "--max-num-seqs", 1)
    check(entries, alone, compare_golden.FLOAT32_TOLERANCE)
    assert [a["output_ids"] for a in alone] == [a["output_ids"] for a in together]
    assert [a["logprobs"] for a in alone] == [a["logprobs"] for a in together]


def test_graph_modes_give_equal_bits_with_bfloat16(generate):
    """CG-28 from outside: every log-probability of every token, as printed."""
    lines = prompt_lines(compare_golden.load_golden(GOLDEN))
    answers = [generate(lines, "--tensor-parallel-size", 2, "--cudagraph-mode", mode, *SMALL)[0] for mode in MODES]
    assert answers[0]
    for mode, other in zip(MODES[1:], answers[1:]):
        assert other == answers[0], mode


def test_first_step_logprobs_hold_with_bfloat16(generate):
    entries = compare_golden.load_golden(GOLDEN)
    answers, _ = generate(prompt_lines(entries), *SMALL)
    for entry, answer in zip(entries, answers):
        ours = dict(map(tuple, answer["logprobs"][0]["top"]))
        for token, expected in entry["first_top5_logprobs"]:
            if token in ours:
                assert abs(ours[token] - expected) <= compare_golden.BFLOAT16_TOLERANCE, (entry["name"], token)
        assert entry["first_top5_logprobs"][0][0] in ours


@pytest.mark.parametrize("name", ["llama3-rope", "llama-sharded", "llama-bias-f32", "qwen2", "qwen3"])
@pytest.mark.parametrize("tp", [1, 2])
def test_tiny_models_give_the_tokens_of_transformers(generate, name, tp):
    model = TINY / name
    entries = compare_golden.load_golden(model / "expected.json")
    lines = [compare_golden.prompt_line(entry, len(entry["output_ids"]), as_ids=True) for entry in entries]
    answers, _ = generate(lines, "--dtype", "float32", "--tensor-parallel-size", tp, model=model)
    check(entries, answers, compare_golden.FLOAT32_TOLERANCE)


def test_tokens_do_not_depend_on_how_a_prompt_is_chunked(generate):
    entries = compare_golden.load_golden(GOLDEN)
    whole, _ = generate(prompt_lines(entries), *SMALL)
    chunked, _ = generate(prompt_lines(entries), *SMALL, "--max-num-batched-tokens", 16)
    assert json.dumps(whole) == json.dumps(chunked)


def test_preemption_changes_no_token(generate):
    """A cache of a few blocks forces recomputation; the answers stay."""
    entries = compare_golden.load_golden(GOLDEN)
    roomy, _ = generate(prompt_lines(entries), *SMALL)
    tight, _ = generate(prompt_lines(entries), *SMALL, "--max-model-len", 160, "--num-gpu-blocks-override", 24)
    assert [a["output_ids"] for a in tight] == [a["output_ids"] for a in roomy]
