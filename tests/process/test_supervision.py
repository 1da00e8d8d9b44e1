"""Lost processes: what is started again, what is adopted, what is recorded, what is left (R-8, R-10 to R-12)."""
import http.client
import json
import os
import signal

import openai
import pytest
from conftest import BIN, SMOLLM2, SOCKETS, TINY, Server, command_line, descendants, held, start_by_hand, wait_for, within

SMALL = ["--max-num-seqs", 8, "--max-model-len", 512]
PARIS = {"model": SMOLLM2.name, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8,
         "repetition_penalty": 1.3, "logit_bias": {"42": -5}}


def test_killed_coordinator_is_replaced_and_adopts_the_workers_R10(start_server):
    server = start_server(*SMALL)
    before, workers = server.coordinator(), server.workers()
    expected = json.loads(server.post("/v1/completions", PARIS)[1])["choices"]
    loads = server.log.read_text().count("weights: ")
    for kills in (1, 2):
        # Slots are in use and steps on their way when it dies.
        streams = [server.client().completions.create(model=SMOLLM2.name, prompt=f"{n} little", stream=True,
                                                      temperature=1, max_tokens=400, extra_body={"ignore_eos": True})
                   for n in range(4)]
        for stream in streams:
            next(iter(stream))
        after = server.kill(before)
        for stream in streams:
            stream.close()  # else they go on, and the next request waits for a slot
        server.wait_ready(15)
        assert after == server.coordinator() and server.workers() == workers
        status, answer = server.post("/v1/completions", PARIS)
        assert status == 200 and json.loads(answer)["choices"] == expected, answer
        log = server.log.read_text()
        assert log.count("weights: ") == loads and log.count("ready again: nothing was loaded or captured") == 2 * kills
        assert log.count("adopted with weights and graphs") == kills
        before = after
    assert server.stop() == 0


def test_workers_started_by_hand_are_adopted_and_leave_75_when_nobody_comes_R10(tmp_path):
    address = f"ipc://{tmp_path}/run/engine"
    model = TINY / "qwen3"
    coordinator_log, worker_log = tmp_path / "coordinator.log", tmp_path / "worker.log"

    def coordinator(*options):
        return start_by_hand("coordinator", "--model", model, "--listen", address, "--port", 0, *options,
                             log=coordinator_log)
    first = coordinator()
    worker = start_by_hand("worker", "--model", model, "--rank", 0, "--tensor-parallel-size", 1, "--coordinator", address,
                           "--orphan-timeout", 4, log=worker_log)
    wait_for(lambda: "ready:" in coordinator_log.read_text(), 30, "ready")
    first.kill()
    first.wait(timeout=within(10))
    second = coordinator()
    wait_for(lambda: "adopted with weights and graphs" in coordinator_log.read_text(), 30, "adopted")
    second.kill()
    second.wait(timeout=within(10))
    # Another configuration than that of the graphs: the worker starts anew, in the same process.
    third = coordinator("--max-num-seqs", 3)
    wait_for(lambda: "ready:" in coordinator_log.read_text(), 30, "ready with another configuration")
    assert "adopted" not in coordinator_log.read_text()
    assert worker_log.read_text().count("weights: ") == 2
    third.kill()
    third.wait(timeout=within(10))
    assert worker.wait(timeout=within(30)) == 75
    assert "no coordinator came back" in worker_log.read_text()
    for left in (tmp_path / "run").iterdir():
        assert left.name == "engine"  # the socket of the killed coordinator; the next one replaces it


def incidents(directory):
    return [json.loads(path.read_text()) for path in sorted(directory.glob("incident-*.json"))]


def incident_count(server):
    lines = dict(line.rsplit(" ", 1) for line in server.get("/metrics")[1].splitlines() if not line.startswith("#"))
    return int(lines["refrain:incidents_total"]), int(lines["refrain:incidents_unwritten_total"])


def request_count(server):
    text = server.get("/metrics")[1]
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.startswith(("refrain:num_requests_running", "refrain:num_requests_waiting")))


