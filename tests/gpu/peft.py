#!/usr/bin/env python3
"""Adapters that PEFT saved answer as the checkpoints that it merged, in float32 (tests/fixtures/adapters), on one server.

  peft.py MODEL [OPTIONS of refrain serve]

MODEL is the checkpoint that tools/make_peft_golden.py takes. Exit status 1 if a token differs.
"""
import concurrent.futures
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from bench_server import get, post, served  # noqa: E402

ADAPTERS = sorted(path.parent for path in (ROOT / "tests/fixtures/adapters").glob("*/expected.json"))


def complete(base, model, entry):
    body = {"model": model, "prompt": entry["prompt_ids"], "max_tokens": len(entry["output_ids"]), "temperature": 0,
            "return_token_ids": True, "ignore_eos": True}
    return post(base, body)["choices"][0]["token_ids"]


def main():
    jobs = [(folder.name, entry) for folder in ADAPTERS for entry in json.loads((folder / "expected.json").read_text())]
    with served(sys.argv[1], "base", "--dtype", "float32", "--max-num-seqs", 16, "--max-num-batched-tokens", 64,
                "--cudagraph-capture-sizes", "1,2,4,8,16,32,64", "--num-gpu-blocks-override", 512, "--audit-rate", 0.2, "--enable-lora",
                "--max-loras", len(ADAPTERS), "--lora-modules", *(f"{folder.name}={folder}" for folder in ADAPTERS), *sys.argv[2:]) as base:
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            answers = list(pool.map(lambda job: complete(base, *job), jobs))
        none = re.findall(r'^refrain:cudagraph_dispatch_total{.*mode="NONE".*} (\S+)$', get(base + "/metrics"), re.MULTILINE)
    equal = sum(answer == entry["output_ids"] for answer, (_, entry) in zip(answers, jobs))
    print(f"{equal} of {len(jobs)} answers of {len(ADAPTERS)} adapters have the tokens of the merged checkpoints; "
          f"{sum(map(float, none)):.0f} steps without a graph")
    return 0 if jobs and equal == len(jobs) and not any(map(float, none)) else 1


if __name__ == "__main__":
    sys.exit(main())
