"""A `refrain serve` under test: its start, its processes and what they use, its readiness over time, its end."""
import asyncio
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from drills.client import Broken, Client, read_body, read_head, request_bytes
from drills.ledger import Resources

START_SECONDS = 180


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@functools.cache
def knows_incidents(binaries):
    """Builds before the incident record have no option for its folder."""
    text = subprocess.run([str(Path(binaries) / "refrain"), "serve", "--help"], capture_output=True, text=True, check=True)
    return "--incident-dir" in text.stdout


def all_groups_ready(metrics):
    """By the text of /metrics. A server is ready with its first group, which does the work of all until the others are."""
    return not re.search(r"^refrain:group_ready\{.*\} 0$", metrics, re.MULTILINE)


def process_table():
    """pid -> parent of every process that lives."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                parents[int(entry)] = int(fields[1])
    return parents


def descendants(pid):
    parents = process_table()
    found, stack = [], [pid]
    while stack:
        here = stack.pop()
        children = [child for child, parent in parents.items() if parent == here]
        found += children
        stack += children
    return found


def role_of(pid):
    """serve, front, coordinator, worker N (of several groups worker G.N); empty for what is none of them (or gone)."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    name = os.path.basename(words[0])
    if name == "worker" and "--rank" in words:
        group = words[words.index("--group") + 1] + "." if "--group" in words else ""
        return f"worker {group}{words[words.index('--rank') + 1]}"
    return {"coordinator": "coordinator", "front": "front", "refrain": "serve"}.get(name, "")


