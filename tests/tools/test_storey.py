"""tests/gpu/storey.py, which makes the inputs of `tests/gpu/check storey`."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "configs" / "models" / "llama-8b"
TINY = ROOT / "tests" / "fixtures" / "models" / "llama-bias-f32"


def storey(*arguments):
    return subprocess.run([sys.executable, ROOT / "tests/gpu/storey.py", *arguments], capture_output=True, text=True, check=False)


def test_a_head_has_the_published_shape(tmp_path):
    assert storey("head", MODEL, tmp_path).returncode == 0
    head = json.loads((tmp_path / "config.json").read_text())
    assert head["draft_vocab_size"] == 32000 and head["num_hidden_layers"] == 1 and head["hidden_size"] == 4096


def test_a_wide_tokenizer_has_a_token_for_each_entry_of_the_model(tmp_path):
    assert storey("wide", MODEL, TINY, tmp_path).returncode == 0
    table = json.loads((tmp_path / "tokenizer.json").read_text())
    ids = set(table["model"]["vocab"].values()) | {token["id"] for token in table["added_tokens"]}
    assert ids == set(range(json.loads((MODEL / "config.json").read_text())["vocab_size"]))


@pytest.mark.parametrize("second, status", [([[1, 2], [3]], 0), ([[1, 2], [4]], 1), ([[1, 2]], 1)])
def test_answers_are_the_same_or_not(tmp_path, second, status):
    for name, answers in (("a", [[1, 2], [3]]), ("b", second)):
        (tmp_path / name).write_text("".join(json.dumps({"output_ids": ids}) + "\n" for ids in answers))
    assert storey("same", tmp_path / "a", tmp_path / "b").returncode == status


def test_prompts_are_token_ids_that_any_model_has(tmp_path):
    assert storey("prompts", tmp_path / "in").returncode == 0
    prompts = [json.loads(line)["prompt_ids"] for line in (tmp_path / "in").read_text().splitlines()]
    assert len(prompts) == 16 and all(3 <= token < 203 for prompt in prompts for token in prompt)
