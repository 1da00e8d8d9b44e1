"""Prompts that run in parts between decode steps (--split-prefill) change no answer (CG-39)."""
import random

import pytest
from conftest import TINY

TINY_MODEL = TINY / "qwen3"
SMALL = ["--max-model-len", 512, "--max-num-batched-tokens", 256, "--max-num-seqs", 8, "--dtype", "float32"]
PARTS = ["--split-prefill", 3, "--long-prefill-token-threshold", 16]


def lines(count=24):
    """Prompts short and long, greedy and drawn, more of them than run at once."""
    draw = random.Random(9)
    kinds = [{"temperature": 0}, {"temperature": 0, "logprobs": 2}, {"temperature": 1.0, "top_p": 0.9, "seed": 7},
             {"temperature": 0, "repetition_penalty": 1.3}, {"temperature": 0, "min_tokens": 9}]
    return [{"prompt_ids": [draw.randrange(3, 250) for _ in range(draw.choice([3, 20, 120, 300]))],
             "max_tokens": draw.randrange(4, 60), **kinds[i % len(kinds)]} for i in range(count)]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"])
def test_answers_equal_those_of_whole_runs_CG39(generate, mode, tp):
    options = [*SMALL, "--tensor-parallel-size", tp, "--cudagraph-mode", mode]
    plain, _ = generate(lines(), *options, model=TINY_MODEL)
    parts, _ = generate(lines(), *options, *PARTS, model=TINY_MODEL)
    assert parts == plain


@pytest.mark.parametrize("more", [["--num-gpu-blocks-override", 40], ["--no-async-scheduling"], ["--no-enable-prefix-caching"],
                                  ["--audit-rate", 0.5]])
def test_nothing_that_the_scheduler_does_shows_in_parts_CG39(generate, more):
    plain, _ = generate(lines(), *SMALL, model=TINY_MODEL)
    parts, _ = generate(lines(), *SMALL, *PARTS, *more, model=TINY_MODEL)
    assert parts == plain


def test_more_parts_than_the_model_has_pieces_end_the_start_with_a_sentence(generate):
    _, done = generate(lines(1), *SMALL, "--split-prefill", 64, model=TINY_MODEL, check=False)
    assert done.returncode == 64 and "--split-prefill: 64 parts of" in done.stderr, done.stderr
