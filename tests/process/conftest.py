"""Real processes for the process tests: servers on free ports, generate runs, and a check that nothing is left."""
import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from drills.server import descendants  # noqa: E402

BIN = Path(os.environ.get("REFRAIN_BUILD_DIR", ROOT / "build")) / "bin"
SMOLLM2 = ROOT / "build/models/SmolLM2-135M-Instruct"
TINY = ROOT / "tests/fixtures/models"
READY_SECONDS = 60
SANITIZED = BIN.parent.name in ("host-asan", "host-tsan")
PATIENCE = float(os.environ.get("REFRAIN_TEST_PATIENCE", 1))  # tools/test raises it under sanitizers

# Sockets of these tests go to a directory of their own (a short one: socket paths are limited), so that what others
# run meanwhile is not mistaken for something left behind.
SOCKETS = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
atexit.register(shutil.rmtree, SOCKETS, ignore_errors=True)
os.environ["TMPDIR"] = str(SOCKETS)
os.environ.pop("XDG_RUNTIME_DIR", None)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def within(seconds):
    """A deadline of a test, longer where programs are slower."""
    return seconds * PATIENCE


def wait_for(condition, seconds, what):
    """Polls until the condition gives something true, and returns it."""
    seconds = within(seconds)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s")


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def stop_while(pid, condition, seconds, what):
    """Stops a process at a moment when the condition holds, looked at again once it stands still: between a look and what follows
    it a server that runs may have ended all its work. It is stopped for a small part of what a step may take (1.75 s)."""
    deadline = time.monotonic() + within(seconds)
    while time.monotonic() < deadline:
        wait_for(condition, seconds, what)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)  # what it has sent arrives
        if condition():
            return
        os.kill(pid, signal.SIGCONT)
    raise AssertionError(f"{what}: never while process {pid} stood still")


@contextlib.contextmanager
def held(pid, condition=lambda: True, seconds=20, what="the condition holds"):
    """The process stands still, from a moment when the condition holds."""
    stop_while(pid, condition, seconds, what)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def kill_busy(pid, condition, seconds=20, what="the condition holds"):
    """Kills a process at a moment when the condition holds."""
    stop_while(pid, condition, seconds, what)
    os.kill(pid, signal.SIGKILL)


class Load:
    """Requests, one for each of `keys`, that are sent again whenever all were answered and somebody looks."""

    def __init__(self, pool, ask, keys):
        self.pool, self.ask, self.keys, self.rounds = pool, ask, list(keys), []

    def go_on(self):
        if not self.rounds or all(job.done() for job in self.rounds[-1]):
            self.rounds.append([self.pool.submit(self.ask, key) for key in self.keys])

    def answers(self):
        """Those of each round."""
        return [[job.result() for job in jobs] for jobs in self.rounds]


def leftovers():
    """What a run may not leave behind: shared-memory segments and private directories."""
    return sorted(str(p) for p in [*Path("/dev/shm").glob("refrain*"), *SOCKETS.iterdir()])


class Server:
    """`refrain serve` on a free port; its output goes to a file."""

    def __init__(self, log, *options, model=SMOLLM2, tp=2):
        self.log = Path(log)
        self.tp = tp
        always = [] if "--api-server-count" in options else os.environ.get("REFRAIN_TEST_SERVE", "").split()
        self.command = [str(BIN / "refrain"), "serve", "--model", str(model), "--tensor-parallel-size", str(tp),
                        "--port", "", *always, *map(str, options)]
        self.process = None
        self.choose_port()

    def choose_port(self):
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.command[self.command.index("--port") + 1] = str(self.port)

    def start(self, ready=True):
        self._begin()
        if ready:
            try:
                self.wait_ready()
            except AssertionError:
                if self.process.poll() != 64 or f"{self.port} is in use" not in self.log.read_text():
                    raise
                self.choose_port()  # somebody else took that one first
                self._begin()
                self.wait_ready()
        return self

    def _begin(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log.open("w"),
                                        stderr=subprocess.STDOUT)

    def wait_ready(self, seconds=READY_SECONDS):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended ({self.process.returncode}):\n{self.log.read_text()[-3000:]}")
            try:
                return self.get("/ready")[0] == 200
            except OSError:
                return False
        wait_for(ready, seconds, f"ready (log: {self.log})")

    def get(self, path, headers=None):
        return self.request("GET", path, None, headers)

    def post(self, path, body, headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, data, headers)

    def request(self, method, path, data, headers=None):
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json", **(headers or {})},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=within(120)) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def client(self, key="none", **options):
        return openai.OpenAI(base_url=self.base + "/v1", api_key=key, max_retries=0,
                             timeout=within(120), **options)

    def workers(self):
        return self.children("worker")

    def children(self, name):
        return [pid for pid in descendants(self.process.pid) if Path((command_line(pid) or [""])[0]).name == name]

    def coordinator(self):
        return self.children("coordinator")[0]

    def front(self):
        return self.children("front")[0]

    def kill(self, pid):
        """Of the front or the coordinator, whose successor it returns: until that runs, the other may still say ready."""
        before = self.children("coordinator") + self.children("front")
        os.kill(pid, signal.SIGKILL)
        return self.successor(before)

    def successor(self, before, seconds=20):
        """The process that is started instead of one of these."""
        return wait_for(lambda: [pid for name in ("coordinator", "front") for pid in self.children(name)
                                 if pid not in before], seconds, "another process")[0]

    def stop(self, number=signal.SIGTERM, seconds=40):
        """Ends it and returns the exit code; no process of it may be left."""
        children = descendants(self.process.pid)
        self.process.send_signal(number)
        code = self.process.wait(timeout=within(seconds))
        wait_for(lambda: not [pid for pid in children if command_line(pid) and Path(command_line(pid)[0]).parent == BIN],
                 10, "all processes gone")
        return code


def start_by_hand(*argv, log):
    return subprocess.Popen([str(BIN / argv[0]), *map(str, argv[1:])], stdin=subprocess.DEVNULL, stdout=log.open("w"),
                            stderr=subprocess.STDOUT)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    before = leftovers()
    yield
    wait_for(lambda: not set(leftovers()) - set(before) or None, 10,
             f"no files left behind ({set(leftovers()) - set(before)})")


@pytest.fixture
def start_server(tmp_path):
    """start_server(*options, model=…, tp=…): a ready server, ended after the test."""
    servers = []

    def start(*options, ready=True, **kwargs):
        server = Server(tmp_path / f"serve-{len(servers)}.log", *options, **kwargs)
        servers.append(server)
        return server.start(ready)

    yield start
    for server in servers:
        if server.process and server.process.poll() is None:
            server.stop()


@pytest.fixture
def generate(tmp_path):
    """generate(lines, *options, model=…): the answers, and the finished process."""
    if not (BIN / "refrain").exists():
        raise AssertionError(f"{BIN}/refrain is not built; run tools/quickstart --no-run")

    def run(lines, *options, model=SMOLLM2, check=True, timeout=300):
        prompts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        prompts.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        output.unlink(missing_ok=True)
        done = subprocess.run([str(BIN / "refrain"), "generate", "--model", str(model), "--prompts", str(prompts),
                               "--output", str(output), *map(str, options)],
                              capture_output=True, text=True, timeout=within(timeout))
        answers = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else None
        if check:
            assert done.returncode == 0, done.stderr[-3000:]
        return answers, done

    return run


@pytest.fixture
def copy_model(tmp_path):
    """A copy of a model directory that a test may break."""
    def copy(source):
        target = tmp_path / "model"
        shutil.copytree(source, target)
        return target
    return copy
