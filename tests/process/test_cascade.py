"""CG-13 with real processes: requests behind one long prompt, whose shared blocks a step reads once, get the tokens that
they get without (--disable-cascade-attn), and every step is audited."""
import concurrent.futures
import json

import pytest
from conftest import TINY, Server

MODEL = TINY / "llama-bias-f32"
OPTIONS = ("--served-model-name", "m", "--dtype", "float32", "--max-num-seqs", 8, "--max-num-batched-tokens", 512,
           "--cudagraph-capture-sizes", "1,2,4,8", "--num-gpu-blocks-override", 512, "--audit-rate", 1)
SHARED = [3 + i * 31 % 200 for i in range(400)]
REQUESTS = 6


def complete(server, prompt, tokens=24):
    status, text = server.post("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                                   "return_token_ids": True, "ignore_eos": True})
    assert status == 200, text
    return json.loads(text)["choices"][0]["token_ids"]


def metric(server, name):
    return next(float(line.split()[-1]) for line in server.get("/metrics")[1].splitlines() if line.startswith(name))


def answers(tmp_path, *options):
    """What requests behind the prompt get, all at once, and how many steps read it once."""
    server = Server(tmp_path / "serve.log", *OPTIONS, *options, model=MODEL, tp=1).start()
    complete(server, [*SHARED, 7], tokens=1)
    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
        found = list(pool.map(lambda i: complete(server, [*SHARED, 50 + i, 60 + i]), range(REQUESTS)))
    steps = metric(server, "refrain:cascade_steps_total")
    audit = json.loads(server.get("/cudagraphs?format=json")[1])["audit"]
    assert audit["steps"] > 0 and audit["differences"] == 0, audit
    assert server.stop() == 0
    return found, steps


def test_cg13_requests_behind_one_prompt_read_it_once_and_get_the_same_tokens(tmp_path):
    plain, none = answers(tmp_path, "--disable-cascade-attn")
    cascade, steps = answers(tmp_path)
    assert none == 0 and steps > 5
    assert cascade == plain and len({str(tokens) for tokens in plain}) > 1


@pytest.mark.parametrize("backend", ["host_varlen"])
def test_cg13_with_a_backend_that_plans_on_the_host(tmp_path, backend):
    plain, none = answers(tmp_path, "--disable-cascade-attn", "--attention-backend", backend)
    cascade, steps = answers(tmp_path, "--attention-backend", backend)
    assert none == 0 and steps > 5
    assert cascade == plain
