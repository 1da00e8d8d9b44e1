"""Faults of the world around a server under load: its clock, its disk, its descriptors."""
import asyncio
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

from drills.client import Broken, read_body, read_head, request_bytes
from drills.ledger import Fault
from drills.live_faults import LiveFault
from drills.server import kill

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
DISK = "4m"
MOUNT = f'mount -t tmpfs -o size={DISK} tmpfs "$0" && exec "$@" >>"$0/serve.log" 2>&1'


# ---- clock

def no_faketime(_settings):
    return None if FAKETIME else "Debian's libfaketime is not installed"


def faked_clock(_settings):
    """Without its cache, which goes on with the old offset for up to two seconds, and without its shared memory."""
    return {"environment": {"LD_PRELOAD": str(FAKETIME), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1",
                            "FAKETIME_DISABLE_SHM": "1"},
            "environment_of_home": lambda home: {"FAKETIME_TIMESTAMP_FILE": write_offset(home / "offset", 0)}}


def write_offset(path, seconds):
    scratch = path.with_suffix(".new")
    scratch.write_text(f"{seconds:+d}\n")
    scratch.rename(path)
    return str(path)


async def jump_clock(context):
    """The wall clock of all its processes goes an hour back, an hour on or a year on, and later back to what it was; the
    monotonic one goes on."""
    jump = context.rng.choice([-3600, 3600, 365 * 86400])
    context.notes["jump_s"] = jump
    await jump_to(context, jump)
    context.undo.append(jump_to(context, 0))


async def jump_to(context, offset, seconds=30):
    write_offset(context.server.home / "offset", offset)
    limit = time.monotonic() + seconds
    while abs(await served_time(context) - time.time() - offset) > 600:   # an answer's own time stamp shows it
        if time.monotonic() > limit:
            context.faults.append(Fault("R-13", "drill", f"the clock did not jump to {offset:+d} s"))
            return
        await asyncio.sleep(0.05)


async def served_time(context):
    """The server's wall clock, as an answer tells it."""
    body = {"prompt": context.bench.settings.requests[0].body["prompt"], "max_tokens": 1}
    try:
        return json.loads((await context.server.client.fetch("/v1/completions", body, timeout=60))[1])["created"]
    except (OSError, Broken, TimeoutError, KeyError):
        return 0


# ---- disk

def no_mount(_settings):
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False) if shutil.which("unshare") else None
    return None if tried and tried.returncode == 0 else "no right to mount a small file system (unshare -m)"


def small_disk(_settings):
    return {"wrap_of_home": lambda home: ["unshare", "-m", "sh", "-c", MOUNT, str(home / "run")],
            "log_in_sockets": True}


async def fill_disk(context):
    """The file system of its sockets, records and log gets full, to the last byte."""
    filler = context.server.inner(context.server.sockets) / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    async def free():
        filler.unlink()
    context.undo.append(free())


async def fill_disk_and_kill(context):
    await fill_disk(context)
    kill(context.server.pid(f"worker {context.rank}"), signal.SIGKILL)


# ---- descriptors

MORE = 96               # clients besides as many as there are streams
BUSY = 0.3              # processor seconds in one second that an idle coordinator may not use
ANSWER_SECONDS = 30


class Waiting:
    """Clients that come at once; each asks, and keeps its connection when it is answered, until all may leave."""

    def __init__(self, client, count):
        self.client = client
        self.statuses = [0] * count
        self.may_leave = asyncio.Event()
        self.tasks = [asyncio.create_task(self.ask(i)) for i in range(count)]

    async def ask(self, i):
        try:
            reader, writer = await self.client.connect()
        except OSError:
            return
        try:
            writer.write(request_bytes("GET", "/live", close=False))
            self.statuses[i], headers = await read_head(reader)
            await read_body(reader, headers)
            await self.may_leave.wait()
        except (OSError, Broken):
            pass
        finally:
            writer.close()

    def unanswered(self):
        return sum(status != 200 for status in self.statuses)

    async def wait_answers(self, seconds):
        limit = time.monotonic() + seconds
        while self.unanswered() and time.monotonic() < limit and not all(task.done() for task in self.tasks):
            await asyncio.sleep(0.01)

    async def leave(self):
        self.may_leave.set()
        _, late = await asyncio.wait(self.tasks, timeout=1)
        for task in late:
            task.cancel()


async def take_descriptors(context):
    """The limit of the running coordinator falls to two descriptors more than it holds, and clients come, more than the streams
    will leave room for."""
    await asyncio.sleep(0.1)   # the drill's own watch of /ready is connected
    server = context.server
    pid, logged = server.pid("coordinator"), len(server.log_text())
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}
    limit = [number for number in range(len(used) + 2) if number not in used][1] + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    waiting = Waiting(server.client, context.bench.settings.streams + MORE)
    try:
        await wait_refused(server, logged)
    except TimeoutError:
        context.faults.append(Fault("R-13", "drill", "the limit did not bind"))
    context.notes["open"] = len(used)
    context.notes["answered_at_once"] = len(waiting.statuses) - waiting.unanswered()
    context.undo.append(give_descriptors(context, pid, before, waiting))


async def wait_refused(server, logged, seconds=10):
    async with asyncio.timeout(seconds):
        while "wait to be accepted" not in server.log_text()[logged:]:
            await asyncio.sleep(0.01)


async def give_descriptors(context, pid, before, waiting):
    """All streams have ended, others have their descriptors, and some still wait. An idle server out of descriptors must not
    spin. Then the clients leave one after the other, or the limit is lifted: all are answered."""
    cpu = cpu_seconds(pid)
    await asyncio.sleep(1.0)
    busy = context.notes["cpu_s"] = round(cpu_seconds(pid) - cpu, 2)
    context.notes["waited"] = waiting.unanswered()
    if not context.notes["waited"]:
        context.faults.append(Fault("R-13", "drill", "no client had to wait when the streams had ended"))
    if busy > BUSY:
        context.faults.append(Fault("R-13", "coordinator", f"{busy} s of processor time in a second without work or descriptors"))
    context.released = time.monotonic()
    context.notes["ends_by"] = context.rng.choice(["leaving", "limit"])
    if context.notes["ends_by"] == "leaving":
        waiting.may_leave.set()
    else:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    await waiting.wait_answers(ANSWER_SECONDS)
    if waiting.unanswered():
        context.faults.append(Fault("R-13", "coordinator", f"{waiting.unanswered()} clients that waited were not answered"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    await waiting.leave()


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


WORLD_FAULTS = [
    LiveFault("clock-jump", "the wall clock jumps by an hour or a year", jump_clock, outage=False, missing=no_faketime,
              server_kwargs=faked_clock),
    LiveFault("disk-full", "the disk of its log, sockets and records is full", fill_disk, outage=False,
              missing=no_mount, server_kwargs=small_disk),
    LiveFault("disk-full-kill", "and a rank is killed while it is", fill_disk_and_kill, missing=no_mount,
              server_kwargs=small_disk, incident=False),
    LiveFault("descriptor-limit", "the coordinator runs out of descriptors while clients come", take_descriptors,
              outage=False, latest=0.25),
]
