"""Comments in event streams that wait: in the queue, in a long prompt, between tokens, while workers come back."""
import json
import select
import socket

import openai
import pytest
from conftest import wait_for, within
from test_http_limits import client_of, completion, exchange, mock, raw_request  # noqa: F401: a fixture

COMMENT = b": keep-alive\n\n"
OFTEN = ["--sse-keep-alive-interval", 0.1]


class Watcher:
    """A stream as its bytes come."""

    def __init__(self, server, **fields):
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=within(30))
        self.sock.sendall(raw_request("/v1/completions", completion(stream=True, **fields), "Connection: close"))
        self.bytes = b""

    def until(self, condition):
        while not condition(self.bytes):
            chunk = self.sock.recv(65536)
            assert chunk, f"it ended early: {self.bytes[-300:]}"
            self.bytes += chunk
        return self.bytes

    def so_far(self):
        """Reads what has come."""
        while select.select([self.sock], [], [], 0)[0]:
            count = len(self.bytes)
            self.until(lambda got, count=count: len(got) > count)

    def comments(self, more=2):
        """Waits for so many more comments; what else has come since."""
        before, count = len(self.bytes), self.bytes.count(COMMENT)
        return self.until(lambda got: got.count(COMMENT) >= count + more)[before:]

    def end(self):
        return self.until(lambda got: b"data: [DONE]" in got)


def test_a_stream_in_the_queue_gets_comments_and_then_its_answer_R18(mock):  # noqa: F811
    server = mock("--max-num-seqs", 1, *OFTEN, step_us=50_000)
    first = Watcher(server, tokens=120)
    wait_for(lambda: server.metric("refrain:num_requests_running") == 1, 20, "the first runs")
    second = Watcher(server, tokens=2)
    head = second.comments()
    assert head.startswith(b"HTTP/1.1 200 OK") and b"text/event-stream" in head and b"data:" not in head
    assert server.metric("refrain:num_requests_waiting") == 1
    assert b'"finish_reason":"length"' in first.end()
    assert b'"finish_reason":"length"' in second.end()


def test_a_stream_in_a_long_prompt_and_between_tokens_gets_comments_R18(mock):  # noqa: F811
    server = mock("--max-num-seqs", 1, "--max-num-batched-tokens", 4, *OFTEN, step_us=400_000)
    prompt, *tokens, last = Watcher(server, tokens=3, prompt=list(range(3, 23))).end().split(b"data: {")
    assert prompt.count(COMMENT) >= 2 and COMMENT in b"".join(tokens)
    assert b'"finish_reason":"length"' in last


def test_a_stream_whose_workers_are_lost_gets_comments_until_they_are_back_R18(mock):  # noqa: F811
    server = mock(*OFTEN, step_us=50_000)
    stream = Watcher(server, tokens=60)
    stream.until(lambda got: got.count(b"data:") >= 3)
    server.worker.kill()
    server.worker.wait()
    wait_for(lambda: server.get("/ready")[0] == 503, 20, "the loss is seen")
    stream.so_far()
    # The last tokens may be on their way yet, behind a comment from between two steps.
    assert b"data:" not in stream.comments(3).split(COMMENT, 2)[2], "nobody computes"
    late = Watcher(server, tokens=2)  # admitted while nobody serves
    late.comments()
    server.processes.remove(server.worker)
    server.worker = server.start_worker()
    assert b'"finish_reason":"length"' in stream.end() and b'"finish_reason":"length"' in late.end()
    server.coordinator.terminate()  # else the fixture would miss that a loss was planted
    server.coordinator.wait(timeout=within(20))


def test_an_error_before_the_first_comment_keeps_its_status_and_is_an_event_after_it_R18(mock):  # noqa: F811
    server = mock("--max-num-seqs", 1, "--sse-keep-alive-interval", 3, step_us=50_000)
    first = Watcher(server, tokens=400)
    first.until(lambda got: got.count(b"data:") >= 10)   # the rate is known, and no work waits: nobody is refused by a prediction
    status, text = exchange(server, raw_request("/v1/completions", completion(stream=True, max_queue_wait=0.2)))
    assert status == 503 and "\r\nRetry-After: " in text
    status, text = exchange(server, raw_request("/v1/completions", completion(stream=True, prompt=[])))
    assert status == 400
    status, text = exchange(server, raw_request("/v1/completions", completion(stream=True, max_queue_wait=6.5)))
    assert status == 200 and COMMENT.decode() in text
    [event, done] = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert json.loads(event)["error"]["code"] == 503 and done == "[DONE]"
    first.sock.close()


def test_the_openai_client_passes_comments_over_R18(mock):  # noqa: F811
    server = mock("--max-num-seqs", 1, "--max-num-batched-tokens", 4, *OFTEN, step_us=300_000)
    stream = client_of(server).completions.create(model="qwen3", prompt=list(range(3, 15)), stream=True, max_tokens=2,
                                                  extra_body={"ignore_eos": True})
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"


@pytest.mark.parametrize("options, stream", [(["--sse-keep-alive-interval", 0], True), (OFTEN, False)])
def test_without_an_interval_or_a_stream_nothing_comes_before_the_answer_R18(mock, options, stream):  # noqa: F811
    server = mock("--max-num-seqs", 1, "--max-num-batched-tokens", 4, *options, step_us=200_000)
    status, text = exchange(server, raw_request("/v1/completions", completion(2, prompt=list(range(3, 23)), stream=stream)))
    assert status == 200 and COMMENT.decode() not in text
    with pytest.raises(openai.BadRequestError):
        client_of(server).completions.create(model="qwen3", prompt="a", stream=True, temperature=9)
