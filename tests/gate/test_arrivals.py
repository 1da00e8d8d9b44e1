"""The client of tools/arrivals takes no answer for whole that is not, and its table misses no target."""
import asyncio
import json
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture(scope="module")
def arrivals():
    loader = SourceFileLoader("arrivals", str(ROOT / "tools/arrivals"))
    module = module_from_spec(spec_from_loader("arrivals", loader))
    loader.exec_module(module)
    return module


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
TEXT = b'data: {"choices":[{"text":" t4"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


def outcome(arrivals, *pieces, tokens=3):
    async def feed():
        ask = arrivals.Ask(b"")
        for piece in pieces:
            ask.data_received(piece)
        return ask.outcome(tokens)
    return asyncio.run(feed())


def test_a_whole_answer_has_times_and_no_fault(arrivals):
    first, each, pause, fault = outcome(arrivals, HEAD, TEXT, TEXT * 2, USAGE + DONE)
    assert first > 0 and each >= 0 and pause > 0 and fault == ""


def test_the_longest_pause_begins_with_the_first_token(arrivals, monkeypatch):
    times = iter((1.0, 2.0, 2.5, 5.5, 5.75))
    monkeypatch.setattr(arrivals.time, "perf_counter", lambda: next(times))
    assert outcome(arrivals, HEAD, TEXT, TEXT, TEXT, USAGE + DONE) == (2.0, 1.875, 3.0, "")


@pytest.mark.parametrize("pieces", [
    [], [HEAD], [HEAD, TEXT, USAGE], [HEAD, TEXT, DONE], [HEAD, TEXT, USAGE.replace(b":3}", b":2}"), DONE],
    [HEAD.replace(b"200 OK", b"429 Too Many"), b'{"error":{}}']])
def test_any_other_answer_is_a_fault(arrivals, pieces):
    first, each, pause, fault = outcome(arrivals, *pieces)
    assert (first, each, pause) == (None, None, None) and fault


def test_the_slowest_first_tokens_are_named_with_their_prompts(arrivals, capsys):
    async def feed():
        ask = arrivals.Ask(b"")
        for piece in (HEAD, TEXT, USAGE + DONE):
            ask.data_received(piece)
        return ask.used("prompt_tokens")
    assert asyncio.run(feed()) == 9
    rows = [(0.001 * i, 0.01, 0.002 * i, "") for i in range(1, 9)]
    figures = arrivals.figures_of([(80, 0.0, 1.0, rows, [(0.001 * i, i / 4, 100 * i) for i in range(1, 9)])])
    assert [one["ttft"] for one in figures["slowest"]] == [8.0, 7.0, 6.0, 5.0, 4.0]
    assert figures["pause_most"] == 16.0
    arrivals.show("20/s", figures, {"ttft_p99": 8})
    assert "slowest" not in capsys.readouterr().out
    arrivals.show("20/s", figures, {"ttft_p99": 7})
    assert "slowest: 8.0 ms for 800 tokens at 2.0 s; 7.0 ms for 700" in capsys.readouterr().out


def test_each_target_that_is_missed_is_named(arrivals):
    figures = {"tokens_per_s": 100, "ttft_p50": 20.0, "tpot_p50": None}
    assert arrivals.missed(figures, {"tokens_per_s": 100, "ttft_p50": 20}) == []
    assert arrivals.missed(figures, {"tokens_per_s": 101, "ttft_p50": 19, "tpot_p50": 5}) == [
        "tokens_per_s 100 for 101", "ttft_p50 20.0 for 19", "tpot_p50 None for 5"]


def test_models_take_turns(arrivals):
    named = [json.loads(data.split(b"\r\n\r\n", 1)[1]).get("model") for data, _ in arrivals.bodies(5, 0, "20/s", 1, ("", "one", "two"))]
    assert named == [None, "one", "two", None, "one"]


def test_requests_follow_the_seed(arrivals):
    def requests(seed):
        return list(arrivals.bodies(4, 64, "shared prefix", seed))
    assert requests(3) == requests(3) != requests(4)


def test_no_prompt_comes_twice_and_all_clients_share_the_prefix(arrivals):
    def prompts(prefix, scenario, seed):
        return [tuple(json.loads(data.split(b"\r\n\r\n", 1)[1])["prompt"]) for data, _ in arrivals.bodies(20, prefix, scenario, seed)]
    beginnings = [prompt[:8] for scenario in ("20/s", "50/s") for seed in (7, 8) for prompt in prompts(0, scenario, seed)]
    assert len(set(beginnings)) == 80
    shared = [prompt for seed in (7, 8) for prompt in prompts(64, "shared prefix", seed)]
    assert len({prompt[:64] for prompt in shared}) == 1 and len(set(shared)) == 40
