"""Start, failure and end of real process groups."""
import json
import os
import signal
import socket
import subprocess
import threading
import time

import openai
import pytest
from conftest import BIN, SMOLLM2, TINY, Server, command_line, descendants, held, kill_busy, start_by_hand, wait_for, within

SMALL = ["--max-num-seqs", 8, "--max-model-len", 512]


def test_coordinator_and_worker_started_by_hand(tmp_path):
    address = f"ipc://{tmp_path}/run/engine"
    server = Server(tmp_path / "unused.log")
    coordinator = start_by_hand("coordinator", "--model", SMOLLM2, "--tensor-parallel-size", 1, "--listen", address,
                                "--port", server.port, *SMALL, log=tmp_path / "coordinator.log")
    worker = start_by_hand("worker", "--model", SMOLLM2, "--rank", 0, "--tensor-parallel-size", 1, "--coordinator",
                           address, log=tmp_path / "worker.log")
    try:
        server.process = coordinator
        server.wait_ready()
        answer = server.client().completions.create(model=SMOLLM2.name, prompt="The capital of France is",
                                                    temperature=0, max_tokens=1)
        assert answer.choices[0].text == " Paris"
    finally:
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(timeout=within(20)) == 0
        worker.send_signal(signal.SIGTERM)
        worker_code = worker.wait(timeout=within(20))
    assert worker_code == 0
    assert not os.path.exists(f"{tmp_path}/run/engine")


STORIES = [
    {"prompt": "Once upon a time", "temperature": 0},
    {"prompt": "The capital of France is", "temperature": 0, "logprobs": 2},
    {"prompt": "def fibonacci(n):" * 20, "temperature": 0, "frequency_penalty": 0.4},
    {"prompt": "Once upon a time", "temperature": 0.8, "seed": 7},
    {"prompt": "A list of animals:", "temperature": 1.0, "top_p": 0.9, "seed": 11, "presence_penalty": 0.5},
    {"prompt": "Dear Sir or Madam,", "temperature": 0.9, "seed": 13, "logprobs": 0,
     "extra_body": {"repetition_penalty": 1.1, "top_k": 40}},
]


class Stream(threading.Thread):
    """Reads one streamed completion; `chunks` grows while it runs."""

    def __init__(self, server, fields, tokens):
        super().__init__(daemon=True)
        self.server, self.fields, self.tokens = server, fields, tokens
        self.chunks, self.error = [], None
        self.start()

    def run(self):
        body = {"ignore_eos": True, **self.fields.get("extra_body", {})}
        try:
            for chunk in self.server.client().completions.create(
                    model=SMOLLM2.name, stream=True, max_tokens=self.tokens, stream_options={"include_usage": True},
                    **{**self.fields, "extra_body": body}):
                self.chunks.append(chunk)
        except openai.APIError as error:
            self.error = error

    def answer(self):
        """All that a client can see of it, however it was cut into chunks."""
        self.join(timeout=within(120))
        assert not self.is_alive() and self.error is None, self.error
        choices = [choice for chunk in self.chunks for choice in chunk.choices]
        logprobs = [choice.logprobs for choice in choices if choice.logprobs]
        return {"text": "".join(choice.text for choice in choices),
                "finish": [choice.finish_reason for choice in choices if choice.finish_reason],
                "tokens": [token for part in logprobs for token in part.tokens],
                "logprobs": [value for part in logprobs for value in part.token_logprobs],
                "offsets": [offset for part in logprobs for offset in part.text_offset],
                "completion_tokens": self.chunks[-1].usage.completion_tokens}


