"""A coordinator that dies under its clients, whom the front keeps: no stream is cut, and all get the tokens of a run without a
fault (R-30)."""
import json
import os
import signal
import threading
import time

import pytest

from conftest import TINY, command_line, held, kill_busy, wait_for, within
from test_server_life import STORIES, Stream, metric

FRONT = ["--api-server-count", 1]
SMALL = [*FRONT, "--max-num-seqs", 24, "--max-model-len", 512]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 200}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
KINDS = [
    *STORIES,
    {"prompt": "One, two, three,", "temperature": 0, "stop": ["zzzz", "ninety-nine"]},
    {"prompt": "Say something in JSON:", "temperature": 0, "logit_bias": {"2": -100},
     "extra_body": {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False}},
]


def all_answers(streams):
    return [stream.answer() for stream in streams]


def tokens_of(streams, count):
    wait_for(lambda: all(len(stream.chunks) >= count or not stream.is_alive() for stream in streams), 90,
             f"{count} chunks of every stream")


def test_no_stream_of_a_killed_coordinator_is_cut_or_changed_R30(start_server):
    """Twice within one run; 16 streams of all kinds, and answers that are not streamed."""
    server = start_server(*SMALL)
    stories = [KINDS[i % len(KINDS)] for i in range(16)]
    expected = all_answers([Stream(server, story, 120) for story in stories])
    whole = json.loads(server.post("/v1/completions", {"prompt": "Whole", "max_tokens": 120, "temperature": 0, "n": 2,
                                                       "ignore_eos": True})[1])["choices"]
    front, workers = server.front(), server.workers()
    streams = [Stream(server, story, 120) for story in stories]
    got = []
    asking = threading.Thread(target=lambda: got.append(server.post(
        "/v1/completions", {"prompt": "Whole", "max_tokens": 120, "temperature": 0, "n": 2, "ignore_eos": True})))
    asking.start()
    late = []
    for chunks in (10, 45):
        coordinator = server.coordinator()
        tokens_of(streams, chunks)
        with held(server.process.pid):  # it starts no other coordinator meanwhile
            kill_busy(coordinator, lambda: any(stream.is_alive() for stream in streams), 20, "in the middle")
            wait_for(lambda: server.get("/ready")[0] == 503, 20, "not ready without a coordinator")
            assert server.get("/live")[0] == 200
            health = json.loads(server.get("/health")[1])
            assert health["status"] != "healthy" and health["requests_waiting"] >= 1
            late.append(Stream(server, STORIES[0], 120))  # comes while there is no coordinator
            wait_for(lambda: json.loads(server.get("/health")[1])["requests_waiting"] > health["requests_waiting"], 20, "it is there")
        server.wait_ready(20)
    assert all_answers(streams) == expected and all_answers(late) == [expected[0]] * 2
    asking.join(timeout=within(60))
    assert got[0][0] == 200 and json.loads(got[0][1])["choices"] == whole
    assert server.front() == front and server.workers() == workers, "adopted, not started again"
    metrics = server.get("/metrics")[1]
    assert metric(metrics, "refrain:requests_resumed_total") >= 1 and metric(metrics, "refrain:request_failure_total") == 0
    assert server.log.read_text().count("adopted with weights and graphs") == 2
    assert server.stop() == 0


def test_a_coordinator_killed_while_a_prompt_is_computed_R30(start_server):
    server = start_server(*FRONT, "--max-num-seqs", 4, "--max-model-len", 4096, "--max-num-batched-tokens", 256,
                          "--no-enable-prefix-caching")
    story = {"prompt": "A long story about a river. " * 300, "temperature": 0}
    whole = {**story, "max_tokens": 8, "ignore_eos": True, "prompt_logprobs": 0}

    def ask():
        return json.loads(server.post("/v1/completions", whole)[1])["choices"]
    expected, expected_whole, got = Stream(server, story, 8).answer(), ask(), []
    asking = threading.Thread(target=lambda: got.append(ask()))
    asking.start()
    stream = Stream(server, story, 8)

    def both_there():
        health = json.loads(server.get("/health")[1])
        return health["requests_running"] >= 1 and health["requests_running"] + health["requests_waiting"] == 2
    wait_for(both_there, 20, "one runs, the other does or waits")
    assert not stream.chunks
    server.kill(server.coordinator())
    assert stream.answer() == expected
    asking.join(timeout=within(60))
    assert got == [expected_whole]
    assert server.stop() == 0