def open_stream(server, max_tokens, read=1):
    """The rest of an answer's chunks, of which the first `read` have come."""
    chunks = iter(server.client().completions.create(model=SMOLLM2.name, prompt="Once upon a time", stream=True,
                                                     temperature=0, max_tokens=max_tokens,
                                                     extra_body={"ignore_eos": True}))
    for _ in range(read):
        next(chunks)
    return chunks


def worker_of(server, rank):
    return next(pid for pid in server.workers() if command_line(pid)[command_line(pid).index("--rank") + 1] == str(rank))


def test_a_killed_rank_leaves_an_incident_record_R12(start_server, tmp_path):
    server = start_server("--incident-dir", tmp_path / "incidents", *SMALL)
    chunks = open_stream(server, max_tokens=400, read=10)
    victim = worker_of(server, 1)
    os.kill(victim, signal.SIGKILL)
    [record] = wait_for(lambda: incidents(tmp_path / "incidents"), 10, "an incident record")
    assert record["process"] == f"rank 1 (pid {victim})" and record["ended"] == "signal 9 (Killed)"
    # The end of the process waits for its last words; a message may find its socket closed, or the other rank
    # miss its peer, before that.
    assert record["detector"] in ("process", "worker", "connection") and record["num_requests_in_flight"] == 1
    assert len(record["requests_in_flight"]) == 1
    # How far the stream had come bounds what the ring must show.
    assert record["step"] >= 10 and record["lagging_rank"] in (0, 1)
    for rank in record["ranks"]:
        last = rank["records"][-1]
        assert last["step"] == rank["last_step_taken"] >= 10 and last["tokens"] >= 1 and last["ms_ago"] < 10000
        done = [entry for entry in rank["records"] if entry["phase"] == "done"]
        assert done[-1]["mode"] == "FULL" and done[-1]["key"]["tokens"] >= 1
    server.wait_ready()
    assert incident_count(server) == (1, 0)
    assert str(tmp_path / "incidents") in server.log.read_text()
    # The coordinator's own end is one too; the count outlives it.
    coordinator = server.coordinator()
    server.kill(coordinator)
    record = wait_for(lambda: incidents(tmp_path / "incidents")[1:], 10, "a second record")[0]
    assert record["process"] == f"coordinator (pid {coordinator})" and record["requests_in_flight"] is None
    assert isinstance(record["step"], int)
    server.wait_ready()
    assert incident_count(server) == (2, 0)
    assert server.stop() == 0


@pytest.mark.parametrize("kind", ["spin", "skip"])
def test_a_hang_names_the_rank_that_holds_it_up_I8(start_server, tmp_path, kind):
    """The other rank waits in a collective, and is as late with its answer."""
    server = start_server("--incident-dir", tmp_path / "incidents", "--fault", f"kind={kind},rank=1", *SMALL)
    victim = worker_of(server, 1)
    chunks = open_stream(server, max_tokens=300, read=40)
    os.kill(victim, signal.SIGUSR1)
    [record] = wait_for(lambda: incidents(tmp_path / "incidents"), 60, "an incident record")
    assert record["process"] == f"rank 1 (pid {victim})" and record["lagging_rank"] == 1
    assert record["step"] >= 40
    assert record["detector"] in ("progress", "step deadline"), "before the collective's own time was over"
    assert "held up by rank 1 " in record["reason"]
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert server.stop() == 0


def test_a_record_that_cannot_be_written_hurts_nobody_R12(start_server):
    server = start_server("--incident-dir", "/proc/no/such/place", model=TINY / "qwen3", tp=1)
    before = server.workers()
    os.kill(before[0], signal.SIGKILL)
    wait_for(lambda: set(server.workers()) - set(before), 20, "another worker")
    server.wait_ready()
    assert incident_count(server) == (1, 1)
    assert "could not be written" in server.log.read_text()
    assert server.stop() == 0