@pytest.mark.parametrize("rank", [0, 1])
def test_streams_of_a_killed_worker_go_on_as_without_a_fault_R8(start_server, rank):
    server = start_server(*SMALL)
    expected = [stream.answer() for stream in [Stream(server, story, 100) for story in STORIES]]
    assert [answer["completion_tokens"] for answer in expected] == [100] * len(STORIES)
    before = server.workers()
    assert len(before) == 2
    killed = next(pid for pid in before if f"--rank\0{rank}\0" in "\0".join(command_line(pid)))
    streams, running = [], []

    def in_the_middle():
        if not any(stream.is_alive() for stream in streams):  # they may end between two looks
            streams[:] = [Stream(server, story, 100) for story in STORIES]
        running.append(metric(server.get("/metrics")[1], "refrain:num_requests_running"))
        return running[-1] >= 1 and all(len(stream.chunks) >= 10 for stream in streams)
    with held(server.process.pid):  # so that nothing is started again meanwhile
        kill_busy(killed, in_the_middle, 60, "ten tokens of every stream")
        wait_for(lambda: server.get("/ready")[0] == 503, 20, "not ready while the group is gone")
        assert server.get("/live")[0] == 200
        late = Stream(server, STORIES[0], 100)  # admitted while nobody serves
        wait_for(lambda: json.loads(server.get("/health")[1])["requests_waiting"] > running[-1], 20, "it has come")
    assert [stream.answer() for stream in streams] == expected
    assert late.answer() == expected[0]
    after = server.workers()
    assert len(after) == 2 and not set(after) & set(before)
    metrics = server.get("/metrics")[1]
    assert metric(metrics, "refrain:requests_resumed_total") == running[-1]
    assert metric(metrics, "refrain:request_failure_total") == 0
    assert metric(metrics, "refrain:worker_group_restarts_total") == 1
    assert server.stop() == 0


def metric(text, name):
    """Sum over all labels."""
    values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((name + "{", name + " "))]
    assert values, f"{name} is not among the metrics"
    return sum(values)


def test_group_that_dies_too_often_ends_requests_with_503(start_server):
    server = start_server(*SMALL)
    streams = [Stream(server, STORIES[0], 400)]
    wait_for(lambda: len(streams[0].chunks) >= 5, 60, "five tokens")
    while server.process.poll() is None:
        for pid in server.workers():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # its group has been killed already
    assert server.process.wait(timeout=within(20)) == 75
    streams[0].join(timeout=within(10))
    assert not streams[0].is_alive()
    # That its workers are gone, or, if the server's end is first, that it was stopped.
    said = str(streams[0].error)
    assert isinstance(streams[0].error, openai.APIError) and ("worker" in said or "stopped" in said), said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_everything_cleanly(start_server, number):
    server = start_server(*SMALL)
    assert server.stop(number) == 0


def test_sigterm_lets_running_requests_finish(start_server):
    server = start_server("--drain-timeout", within(30), *SMALL)
    stream = server.client().completions.create(model=SMOLLM2.name, prompt="Once upon a time", stream=True,
                                                temperature=0, max_tokens=60, extra_body={"ignore_eos": True})
    chunks = iter(stream)
    first = next(chunks)
    server.process.send_signal(signal.SIGTERM)
    rest = list(chunks)
    assert first.choices and rest[-1].choices[0].finish_reason == "length"
    assert server.process.wait(timeout=within(30)) == 0


def test_graphs_that_ran_are_shown_at_an_interval_and_at_the_end_CG32(start_server):
    server = start_server("--log-stats-interval", "0.2", *SMALL)
    for text in ("Once", "Twice upon"):
        before = server.log.read_text().count("graphs that ran")
        assert server.post("/v1/completions", {"prompt": text, "max_tokens": 3})[0] == 200
        wait_for(lambda: server.log.read_text().count("graphs that ran") > before, 10, "the table")
    assert server.stop() == 0
    quiet = start_server("--log-stats-interval", "0", *SMALL)
    assert quiet.post("/v1/completions", {"prompt": "Once", "max_tokens": 3})[0] == 200
    assert "graphs that ran" not in quiet.log.read_text()
    assert quiet.stop() == 0
    table = quiet.log.read_text().split("graphs that ran:\n")[1].splitlines()
    assert table[0].split() == ["tokens", "padded", "paddings", "mode", "count"]
    assert ["1", "1", "0", "FULL", "2"] == table[1].split()  # most frequent first
    assert any(line.startswith("captured and never replayed:") for line in table)