def usage_of(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    rss = re.search(r"^RssAnon:\s+(\d+) kB", status, re.M)
    return {"rss": int(rss[1]) << 10 if rss else 0, "fds": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(re.search(r"^Threads:\s+(\d+)", status, re.M)[1])}


@dataclass
class Watch:
    """When /ready changed its answer since `begun`."""
    begun: float
    lost: float | None = None   # first time that it was not 200
    back: float | None = None   # first time after that that it was


class Server:
    def __init__(self, binaries, model, options, environment=None, environment_of_home=None, wrap_of_home=None,
                 log_in_sockets=False):
        """`…_of_home`: functions of its scratch folder, to variables and to a command that runs the server's own;
        `log_in_sockets`: that command writes the log beside the sockets, in a file system that it made; incident records go
        there, too."""
        self.port = free_port()
        self.client = Client(self.port)
        self.home = Path(tempfile.mkdtemp(prefix="rd-", dir="/tmp"))   # short: socket paths are limited
        self.sockets = self.home / "run"
        self.sockets.mkdir()
        self.incidents = (self.sockets if log_in_sockets else self.home) / "incidents"
        self.outer_log = self.home / "serve.log"
        self.log_in_sockets = log_in_sockets
        self.command = [*(wrap_of_home(self.home) if wrap_of_home else []), str(Path(binaries) / "refrain"), "serve", "--model", str(model),
                        "--port", str(self.port), *map(str, options)]
        if knows_incidents(binaries):
            self.command += ["--incident-dir", str(self.incidents)]
        self.environment = {**os.environ, "TMPDIR": str(self.sockets), **(environment or {}),
                            **(environment_of_home(self.home) if environment_of_home else {})}
        self.environment.pop("XDG_RUNTIME_DIR", None)
        self.process = None
        self.seen = set()        # every pid that was ever part of it
        self.watch = None
        self.watcher = None

    # ---- life

    def spawn(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.outer_log.open("ab"),
                                        stderr=subprocess.STDOUT, env=self.environment)
        return self

    async def start(self):
        self.spawn()
        await self.wait_ready()
        return self

    def ended(self):
        return self.process.poll() is not None

    def inner(self, path):
        """A path as the server's processes see it: they may have a file system of their own there."""
        return Path(f"/proc/{self.process.pid}/root") / path.relative_to("/") if self.log_in_sockets else path

    def log_text(self):
        path = self.inner(self.sockets / "serve.log") if self.log_in_sockets else self.outer_log
        return path.read_text(errors="replace") if path.exists() else ""

    async def is_ready(self):
        try:
            return (await self.client.fetch("/ready", timeout=5))[0] == 200
        except (OSError, Broken, TimeoutError):
            return False

    async def wait_ready(self, seconds=START_SECONDS):
        await self.until(self.is_ready, seconds, "ready")

    async def wait_all_groups(self, seconds=START_SECONDS):
        async def all_are():
            return all_groups_ready((await self.client.fetch("/metrics"))[1])
        await self.until(all_are, seconds, "all groups are ready", every=0.02)

    async def until(self, condition, seconds, what, every=0.01):
        """Polls a coroutine function; an error when the server ends or time is over."""
        limit = time.monotonic() + seconds
        while not await condition():
            if self.ended():
                raise RuntimeError(f"the server ended ({self.process.returncode}) before: {what}\n{self.log_text()[-3000:]}")
            if time.monotonic() > limit:
                raise RuntimeError(f"not within {seconds} s: {what}\n{self.log_text()[-3000:]}")
            await asyncio.sleep(every)

    async def wait_log(self, words, seconds=START_SECONDS, every=0.01):
        async def there():
            return words in self.log_text()
        await self.until(there, seconds, f'"{words}" in the log', every)

    async def wait_end(self, seconds):
        """The exit code; None: it had not ended in time."""
        limit = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > limit:
                return None
            await asyncio.sleep(0.01)
        return self.process.returncode

    async def stop(self, seconds=40):
        """Ends it by SIGTERM, for good by SIGKILL; the exit code (None: it had to be killed)."""
        self.note_processes()
        if self.watcher:
            self.watcher.cancel()
        if not self.ended():
            self.process.send_signal(signal.SIGTERM)
        code = await self.wait_end(seconds)
        if code is None:
            for pid in self.tree():
                kill(pid, signal.SIGKILL)
            self.process.wait()
        return code

    async def leftovers(self, seconds=5.0):
        """Processes, files and segments that outlived the server."""
        limit = time.monotonic() + seconds
        while left := self.left():
            if time.monotonic() > limit:
                return left
            await asyncio.sleep(0.05)
        return []

    def left(self):
        left = [f"process {role_of(pid)} ({pid})" for pid in self.seen if role_of(pid)]
        left += [str(path.relative_to(self.home)) for path in self.sockets.rglob("*")]
        return left + [f"/dev/shm/{name}" for name in self.segments()]

    def remove_home(self):
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- processes

    def tree(self):
        found = [self.process.pid, *descendants(self.process.pid)]
        self.seen.update(found)
        return found

    note_processes = tree

    def pids(self, role):
        return [pid for pid in self.tree() if role_of(pid) == role]

    def pid(self, role):
        return next(iter(self.pids(role)), None)

    def child(self, role):
        """The same of a child of `serve`, and quick."""
        try:
            pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except OSError:   # it has ended
            return None
        return next((int(pid) for pid in pids if role_of(pid) == role), None)

    def segments(self):
        """Shared-memory files of this server: their names hold the pid of the process that made the group."""
        try:
            names = os.listdir("/dev/shm")
        except OSError:
            return []
        return [name for name in names if name.startswith("refrain") and
                any(int(number) in self.seen for number in re.findall(r"-(\d+)-", name))]

    def resources(self):
        processes, pids = {}, self.tree()
        for pid in pids:
            role = role_of(pid)
            if role:
                try:
                    processes[role if role not in processes else f"second {role}"] = usage_of(pid)
                except OSError:
                    continue
        segments = [re.sub(r"-\d+-.*", "-N", name) for name in self.segments()]
        files = [re.sub(r"\d+(-[0-9a-f]{8})?", "N", str(path.relative_to(self.sockets))) for path in self.sockets.rglob("*")]
        return Resources(processes, frozenset(segments + files))

    # ---- what it says of itself

    async def metrics(self):
        """{name: sum over its labels}; empty when it does not answer."""
        try:
            status, text = await self.client.fetch("/metrics")
        except (OSError, Broken, TimeoutError):
            return {}
        values = {}
        for line in text.splitlines() if status == 200 else []:
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.split("{")[0]
                values[name] = values.get(name, 0.0) + float(value)
        return values

    def begin_watch(self):
        """From now on `watch` tells when readiness was lost and came back. One connection, kept open."""
        if self.watcher:
            self.watcher.cancel()
        self.watch = Watch(time.monotonic())
        self.watcher = asyncio.create_task(self.keep_watch(self.watch))

    async def end_watch(self):
        if self.watcher:
            self.watcher.cancel()
            await asyncio.wait([self.watcher])

    async def keep_watch(self, watch):
        """Until readiness is back, or it is cancelled."""
        reader = writer = None
        try:
            while watch.back is None:
                try:
                    if writer is None:
                        reader, writer = await self.client.connect()
                    writer.write(request_bytes("GET", "/ready", close=False))
                    status, headers = await read_head(reader)
                    await read_body(reader, headers)
                except (OSError, Broken):
                    status, writer = 0, None
                now = time.monotonic()
                if status != 200 and watch.lost is None:
                    watch.lost = now
                if status == 200 and watch.lost is not None:
                    watch.back = now
                await asyncio.sleep(0.01)
        finally:
            if writer is not None:
                writer.close()


def kill(pid, number):
    """Sends a signal; false when the process is gone."""
    try:
        os.kill(pid, number)
        return True
    except (ProcessLookupError, TypeError):
        return False
