"""Every process ends in every ending, also when a thread of the coordinator never gets on again (R-25)."""
import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from conftest import TINY, command_line, wait_for, within
from drills.server import descendants

SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000  # of ptrace(2), waitpid(2)
DRAIN = 2
# the drain timeout and 5 s. The supervisor's own looks, and a machine with other work, come on top.
BOUND = DRAIN + 5 + 3


class Stuck:
    """Holds single threads of a process for good, as a task does that never ends. They die with their process."""

    def __init__(self, pid, name):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.tasks = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()
                      if (task / "comm").read_text().strip().startswith(name)]
        assert self.tasks, f"no thread of {pid} is called {name}"
        self.over, self.held, self.error = threading.Event(), threading.Event(), None
        self.tracer = threading.Thread(target=self._hold, daemon=True)  # one thread asks and waits
        self.tracer.start()
        assert self.held.wait(within(10))
        if self.error and self.error.errno in (errno.EPERM, errno.ENOSYS):
            pytest.skip(f"this system lets nobody hold threads: {self.error}")
        assert not self.error, self.error

    def _call(self, request, task):
        if self.libc.ptrace(request, task, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace of thread {task}")

    def _hold(self):
        try:
            for task in self.tasks:
                self._call(SEIZE, task)
                self._call(INTERRUPT, task)
                os.waitpid(task, WALL)
        except OSError as error:
            self.error = error
        self.held.set()
        while not self.over.wait(0.05):  # a thread that died is nobody's zombie
            for task in self.tasks:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(task, WALL | os.WNOHANG)

    def release(self):
        self.over.set()
        self.tracer.join()


def alive(pid):
    """Zombies do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def send(server, body):
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=within(10))
    data = json.dumps(body).encode()
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return sock


def end_by(server, how):
    if how == "supervisor killed":
        return server.process.kill()
    server.process.send_signal(signal.SIGTERM)
    if how == "two signals":
        wait_for(lambda: "finishing running requests" in server.log.read_text(), 10, "draining")
        server.process.send_signal(signal.SIGTERM)


def all_gone(server, everyone, how):
    """Within the bound; the seconds that it took."""
    begin = time.monotonic()
    wait_for(lambda: server.process.poll() is not None and not any(map(alive, everyone)), BOUND,
             f"the end of all processes ({how}; left: {[command_line(p)[:1] for p in everyone if alive(p)]})")
    return time.monotonic() - begin


HOW = ["one signal", "two signals", "supervisor killed"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("threads", ["text-", "output-"])
@pytest.mark.parametrize("fronts", [0, 1])
def test_all_processes_end_with_threads_that_never_get_on_R25(start_server, how, threads, fronts):
    server = start_server("--drain-timeout", DRAIN, "--api-server-count", fronts, model=TINY / "qwen3", tp=2)
    everyone = descendants(server.process.pid)
    assert len(everyone) == 3 + fronts
    stuck = Stuck(server.front() if fronts else server.coordinator(), threads)
    try:
        asked = [send(server, {"prompt": "Once", "max_tokens": 4}) for _ in range(2 * len(stuck.tasks))]
        end_by(server, how)
        all_gone(server, everyone, how)
    finally:
        stuck.release()
    for sock in asked:
        sock.close()


@pytest.mark.parametrize("how", HOW)
def test_all_processes_end_while_a_normalizer_works_on_a_huge_text_R25(start_server, copy_model, how):
    """64 steps over 12 MB: seconds of work that looks for no stop flag within a step."""
    model = copy_model(TINY / "qwen3")
    for name, change in (("config.json", {"max_position_embeddings": 1 << 20}),
                         ("tokenizer.json", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 64}})):
        content = json.loads((model / name).read_text()) | change
        (model / name).write_text(json.dumps(content))
    server = start_server("--drain-timeout", DRAIN, "--max-model-len", 1 << 20, "--max-num-seqs", 1, model=model, tp=1)
    everyone = descendants(server.process.pid)
    front = server.front()

    def busy():
        return sum(int((task / "schedstat").read_text().split()[0]) / 1e9 for task in Path(f"/proc/{front}/task").iterdir()
                   if (task / "comm").read_text().startswith("text-"))
    before = busy()
    asked = [send(server, {"prompt": "\u00e9 " * 4_000_000, "max_tokens": 1}) for _ in range(4)]
    wait_for(lambda: busy() - before > 0.5, 20, "text threads at work")
    end_by(server, how)
    all_gone(server, everyone, how)
    for sock in asked:
        sock.close()