@pytest.mark.parametrize("line", ["listening", "joined", "weights", None])
def test_a_signal_while_it_starts_ends_it_cleanly(start_server, line):
    """At once (None), and after each of the start's landmarks."""
    server = start_server(*SMALL, ready=False)
    if line:
        wait_for(lambda: line in server.log.read_text(), 30, line)
    # Before main has run there is nobody to handle a signal, and nothing to leave behind either.
    allowed = [0] if line else [0, -signal.SIGTERM]
    assert server.stop() in allowed, server.log.read_text()


@pytest.mark.parametrize("who", ["worker", "coordinator"])
def test_a_process_killed_while_it_starts_is_started_again(start_server, who):
    server = start_server(*SMALL, ready=False)
    wait_for(lambda: "joined" in server.log.read_text(), 30, "a worker has joined")
    os.kill(server.workers()[0] if who == "worker" else server.coordinator(), signal.SIGKILL)
    server.wait_ready()
    assert server.stop() == 0


def test_the_second_interrupt_ends_at_once(start_server):
    server = start_server("--max-model-len", 4096)
    stream = server.client().completions.create(model=SMOLLM2.name, prompt="Once upon a time", stream=True,
                                                temperature=0, max_tokens=3000, extra_body={"ignore_eos": True})
    chunks = iter(stream)
    next(chunks)
    server.process.send_signal(signal.SIGINT)
    wait_for(lambda: "finishing" in server.log.read_text(), 10, "draining")
    server.process.send_signal(signal.SIGINT)
    with pytest.raises(openai.APIError):
        for _ in chunks:
            pass
    assert server.process.wait(timeout=within(10)) == 0


def test_a_request_that_comes_while_workers_start_waits_for_them(start_server):
    server = start_server(*SMALL, ready=False)
    wait_for(lambda: "listening" in server.log.read_text(), 30, "listening")
    answer = server.client().completions.create(model=SMOLLM2.name, prompt="The capital of France is", temperature=0,
                                                max_tokens=1)
    assert answer.choices[0].text == " Paris"


def test_workers_started_by_hand_end_with_their_coordinator(tmp_path):
    address = f"ipc://{tmp_path}/run/engine"
    coordinator = start_by_hand("coordinator", "--model", TINY / "qwen3", "--listen", address, "--port", 0,
                                log=tmp_path / "coordinator.log")
    worker = start_by_hand("worker", "--model", TINY / "qwen3", "--rank", 0, "--tensor-parallel-size", 1,
                           "--coordinator", address, log=tmp_path / "worker.log")
    wait_for(lambda: "ready:" in (tmp_path / "coordinator.log").read_text(), 30, "ready")
    coordinator.send_signal(signal.SIGTERM)
    assert coordinator.wait(timeout=within(20)) == 0
    assert worker.wait(timeout=within(20)) == 0


def test_signals_that_keep_coming_kill_nobody_who_clears_up(tmp_path):
    address = f"ipc://{tmp_path}/run/engine"
    options = ["--model", TINY / "qwen3"]
    coordinator = start_by_hand("coordinator", *options, "--listen", address, "--port", 0, log=tmp_path / "coordinator.log")
    worker = start_by_hand("worker", *options, "--rank", 0, "--tensor-parallel-size", 1, "--coordinator", address,
                           log=tmp_path / "worker.log")
    wait_for(lambda: "ready:" in (tmp_path / "coordinator.log").read_text(), 30, "ready")
    programs, deadline = [coordinator, worker], time.monotonic() + within(20)
    while any(program.poll() is None for program in programs) and time.monotonic() < deadline:
        for program in programs:
            program.send_signal(signal.SIGTERM)  # of one that has ended: nothing
        time.sleep(0.0005)
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("coordinator", "worker")]
    assert [program.poll() for program in programs] == [0, 0], logs


def run(*argv, timeout=within(60)):
    return subprocess.run([str(BIN / argv[0]), *map(str, argv[1:])], capture_output=True, text=True, timeout=within(timeout))


