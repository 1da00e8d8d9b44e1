"""The golden comparison lets through what the goldens allow and nothing else."""
import copy
import json
import subprocess
import sys

import compare_golden
import pytest

ENTRY = {"name": "e", "prompt": "hi", "prompt_ids": [5, 6], "output_ids": [7, 8, 9, 2], "output_text": "abc",
         "margins": [1.0, 0.5, 0.01, 2.0],
         "first_top5_logprobs": [[7, -0.5], [11, -1.5], [12, -2.0], [13, -2.5], [14, -3.0]]}
ANSWER = {"prompt_ids": [5, 6], "output_ids": [7, 8, 9, 2], "text": "abc", "finish_reason": "stop",
          "logprobs": [{"token_id": 7, "logprob": -0.501,
                        "top": copy.deepcopy(ENTRY["first_top5_logprobs"])}]}


def outcome(tolerance=0.02, **changes):
    return compare_golden.compare([ENTRY], [{**copy.deepcopy(ANSWER), **changes}], tolerance=tolerance)[0]


def test_equal_answer_holds():
    row = outcome()
    assert row.fault is None and row.compared == 4 and row.note == ""


def test_other_token_at_a_wide_margin_fails():
    assert "step 1: expected 8 (margin 0.5), got 88" in outcome(output_ids=[7, 88, 9, 2]).fault


def test_other_token_at_a_narrow_margin_ends_the_comparison():
    row = outcome(output_ids=[7, 8, 99, 1, 1, 1])
    assert row.fault is None and "parts at step 2" in row.note


@pytest.mark.parametrize("output_ids", [[7, 8, 9], [7, 8], [], [7, 8, 9, 2, 2]])
def test_shorter_or_longer_output_fails(output_ids):
    assert outcome(output_ids=output_ids).fault


def test_other_prompt_ids_fail():
    assert "encoded" in outcome(prompt_ids=[5]).fault


def test_same_tokens_with_other_text_fail():
    assert "other text" in outcome(text="abd").fault


def shifted(amount):
    logprobs = copy.deepcopy(ANSWER["logprobs"])
    logprobs[0]["top"][1][1] += amount
    return logprobs


def test_logprobs_hold_within_the_tolerance_only():
    assert outcome(logprobs=shifted(0.019)).fault is None
    assert "differ by" in outcome(logprobs=shifted(0.03)).fault
    assert outcome(logprobs=shifted(0.1), tolerance=0.15).fault is None
    assert outcome(logprobs=shifted(0.1), tolerance=None).fault is None


def test_missing_logprobs_and_missing_alternatives_fail():
    assert "no log-probabilities" in outcome(logprobs=None).fault
    fewer = copy.deepcopy(ANSWER["logprobs"])
    fewer[0]["top"] = [pair for pair in fewer[0]["top"] if pair[0] != 11]
    assert "token 11" in outcome(logprobs=fewer).fault


def test_last_alternative_may_swap_with_one_as_likely():
    swapped = copy.deepcopy(ANSWER["logprobs"])
    swapped[0]["top"][-1] = [15, -2.999]
    assert outcome(logprobs=swapped).fault is None


def run(*arguments):
    return subprocess.run([sys.executable, compare_golden.__file__, *map(str, arguments)], capture_output=True, text=True)


def test_command_writes_prompts_and_reports_differences(tmp_path):
    golden, answers = tmp_path / "golden.json", tmp_path / "out.jsonl"
    golden.write_text(json.dumps([ENTRY, {**ENTRY, "messages": [{"role": "user", "content": "x"}]}]))
    assert run("prompts", golden, tmp_path / "in.jsonl").returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "in.jsonl").read_text().splitlines()]
    assert lines[0] == {"prompt": "hi", "max_tokens": 4, "temperature": 0, "logprobs": 5}
    assert "messages" in lines[1] and "prompt" not in lines[1]
    answers.write_text(2 * (json.dumps(ANSWER) + "\n"))
    assert run("compare", golden, answers).returncode == 0
    answers.write_text(json.dumps(ANSWER) + "\n" + json.dumps({**ANSWER, "output_ids": [1]}) + "\n")
    assert run("compare", golden, answers).returncode == 1
    answers.write_text(json.dumps(ANSWER) + "\n")
    assert run("compare", golden, answers).returncode == 2
