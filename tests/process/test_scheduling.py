"""What the scheduler does never shows in the tokens: chunked prompts, a cache that is too small, graphs of any mode."""
import re

import compare_golden
import pytest
from conftest import ROOT

GOLDEN = ROOT / "tests/golden/smollm2-135m.json"
SMALL = ["--max-model-len", 512, "--max-num-batched-tokens", 512, "--max-num-seqs", 16]


@pytest.fixture
def lines():
    entries = compare_golden.load_golden(GOLDEN)
    longest = max(len(entry["output_ids"]) for entry in entries)
    return [compare_golden.prompt_line(entry, longest) for entry in entries]


def test_tokens_do_not_depend_on_how_a_prompt_is_chunked(generate, lines):
    whole, _ = generate(lines, *SMALL)
    chunked, _ = generate(lines, *SMALL, "--max-num-batched-tokens", 16)
    assert chunked == whole


def preemptions(finished):
    return int(re.search(r"(\d+) preemptions; graphs that ran", finished.stderr)[1])


def test_preemption_changes_no_token(generate, lines):
    """A cache of a few blocks forces recomputation; the answers stay."""
    short = [*SMALL, "--max-model-len", 160, "--log-level", "debug"]
    roomy, with_room = generate(lines, *short)
    tight, without = generate(lines, *short, "--num-gpu-blocks-override", 24)
    assert preemptions(with_room) == 0 and preemptions(without) > 0
    assert [a["output_ids"] for a in tight] == [a["output_ids"] for a in roomy]


def test_modes_give_equal_bits_with_bfloat16_on_two_ranks(generate, lines):
    """CG-28 from outside: every log-probability of every token, as printed."""
    answers = {mode: generate(lines, "--tensor-parallel-size", 2, "--cudagraph-mode", mode, *SMALL)[0]
               for mode in ("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE")}
    assert answers["NONE"] and all(answer == answers["NONE"] for answer in answers.values())