@pytest.mark.parametrize("argv, words", [
    (["refrain", "serve", SMOLLM2, "--max-num-seq", 4], ["--max-num-seq", "--max-num-seqs"]),
    (["refrain", "serve", "/nowhere"], ["/nowhere", "config.json"]),
    (["refrain", "serve"], ["--model"]),
    (["refrain", "serve", SMOLLM2, "--tensor-parallel-size", 10], ["tensor-parallel-size", "9 attention heads"]),
    (["refrain", "serve", SMOLLM2, "--max-model-len", 999999], ["--max-model-len", "8192"]),
    (["refrain", "serve", SMOLLM2, "--max-model-len", 1], ["--max-model-len 1"]),
    (["refrain", "serve", SMOLLM2, "--heartbeat-timeout", 0.1], ["--heartbeat-timeout"]),
    (["refrain", "serve", SMOLLM2, "--port", 70000], ["--port"]),
    (["refrain", "serve", SMOLLM2, "--max-num-seqs", "many"], ["--max-num-seqs"]),
    (["refrain", "serve", SMOLLM2, "--cudagraph-mode", "SOME"], ["SOME", "FULL_AND_PIECEWISE"]),
    (["refrain", "serve", SMOLLM2, "--compilation-config", "{\"cudagraph_mod\": 1}"], ["cudagraph_mod"]),
    (["refrain", "serve", SMOLLM2, "--cudagraph-capture-sizes", "0,4"], ["cudagraph_capture_sizes"]),
    (["refrain", "serve", SMOLLM2, "--attention-backend", "none"], ["--attention-backend", "host_varlen", "cuda_decode"]),
    (["refrain", "serve", SMOLLM2, "--device", "host", "--attention-backend", "cuda"], ["--device host", "host_varlen"]),
    (["refrain", "serve", SMOLLM2, "--splitting-ops", "attention,norm"], ["--splitting-ops", "norm", "add_rms_norm"]),
    (["coordinator", "--model", SMOLLM2, "--listen", "ipc:///tmp/x", "--splitting-ops", "norm"], ["add_rms_norm"]),
    (["refrain", "dance"], ["dance"]),
    (["coordinator", "--model", SMOLLM2, "--listen", "carrier://pigeon"], ["carrier://pigeon"]),
    (["worker", "--rank", 0], ["--model"]),
    (["worker", "--model", SMOLLM2, "--rank", 2, "--tensor-parallel-size", 2, "--coordinator", "ipc:///tmp/x"], ["rank"]),
])
def test_bad_options_exit_64_and_name_the_culprit(argv, words):
    done = run(*argv)
    assert done.returncode == 64, (done.returncode, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize("options", [["--cudagraph-mode", "SOME"], ["--cudagraph-capture-sizes", "0,4"],
                                     ["--compilation-config", "{\"cudagraph_mode\": \"FULLY\"}"],
                                     ["--compilation-config", "{\"splitting_ops\": [\"norm\"]}"],
                                     ["--splitting-ops", "norm"], ["--attention-backend", "none"]])
def test_bad_graph_options_are_found_before_anything_is_spawned_CG19(options):
    done = run("refrain", "serve", SMOLLM2, *options)
    assert done.returncode == 64 and "worker 0" not in done.stderr and "listening" not in done.stderr, done.stderr


def test_port_in_use_exits_64_and_names_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("refrain", "serve", SMOLLM2, "--port", port, *SMALL)
    assert done.returncode == 64 and str(port) in done.stderr and "in use" in done.stderr


@pytest.mark.parametrize("breakage, words", [
    (lambda m: (m / "model.safetensors").unlink(), ["safetensors"]),
    (lambda m: (m / "model.safetensors").write_bytes((m / "model.safetensors").read_bytes()[:5000]), ["model.safetensors"]),
    (lambda m: (m / "config.json").write_text("{"), ["config.json"]),
    (lambda m: (m / "tokenizer.json").write_text("{}"), ["tokenizer.json"]),
])
def test_broken_model_files_exit_64_and_name_the_file(copy_model, breakage, words):
    model = copy_model(TINY / "qwen3")
    breakage(model)
    done = run("refrain", "serve", model, "--port", 0)
    assert done.returncode == 64, (done.returncode, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr


def test_a_refused_model_file_is_no_incident_R12(copy_model, tmp_path):
    model = copy_model(TINY / "qwen3")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    done = run("refrain", "serve", model, "--port", 0, "--tensor-parallel-size", 2, "--incident-dir", tmp_path / "incidents",
               *SMALL)
    assert done.returncode == 64, done.stderr
    assert "incident" not in done.stderr and not (tmp_path / "incidents").exists(), done.stderr


def test_a_slow_start_exits_75(tmp_path):
    """Workers by hand that never come: nothing is wrong with the configuration."""
    done = run("coordinator", "--model", TINY / "qwen3", "--listen", f"ipc://{tmp_path}/slow/engine", "--port", 0,
               "--start-timeout", 1, *SMALL)
    assert done.returncode == 75 and "within 1 s" in done.stderr, (done.returncode, done.stderr)


def test_second_worker_of_a_rank_is_refused(tmp_path):
    address = f"ipc://{tmp_path}/run/engine"
    coordinator = start_by_hand("coordinator", "--model", TINY / "qwen3", "--listen", address, "--port", 0,
                                log=tmp_path / "coordinator.log")
    first = start_by_hand("worker", "--model", TINY / "qwen3", "--rank", 0, "--tensor-parallel-size", 1,
                          "--coordinator", address, log=tmp_path / "first.log")
    try:
        wait_for(lambda: "ready" in (tmp_path / "coordinator.log").read_text(), 30, "ready")
        second = run("worker", "--model", TINY / "qwen3", "--rank", 0, "--tensor-parallel-size", 1, "--coordinator",
                     address)
        assert second.returncode == 64 and "rank 0" in second.stderr, second.stderr
        other_model = run("worker", "--model", TINY / "qwen2", "--rank", 0, "--tensor-parallel-size", 1,
                          "--coordinator", address)
        assert other_model.returncode == 64 and "model" in other_model.stderr, other_model.stderr
        assert first.poll() is None
    finally:
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(timeout=within(20)) == 0
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=within(20)) == 0


def test_api_key_is_needed_but_for_probes(start_server):
    server = start_server("--api-key", "secret,1", "--api-key", "secret-2", model=TINY / "qwen3", tp=1)
    assert server.get("/live")[0] == 200 and server.get("/ready")[0] == 200 and server.get("/health")[0] == 200
    for path in ("/v1/models", "/metrics", "/cudagraphs", "/version"):
        status, text = server.get(path)
        assert status == 401 and json.loads(text)["error"]["type"] == "authentication_error"
        assert server.get(path, {"Authorization": "Bearer secret"})[0] == 401
        assert server.get(path, {"Authorization": "Bearer secret-2"})[0] == 200
    assert "secret" not in server.log.read_text()


def test_requests_over_the_limits_are_refused_before_they_are_read(start_server):
    server = start_server(model=TINY / "qwen3", tp=1)

    def raw(data):
        with socket.create_connection(("127.0.0.1", server.port), timeout=within(10)) as sock:
            sock.sendall(data)
            return sock.recv(65536).decode()
    assert " 413 " in raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n").split("\r\n")[0]
    assert " 431 " in raw(b"GET /live HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"b" * 40000 + b"\r\n\r\n").split("\r\n")[0]
    assert " 431 " in raw(b"GET /live HTTP/1.1\r\nHost: x\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(120)) + b"\r\n").split("\r\n")[0]
    assert " 400 " in raw(b"\x00\x01\x02 nonsense\r\n\r\n").split("\r\n")[0]
    assert server.get("/live")[0] == 200


def test_concurrent_clients_survive_another_ones_nonsense(start_server):
    server = start_server(*SMALL)
    texts, failures = [], []

    def ask():
        try:
            answer = server.client().completions.create(model=SMOLLM2.name, prompt="The capital of France is",
                                                        temperature=0, max_tokens=40)
            texts.append(answer.choices[0].text)
        except openai.APIError as error:
            failures.append(error)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert server.post("/v1/completions", b"{broken")[0] == 400
    for thread in threads:
        thread.join()
    assert not failures and len(texts) == 4 and len(set(texts)) == 1
