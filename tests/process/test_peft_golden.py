"""Adapters that PEFT itself saved give the tokens that transformers computes from the checkpoint that PEFT merged
(tools/make_peft_golden.py), in float32."""
import concurrent.futures
import json

import pytest
from conftest import ROOT, TINY

ADAPTERS = sorted(path.parent for path in (ROOT / "tests/fixtures/adapters").glob("*/expected.json"))


def complete(server, model, entry):
    status, text = server.post("/v1/completions", {
        "model": model, "prompt": entry["prompt_ids"], "max_tokens": len(entry["output_ids"]), "temperature": 0,
        "return_token_ids": True, "ignore_eos": True})
    assert status == 200, text
    return json.loads(text)["choices"][0]["token_ids"]


def test_there_are_adapters_with_margins_that_float32_keeps():
    assert {folder.name for folder in ADAPTERS} == {"embeddings", "linears", "rslora-one-layer"}
    for folder in ADAPTERS:
        for entry in json.loads((folder / "expected.json").read_text()):
            assert len(entry["output_ids"]) == 24 and min(entry["margins"]) > 1e-3, folder.name


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("more", [(), ("--enforce-eager",)], ids=["graphs", "eager"])
def test_peft_adapters_in_one_batch_answer_as_the_checkpoints_that_peft_merged(start_server, tp, more):
    server = start_server(
        "--served-model-name", "base", "--dtype", "float32", "--max-num-seqs", 16, "--max-num-batched-tokens", 64,
        "--cudagraph-capture-sizes", "1,2,4,8,16,32,64", "--num-gpu-blocks-override", 512, "--enable-lora", "--max-loras", 3,
        "--lora-modules", *(f"{folder.name}={folder}" for folder in ADAPTERS), *more, model=TINY / "llama-bias-f32", tp=tp)
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        jobs = [(folder.name, entry, pool.submit(complete, server, folder.name, entry))
                for folder in ADAPTERS for entry in json.loads((folder / "expected.json").read_text())]
        for name, entry, job in jobs:
            assert job.result() == entry["output_ids"], name