def test_waiting_clients_hear_comments_meanwhile_and_time_goes_on_R18(start_server):
    """The coordinator is held, as if its start took long."""
    server = start_server("--sse-keep-alive-interval", "0.2", *SMALL, model=TINY / "qwen3", tp=1)
    os.kill(server.coordinator(), signal.SIGSTOP)
    answer = {}

    def ask():
        answer["body"] = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 4, "stream": True})[1]
    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(1)
    successor = server.kill(server.coordinator())
    asking.join(timeout=within(30))
    assert answer["body"].count(": keep-alive") >= 2 and answer["body"].endswith("data: [DONE]\n\n")
    assert successor == server.coordinator()
    assert server.stop() == 0


def test_a_killed_front_is_started_again_and_its_requests_end_R30(start_server, tmp_path):
    server = start_server("--incident-dir", tmp_path / "incidents", *SMALL)
    coordinator, workers, front = server.coordinator(), server.workers(), server.front()
    stream = Stream(server, STORIES[0], 480)
    tokens_of([stream], 5)
    server.kill(front)
    server.wait_ready(20)
    stream.join(timeout=within(10))
    assert not stream.is_alive() and len(stream.chunks) < 480
    wait_for(lambda: metric(server.get("/metrics")[1], "refrain:num_requests_running") == 0, 10, "its request has ended")
    assert metric(server.get("/metrics")[1], "refrain:incidents_total") == 1
    assert server.coordinator() == coordinator and server.workers() == workers
    [record] = [json.loads(path.read_text()) for path in (tmp_path / "incidents").glob("incident-*.json")]
    assert record["process"] == f"front (pid {front})"
    assert Stream(server, STORIES[0], 10).answer()["completion_tokens"] == 10
    assert server.stop() == 0


def test_sigterm_drains_through_the_front(start_server):
    server = start_server("--drain-timeout", within(60), *SMALL)
    stream = Stream(server, STORIES[0], 60)
    tokens_of([stream], 3)
    children = server.children("front") + server.children("coordinator") + server.workers()
    server.process.send_signal(signal.SIGTERM)
    assert stream.answer()["completion_tokens"] == 60
    assert server.process.wait(timeout=within(30)) == 0
    assert not any(command_line(pid) for pid in children)


@pytest.mark.parametrize("first", ["coordinator", "signal"])
def test_a_coordinator_killed_around_sigterm_cuts_no_stream_R11_R30(start_server, first):
    server = start_server("--drain-timeout", within(20), *SMALL)
    expected = Stream(server, STORIES[0], 240).answer()
    if first == "coordinator":  # the pause before the third start is 0.4 s at least
        for _ in range(2):
            server.kill(server.coordinator())
            server.wait_ready(20)
    stream = Stream(server, STORIES[0], 240)
    tokens_of([stream], 3)
    coordinator = server.coordinator()
    if first == "coordinator":
        os.kill(coordinator, signal.SIGKILL)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
    else:
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.get("/ready")[0] == 503, 5, "it drains")
        os.kill(coordinator, signal.SIGKILL)
    assert stream.answer() == expected
    assert server.process.wait(timeout=within(30)) == 0


@pytest.mark.parametrize("groups", [["--data-parallel-size", 2],
                                    ["--prefill-groups", 1, "--decode-groups", 1, "--kv-transfer-policy", "always"]])
def test_requests_of_several_groups_go_on_too_R30(start_server, groups):
    server = start_server(*SMALL, *groups, tp=1)
    expected = all_answers([Stream(server, story, 60) for story in STORIES])
    streams = [Stream(server, story, 60) for story in STORIES]
    tokens_of(streams, 5)
    server.kill(server.coordinator())
    assert all_answers(streams) == expected
    assert server.stop() == 0


def test_more_than_one_front_is_refused(start_server):
    refused = start_server("--api-server-count", 2, model=TINY / "qwen3", tp=1, ready=False)
    assert refused.process.wait(timeout=within(20)) == 64 and "--api-server-count 2" in refused.log.read_text()
