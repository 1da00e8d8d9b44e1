"""Hostile and careless clients against a coordinator in front of a mock worker, whose steps take a programmed time."""
import json
import resource
import select
import signal
import socket
import subprocess
import sys
import time

import openai
import pytest
from conftest import ROOT, BIN, TINY, wait_for, within

sys.path.insert(0, str(ROOT / "tests/load"))
from mock_server import MockServer  # noqa: E402

PROMPT = list(range(3, 67))  # four blocks of 16
NAN = float("nan")


@pytest.fixture
def mock(tmp_path):
    """mock(*options, step_us=…): a ready server, ended after the test."""
    servers = []

    def start(*options, **kwargs):
        server = MockServer(BIN.parent, *options, **kwargs)
        server.__enter__()
        servers.append(server)
        return server
    yield start
    for server in servers:
        server.__exit__(None, None, None)


def client_of(server, key="none", scheme="http", **options):
    return openai.OpenAI(base_url=f"{scheme}://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0, timeout=within(60),
                         **options)


def raw_request(path, body, *headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def exchange(server, data):
    """(status, headers and body) of one request on a connection of its own."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=within(60)) as sock:
        sock.sendall(data.replace(b"Host: x", b"Host: x\r\nConnection: close", 1))
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
    return int(answer[9:12]), answer.decode()


def completion(tokens=4, **fields):
    return {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}


ODD = [-1, 0, 2**31, 2**63, 1e308, -1e308, NAN, "1", True, [1], {}]
RIGHT = {"temperature": [0], "min_p": [0], "top_k": [-1, 0], "presence_penalty": [-1, 0], "frequency_penalty": [-1, 0],
         "min_tokens": [0], "seed": [-1, 0, 2**31], "logprobs": [0]}
NUMBERS = ["temperature", "top_p", "min_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty", "n",
           "best_of", "max_tokens", "min_tokens", "seed", "logprobs", "max_queue_wait", "timeout"]


def test_every_number_is_checked_and_no_error_shows_a_path_R15(mock):
    server = mock()
    for field in NUMBERS:
        for value in [*ODD, None]:
            status, text = exchange(server, raw_request("/v1/completions", completion(2) | {field: value}))
            right = value is None or (not isinstance(value, bool) and value in RIGHT.get(field, []))
            assert status == (200 if right else 400), (field, value, text[-300:])
            if status == 400:
                error = json.loads(text.split("\r\n\r\n", 1)[1])["error"]
                assert error["type"] == "invalid_request_error"
                assert value != value or field in (error["param"] or "") + error["message"], (field, value, error)
                for inside in (str(ROOT), "/tmp", "runtime/", ".cpp", "json.exception", "std::"):
                    assert inside not in text, (field, value, error)
    for path, body in [("/v1/completions", b"[" * 65 + b"]" * 65), ("/v1/completions", b"{"), ("/nowhere", b"{}"),
                       ("/v1/chat/completions", b'{"messages": 5}'), ("/detokenize", b'{"tokens": [-1]}'),
                       ("/detokenize", b'{"tokens": [9223372036854775808]}'), ("/tokenize", b'{"prompt": 5}'),
                       ("/../../etc/passwd", b"{}"), ("/v1/completions", b'{"model": "../../etc", "prompt": "a"}')]:
        status, text = exchange(server, raw_request(path, body))
        assert status in (400, 404) and str(ROOT) not in text and "/tmp" not in text, (path, body, text)
    server.wait_idle(10)


def test_open_routes_take_no_body_and_promises_cost_nothing_R24(mock):
    server = mock("--api-key", "sk,1")
    assert exchange(server, b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 33554432\r\n\r\n")[0] == 413
    assert exchange(server, b"GET /live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")[0] == 413
    promises = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    for sock in promises:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk,1\r\nContent-Length: 33554432\r\n\r\n")
    assert exchange(server, raw_request("/v1/completions", completion(), "Authorization: Bearer sk,1"))[0] == 200
    for sock in promises:
        sock.close()
    server.wait_idle(10)


def test_a_page_of_another_host_posts_nothing_without_a_preflight(mock):
    server = mock()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "text/plain; application/json"):
        status, text = exchange(server, raw_request("/v1/completions", completion(), "Origin: http://evil", f"Content-Type: {kind}"))
        assert status == 415 and "Access-Control" not in text, (kind, text)
    assert exchange(server, raw_request("/v1/completions", completion(), "Origin: null"))[0] == 415
    assert exchange(server, b"OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://evil\r\n\r\n")[0] == 405
    for more in (["Origin: http://x", "Content-Type: application/json; charset=utf-8"], ["Content-Type: text/plain"], []):
        assert exchange(server, raw_request("/v1/completions", completion(), *more))[0] == 200, more
    server.wait_idle(10)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "one", "key": "sk-first", "max_concurrency": 2},
                                         {"name": "two", "key": "sk-second"}]}))
    return path


def test_keys_are_needed_on_every_route_and_never_logged_R16(mock, key_file):
    server = mock("--api-key-file", key_file, "--api-key", "sk-third", "--log-level", "trace")
    for path in ("/live", "/ready", "/health"):
        assert server.get(path)[0] == 200
    for path in ("/", "/version", "/metrics", "/cudagraphs", "/v1/models", "/v1/completions", "/nowhere"):
        assert server.get(path)[0] == 401, path
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/live/x"):
        assert exchange(server, raw_request(path, {}))[0] == 401, path
        assert exchange(server, raw_request(path, {}, "Authorization: Bearer sk-firs"))[0] == 401, path
        assert exchange(server, raw_request(path, {}, "Authorization: sk-first"))[0] == 401, path
    for key in ("sk-first", "sk-second", "sk-third"):
        assert exchange(server, raw_request("/v1/completions", completion(), f"Authorization: Bearer {key}"))[0] == 200
    with pytest.raises(openai.AuthenticationError, match="needs a key"):
        client_of(server, "sk-wrong").completions.create(model="qwen3", prompt=PROMPT)
    # Without a key the body is not waited for.
    assert exchange(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n")[0] == 401
    assert "sk-" not in server.log.read_text()


def test_a_key_has_no_more_requests_at_once_than_it_may_R16(mock, key_file):
    server = mock("--api-key-file", key_file, step_us=50_000)
    first, second = client_of(server, "sk-first"), client_of(server, "sk-second")

    def start(client, **fields):
        stream = client.completions.create(model="qwen3", stream=True, extra_body={"ignore_eos": True}, prompt=PROMPT,
                                           max_tokens=400, **fields)
        next(iter(stream))
        return stream
    with pytest.raises(openai.BadRequestError, match="its key may have 2"):
        start(first, n=3)
    streams = [start(first), start(first)]
    with pytest.raises(openai.RateLimitError, match="of this key") as refused:
        start(first)
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert refused.value.body["type"] and refused.value.body["code"] == 429
    others = [start(second) for _ in range(5)]
    streams.pop().close()
    wait_for(lambda: exchange(server, raw_request("/v1/completions", completion(1), "Authorization: Bearer sk-first"))[0]
             == 200, 10, "the place of the request that was hung up")
    for stream in streams + others:
        stream.close()


def test_one_keys_prompt_is_no_prefix_hit_for_another_R16(mock, key_file):
    server = mock("--api-key-file", key_file)

    def cached(key):
        answer = client_of(server, key).completions.create(model="qwen3", prompt=PROMPT, max_tokens=2)
        return answer.usage.prompt_tokens_details.cached_tokens
    assert cached("sk-first") == 0
    assert cached("sk-first") == 48  # all full blocks but the last token's
    assert cached("sk-second") == 0
    assert cached("sk-second") == 48


def test_overload_is_refused_at_once_with_retry_after_R17(mock):
    server = mock("--max-num-seqs", 1, "--max-queue", 2, step_us=50_000)
    socks = []
    for _ in range(3):
        socks.append(socket.create_connection(("127.0.0.1", server.port), timeout=within(60)))
        socks[-1].sendall(raw_request("/v1/completions", completion(400)))
    wait_for(lambda: server.metric("refrain:num_requests_waiting") == 2, 20, "two requests in the queue")
    status, text = exchange(server, raw_request("/v1/completions", completion()))
    assert status == 429 and "\r\nRetry-After: " in text and "--max-queue" in text
    # Refused from the head alone.
    status, _ = exchange(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n")
    assert status == 429
    assert server.metric("refrain:requests_refused_total", 'reason="queue"') == 2
    assert server.get("/health")[0] == 200 and server.get("/v1/models")[0] == 200
    for sock in socks:
        sock.close()
    server.wait_idle(20)
    assert exchange(server, raw_request("/v1/completions", completion(1)))[0] == 200


def test_two_thousand_requests_at_once_are_accepted_R17(mock):
    server = mock("--max-num-batched-tokens", 8192)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    data = raw_request("/v1/completions", completion(2), "Connection: close")
    socks = []
    for _ in range(2000):
        socks.append(socket.create_connection(("127.0.0.1", server.port), timeout=within(60)))
        socks[-1].sendall(data[:-1])
    for sock in socks:  # all their bodies end now
        sock.sendall(data[-1:])
    statuses = {}
    for sock in socks:
        status = int(sock.recv(65536)[9:12])
        statuses[status] = statuses.get(status, 0) + 1
        sock.close()
    assert statuses == {200: 2000}


def test_a_short_request_waits_for_no_whole_reading_of_large_ones_R25(mock):
    """Twice as many large requests as there are text threads, all of one key."""
    server = mock(max_positions=1 << 17, blocks=1 << 14)
    threads = sum(name.startswith("text-") for name, _ in server.thread_seconds())
    text = "lorem ipsum dolor " * 2000
    large = raw_request("/v1/completions", {"prompt": [text] * 255 + ["a" * 1_000_000], "max_tokens": 1})
    socks = [socket.create_connection(("127.0.0.1", server.port), timeout=within(60)) for _ in range(2 * threads)]
    for sock in socks:
        sock.sendall(large)
    for _ in range(3):
        assert exchange(server, raw_request("/v1/completions", completion(1)))[0] == 200
    readable, _, _ = select.select(socks, [], [], 0)
    assert not readable, "the short ones waited for a whole large one"
    for sock in socks:  # the last prompt does not fit
        assert int(sock.recv(65536)[9:12]) == 400
        sock.close()


def test_what_cannot_begin_in_time_ends_with_503_R17(mock):
    server = mock("--max-num-seqs", 1, step_us=50_000)
    with socket.create_connection(("127.0.0.1", server.port)) as running:
        running.sendall(raw_request("/v1/completions", completion(400)))
        wait_for(lambda: server.metric("refrain:num_requests_running") == 1, 20, "a request runs")
        status, text = exchange(server, raw_request("/v1/completions", completion(max_queue_wait=0.3)))
    assert status == 503 and "\r\nRetry-After: " in text and "max_queue_wait" in text
    assert server.metric("refrain:requests_late_total") == 1


def test_a_request_that_takes_longer_than_its_timeout_ends_with_504(mock):
    server = mock(step_us=50_000)
    status, text = exchange(server, raw_request("/v1/completions", completion(400, timeout=0.5)))
    error = json.loads(text.split("\r\n\r\n", 1)[1])["error"]
    assert status == 504 and error["code"] == 504 and error["type"] == "server_error", error
    status, text = exchange(server, raw_request("/v1/completions", completion(400, timeout=5, stream=True)))
    assert status == 200 and '"text"' in text and '"code":504' in text and "[DONE]" not in text.split("error")[0]
    assert exchange(server, raw_request("/v1/completions", completion(2, timeout=60)))[0] == 200
    server.wait_idle(20)


class Phase:
    """A request on a raw socket, brought to a phase of its life."""

    def __init__(self, server):
        self.server = server
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=within(60))

    def header(self):
        self.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-")

    def body(self):
        self.sock.sendall(raw_request("/v1/completions", completion(400))[:-10])

    def queued(self):
        other = Phase(self.server)
        other.decode()
        self.sock.sendall(raw_request("/v1/completions", completion(400)))
        wait_for(lambda: self.server.metric("refrain:num_requests_waiting") == 1, 20, "it waits")
        self.other = other

    def prefill(self):
        self.sock.sendall(raw_request("/v1/completions", completion(4, prompt=list(range(1, 480)))))
        wait_for(lambda: self.server.metric("refrain:steps_total") > 2, 20, "chunks of its prompt have run")
        assert self.server.metric("refrain:generation_tokens_total") == 0

    def decode(self):
        self.sock.sendall(raw_request("/v1/completions", completion(400, stream=True)))
        assert b"200 OK" in self.sock.recv(4096)

    def leave(self):
        self.sock.close()
        if hasattr(self, "other"):
            wait_for(lambda: self.server.metric("refrain:num_requests_waiting") == 0, 5, "the queue is empty")
            assert self.server.metric("refrain:num_requests_running") == 1
            self.other.leave()


@pytest.mark.parametrize("phase", ["header", "body", "queued", "prefill", "decode"])
def test_a_client_that_leaves_at_any_phase_frees_its_blocks_R18(mock, phase):
    # A request left alone would take 12 s and more, that of the prefill too.
    server = mock("--max-num-seqs", 1, "--max-num-batched-tokens", 4, step_us=100_000)
    client = Phase(server)
    getattr(client, phase)()
    client.leave()
    server.wait_idle(8)
    descriptors = server.descriptors()
    assert exchange(server, raw_request("/v1/completions", completion(1)))[0] == 200
    assert server.descriptors() <= descriptors + 1


def test_a_client_that_leaves_while_the_server_drains_lets_it_end_R18(mock):
    server = mock("--drain-timeout", 60, step_us=50_000)
    client = Phase(server)
    client.decode()
    server.coordinator.send_signal(signal.SIGTERM)
    wait_for(lambda: server.get("/ready")[0] == 503, 10, "draining")
    assert exchange(server, raw_request("/v1/completions", completion()))[0] == 503
    client.leave()
    assert server.coordinator.wait(timeout=within(15)) == 0


def test_a_slow_reader_is_cut_off_and_slows_nobody_R18(mock):
    server = mock("--max-num-seqs", 300, "--max-num-batched-tokens", 16384, "--max-model-len", 512, step_us=20_000,
                  blocks=16384)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", server.port))
    slow.sendall(raw_request("/v1/completions", completion(440, prompt=[PROMPT] * 256, stream=True)))
    cut_off = lambda: "reads too slowly" in server.log.read_text()
    wait_for(lambda: server.metric("refrain:num_requests_running") == 256 or cut_off(), 30, "its requests run")
    stream = client_of(server).completions.create(model="qwen3", prompt=PROMPT, stream=True, max_tokens=100,
                                                  extra_body={"ignore_eos": True})
    assert [c.choices[0].finish_reason for c in stream][-1] == "length"
    wait_for(cut_off, 60, "the slow one is cut off")
    server.wait_idle(20)
    slow.close()