def test_a_stopped_worker_is_killed_and_its_group_comes_back_R8(start_server, tmp_path):
    """A single rank that hangs ends by nobody's news but the coordinator's."""
    server = start_server("--heartbeat-timeout", 3, "--incident-dir", tmp_path, model=TINY / "qwen3", tp=1)
    [worker] = server.workers()
    os.kill(worker, signal.SIGSTOP)
    wait_for(lambda: not command_line(worker), 15, "the stopped worker is killed")
    wait_for(lambda: server.workers(), 15, "another worker")
    server.wait_ready()
    [record] = incidents(tmp_path)
    assert record["process"] == f"rank 0 (pid {worker})" and record["ended"] in (None, "signal 9 (Killed)")
    assert record["detector"] == "heartbeat" and "silent" in record["reason"]
    assert server.stop() == 0


def test_a_worker_that_fails_by_itself_every_time_ends_serve_with_70_R8(start_server):
    server = start_server("--max-restarts", 1, "--fault", "kind=oom,step=1", model=TINY / "qwen3", tp=1, ready=False)

    def asked():
        try:
            server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})
        except OSError:
            pass  # not there yet, or ending
        return server.process.poll() is not None
    wait_for(asked, 60, "the end")
    assert server.process.returncode == 70, server.log.read_text()[-2000:]
    assert "giving up" in server.log.read_text()


