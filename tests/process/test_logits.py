"""Rows without a finite logit, on real processes: one request's own end, or the workers' (R-21, R-22, R-26)."""
import json
import math
import time

import pytest
from conftest import TINY, wait_for, within
from test_debugging import plant

MODEL = TINY / "qwen3"
WIDTH = json.loads((MODEL / "config.json").read_text())["hidden_size"]
POISON = 77   # a token whose embedding is NaN


def complete(server, prompt, **fields):
    status, text = server.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": True,
                                                   "logit_bias": {str(POISON): -100}, **fields})
    return status, json.loads(text)


def counts(server):
    lines = (line.rsplit(" ", 1) for line in server.get("/metrics")[1].splitlines() if not line.startswith("#"))
    values = {name.split("{")[0].removeprefix("refrain:"): float(value) for name, value in lines}
    return [values[f"{name}_total"] for name in ("requests_without_logit", "worker_group_restarts", "requests_resumed")]


@pytest.mark.parametrize("options, tp", [([], 2), (["--cudagraph-mode", "NONE"], 1)])
def test_a_request_without_a_finite_logit_ends_alone_and_hurts_nobody_R22(start_server, copy_model, options, tp):
    broken = copy_model(MODEL)
    for column in range(WIDTH):
        plant(broken, "model.embed_tokens.weight", POISON * WIDTH + column, math.nan)
    server = start_server("--block-size", 16, "--num-gpu-blocks-override", 40, *options, model=broken, tp=tp)
    workers = server.workers()
    prompts = [[3 + i, *range(5, 40)] for i in range(4)]
    expected = [complete(server, prompt)[1]["choices"][0]["text"] for prompt in prompts]
    poison = [*range(5, 40), POISON, 9]
    # More than ask for a canary, one after the other; the cache is small, so that others get their blocks.
    for i in range(9):
        status, body = complete(server, poison[i:] + [3 + i])
        assert status == 500 and "no finite logit" in body["error"]["message"], (status, body)
        assert set(body["error"]) >= {"message", "type", "param", "code"}
        assert complete(server, prompts[i % 4])[1]["choices"][0]["text"] == expected[i % 4]
    # As a stream: the error comes as an event, whatever came before it.
    status, text = server.post("/v1/completions", {"prompt": poison, "max_tokens": 4, "stream": True})
    assert "no finite logit" in text and text.count("[DONE]") <= 1
    # The statistics follow the answer's last event.
    wait_for(lambda: counts(server)[0] == 10, 5, "ten requests counted")
    assert counts(server) == [10, 0, 0] and server.workers() == workers
    assert "a canary decides" in server.log.read_text()
    assert server.stop() == 0


def test_weights_that_give_no_logits_restart_the_group_once_and_end_with_64_and_their_name_R22(start_server, copy_model):
    broken = copy_model(MODEL)
    plant(broken, "model.norm.weight", 5, math.nan)
    server = start_server(model=broken, tp=2)
    begun = time.monotonic()
    answers = []
    while server.process.poll() is None and time.monotonic() - begun < within(60):
        try:
            answers.append(complete(server, [5, 6, 7]))
        except OSError:
            break   # it is ending
        if len(answers) > 3:
            time.sleep(0.05)
    assert server.process.wait(timeout=within(60)) == 64, server.log.read_text()[-3000:]
    log = server.log.read_text()
    assert log.count("its group starts again") == 1, "never a loop"
    assert "model.norm.weight" in log
    assert [status for status, _ in answers[:4]] == [500] * 4


def test_idle_workers_whose_weights_give_no_logits_are_found_R22(start_server, copy_model):
    broken = copy_model(MODEL)
    plant(broken, "model.norm.weight", 5, math.nan)
    server = start_server(model=broken, tp=1)
    assert server.process.wait(timeout=within(60)) == 64, server.log.read_text()[-3000:]
    assert "model.norm.weight" in server.log.read_text()


def test_the_same_poison_again_and_again_on_a_quiet_server_never_ends_it_R26(start_server):
    """Alone at two losses each time: eight in all, with three restarts a minute allowed."""
    server = start_server("--fault", f"kind=oom,token={POISON}", model=MODEL, tp=1)
    for _ in range(4):
        status, body = complete(server, [1, POISON, 3])
        assert status == 503 and "it is not tried again" in body["error"]["message"], (status, body)
    wait_for(lambda: server.get("/ready")[0] == 200, 20, "ready")
    assert complete(server, [1, 2, 3])[0] == 200
    assert server.process.poll() is None and server.log.read_text().count("starts again") == 8
    assert server.stop() == 0
