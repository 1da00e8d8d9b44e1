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

from drills.client import Broken, read_head, request_bytes
from drills.ledger import Fault
from drills.live_faults import LiveFault
from drills.server import kill

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DISK = "4m"
MOUNT = f'mount -t tmpfs -o size={DISK} tmpfs "$0" && exec "$@" >>"$0/serve.log" 2>&1'


# ---- clock

def no_faketime(_settings):
    return None if FAKETIME.exists() else "Debian's libfaketime is not installed"


def faked_clock(_settings):
    return {"environment": {"LD_PRELOAD": str(FAKETIME), "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                            "FAKETIME_CACHE_DURATION": "1"},
            "environment_of_home": lambda home: {"FAKETIME_TIMESTAMP_FILE": write_offset(home / "offset", 0)}}


def write_offset(path, seconds):
    scratch = path.with_suffix(".new")
    scratch.write_text(f"{seconds:+d}\n")
    scratch.rename(path)
    return str(path)


async def jump_clock(context):
    """The wall clock of all its processes goes an hour back, an hour on or a year on; the monotonic one goes on."""
    jump = context.rng.choice([-3600, 3600, 365 * 86400])
    context.notes["jump_s"] = jump
    write_offset(context.server.home / "offset", jump)
    for _ in range(20):   # the answer's own time stamp shows that the jump has arrived
        if abs(await served_time(context) - time.time() - jump) < 600:
            return
        await asyncio.sleep(0.05)
    context.faults.append(Fault("R-13", "drill", "the clock did not jump"))


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

STORM = 60


async def take_descriptors(context):
    """The coordinator may open two descriptors more, and sixty clients come at once. Then the limit is lifted again."""
    pid = context.server.pid("coordinator")
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 2, before[1]))
    cpu = cpu_seconds(pid)

    writers = []

    async def ask():
        """The status of an answer; its connection stays open until all have asked."""
        try:
            async with asyncio.timeout(1.5):
                reader, writer = await context.server.client.connect()
                writers.append(writer)
                writer.write(request_bytes("GET", "/live", close=False))
                return (await read_head(reader))[0]
        except (OSError, Broken, TimeoutError):
            return 0
    answers = await asyncio.gather(*[ask() for _ in range(STORM)])
    for writer in writers:
        writer.close()
    context.notes["answered"] = sum(status == 200 for status in answers)
    if context.notes["answered"] > STORM // 2:
        context.faults.append(Fault("R-13", "drill", "the limit did not bind"))
    context.notes["cpu_s"] = round(cpu_seconds(pid) - cpu, 2)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


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
              outage=False),
]