def test_of_16_streams_only_the_one_that_ends_its_workers_ends_R8(start_server):
    """Three restarts find it. Done twice within a minute: those whose cause was found do not count as a crash loop."""
    server = start_server("--fault", "kind=oom,rank=1,token=77", "--max-num-seqs", 16, model=TINY / "qwen3", tp=2)

    def ask(number, token):
        """None answers with the token: it would end its workers when it is resumed."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=within(120))
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": [token, 2, 3 + number, 5], "stream": True, "temperature": 0, "max_tokens": 300,
             "logit_bias": {"77": -100}, "ignore_eos": True}), {"Content-Type": "application/json"})
        return connection

    def answer(connection):
        response = connection.getresponse()
        body = response.read().decode()
        if response.status != 200:
            return body
        events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])
    expected = [answer(ask(number, 1)) for number in range(15)]
    assert len(set(expected)) == 15 and "starts again" not in server.log.read_text()
    for wave in (1, 2):
        with held(server.workers()[0]):  # so that all begin together
            with held(server.coordinator()):
                connections = [ask(number, 77 if number == 15 else 1) for number in range(16)]
            wait_for(lambda: request_count(server) == 16, 20, "all are there")
        answers = [answer(connection) for connection in connections]
        assert answers[:15] == expected
        assert "it is not tried again" in answers[15] and json.loads(answers[15])["error"]["code"], answers[15]
        log = server.log.read_text()
        assert log.count("starts again") == 3 * wave and log.count("each runs alone") == wave
    assert server.stop() == 0


def test_killed_supervisor_under_load_leaves_nothing_R11(start_server):
    server = start_server("--max-model-len", 4096)
    chunks = open_stream(server, max_tokens=3000)
    children = descendants(server.process.pid)
    server.process.kill()
    server.process.wait(timeout=within(10))
    with pytest.raises(openai.APIError):  # told, not only cut off
        for _ in chunks:
            pass
    wait_for(lambda: not any(str(BIN) in (command_line(pid) or [""])[0] for pid in children), 15,
             "coordinator and workers gone")


def test_what_a_killed_server_left_goes_at_the_next_start(start_server, generate):
    server = start_server(model=TINY / "qwen3", tp=2)
    living = start_server(model=TINY / "qwen3", tp=1)
    runs = lambda pid: list(SOCKETS.glob(f"refrain-{pid}-*"))
    assert len(runs(server.process.pid)) == len(runs(living.process.pid)) == 1
    everyone = [server.process.pid, *descendants(server.process.pid)]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)  # so that none can clean up after another
    for pid in everyone:
        os.kill(pid, signal.SIGKILL)
    server.process.wait(timeout=within(10))
    assert len(runs(server.process.pid)) == 1
    generate([{"prompt_ids": [1, 2, 3], "max_tokens": 2}], model=TINY / "qwen3")
    assert not runs(server.process.pid)
    assert len(runs(living.process.pid)) == 1
    assert living.stop() == 0


@pytest.mark.parametrize("busy", [False, True])
def test_sigterm_while_the_group_starts_again_lets_requests_finish_R11(start_server, busy):
    server = start_server("--drain-timeout", 60, *SMALL)
    if busy:
        chunks = open_stream(server, max_tokens=40)
    os.kill(server.workers()[0], signal.SIGKILL)
    wait_for(lambda: "starts again" in server.log.read_text(), 10, "the loss is seen")
    server.process.send_signal(signal.SIGTERM)
    if busy:
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert server.process.wait(timeout=60) == 0, server.log.read_text()[-3000:]


@pytest.mark.parametrize("fronts", [0, 1])
def test_a_worker_that_ends_in_the_middle_of_a_drain_is_started_again_R11(start_server, fronts):
    server = start_server("--drain-timeout", within(30), "--api-server-count", fronts, *SMALL, tp=1)
    chunks = open_stream(server, max_tokens=200)
    worker, = server.workers()
    with held(worker):  # so that the request is not done before
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "finishing running requests" in server.log.read_text(), 10, "draining")
        os.kill(worker, signal.SIGTERM)  # it leaves with exit code 0
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert server.process.wait(timeout=within(60)) == 0, server.log.read_text()[-3000:]


def test_what_does_not_finish_within_the_drain_timeout_ends_with_an_error_R11(start_server):
    server = start_server("--drain-timeout", 0.3, "--max-model-len", 4096)
    chunks = open_stream(server, max_tokens=3000)
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(openai.APIError, match="stopped"):
        for _ in chunks:
            pass
    assert server.process.wait(timeout=within(20)) == 0


def test_killed_supervisor_leaves_no_process(start_server):
    server = start_server(*SMALL)
    children = descendants(server.process.pid)
    assert len(children) == 4
    server.process.kill()
    server.process.wait(timeout=within(10))
    wait_for(lambda: not any(str(BIN) in (command_line(pid) or [""])[0] for pid in children), 15,
             "front, coordinator and workers gone")


@pytest.mark.parametrize("fronts", [0, 1])
def test_workers_end_behind_the_coordinator(tmp_path, fronts):
    """libzmq 4.3.4 aborts at times where both ends of a connection are closed at once."""
    programs, order = tmp_path / "bin", tmp_path / "order"
    programs.mkdir()
    (programs / "refrain").write_bytes((BIN / "refrain").read_bytes())
    for name, seconds in (("coordinator", 0.4), ("front", 0), ("worker", 0)):
        (programs / name).write_text(f"#!/bin/sh\ntrap 'sleep {seconds}; echo {name} >>{order}; exit 0' TERM INT\n"
                                     f"echo {name} >>{order}.begun\nwhile :; do sleep 0.02; done\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    server = Server(tmp_path / "serve.log", "--api-server-count", fronts, model=TINY / "qwen3", tp=2)
    server.command[0] = str(programs / "refrain")
    server.start(ready=False)
    begun = tmp_path / "order.begun"
    wait_for(lambda: begun.exists() and len(begun.read_text().split()) == 3 + fronts, 20, "all processes")
    assert server.stop() == 0
    assert order.read_text().split() == ["front"] * fronts + ["coordinator", "worker", "worker"]


def test_a_group_that_keeps_failing_ends_with_75(start_server):
    server = start_server(model=TINY / "qwen3", tp=1)
    seen = set()
    for _ in range(4):
        worker = wait_for(lambda: set(server.workers()) - seen, 30, "a fresh worker").pop()
        seen.add(worker)
        os.kill(worker, signal.SIGKILL)
    assert server.process.wait(timeout=within(30)) == 75
    assert "giving up" in server.log.read_text()
