"""Faults that a server of their own meets: at its start, in capture, at its end."""
import asyncio
import signal
import time
from dataclasses import dataclass

from drills import ledger
from drills.bench import Outcome, generator
from drills.ledger import Fault
from drills.live_faults import count_lost
from drills.server import kill

END_SECONDS = 60
EXIT_TRY_AGAIN = 75


@dataclass
class LifeFault:
    name: str
    text: str
    act: object             # coroutine function (bench, outcome, rng)
    missing: object = None
    server_key: tuple = ((), None)   # the server that gives the reference

    async def run(self, bench, repeat):
        outcome = Outcome(repeat)
        if not bench.reference:   # no other fault came before this one
            await bench.shared_server()
        await self.act(bench, outcome, generator(bench.settings.seed, self.name, repeat))
        return outcome


async def all_accepted(server, count):
    """Every request of the wave has its place in the queue."""
    async def there():
        return (await server.metrics()).get("refrain:requests_total", 0) >= count
    await server.until(there, 30, "all requests accepted")


async def check_end(bench, server, outcome, records, code, **rules):
    """The exit code, what is left, and the records."""
    begun = time.monotonic()
    got = await server.wait_end(END_SECONDS)
    outcome.notes["ended_s"] = round(time.monotonic() - begun, 2)
    if got is None:
        outcome.faults.append(Fault("R-11", "serve", f"had not ended after {END_SECONDS} s"))
    outcome.lost = count_lost(records, **rules)
    outcome.faults += ledger.check_records(records, bench.rules(**rules))
    outcome.faults += await bench.end_server(server, code)


# ---- crash loop

async def crash_loop(bench, outcome, rng):
    """Every worker is killed as soon as it is there. Beyond the restart intensity serve must end with 75."""
    server = bench.new_server("--max-restarts", 3)
    server.spawn()
    await server.wait_log("listening")
    wave = bench.open_wave(server)
    await all_accepted(server, len(wave.records))
    begun, killed, grace = time.monotonic(), set(), rng.uniform(0.0, 0.5)
    while not server.ended() and time.monotonic() - begun < END_SECONDS:
        for rank in range(bench.settings.tensor_parallel_size):
            for pid in server.pids(f"worker {rank}"):
                if pid not in killed:
                    await asyncio.sleep(grace)
                    killed.add(pid)
                    kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.005)
    outcome.detected = time.monotonic() - begun   # from the first kill to the end of the process
    outcome.notes["killed"] = len(killed)
    records = await wave.finish(10)
    await check_end(bench, server, outcome, records, EXIT_TRY_AGAIN, errors_allowed=True)


# ---- capture without memory

async def oom_capture(bench, outcome, rng):
    """One rank captures with next to no device memory left: the server comes up with fewer graphs and the same answers."""
    rank, free_mib = rng.randrange(bench.settings.tensor_parallel_size), rng.choice([0, 0, 1])
    server = bench.new_server("--fault", f"kind=oom-capture,rank={rank},free_mib={free_mib}")
    begun = time.monotonic()
    await server.start()
    outcome.served = time.monotonic() - begun
    records = await bench.open_wave(server).finish()
    outcome.lost = count_lost(records)
    outcome.notes = {"rank": rank, "free_mib": free_mib, "dropped": "out of memory while capturing" in server.log_text()}
    outcome.faults += ledger.check_records(records, bench.rules())
    if "FAULT staged" not in server.log_text():
        outcome.faults.append(Fault("R-13", "drill", "the fault was not staged"))
    await server.stop()
    outcome.faults += await bench.end_server(server)


# ---- SIGTERM

PHASES = ("listening", "joined", "weights", "serving", "restarting", "twice")


async def sigterm(bench, outcome, rng):
    """In turn: while it listens, joins, loads, serves, brings a lost group back; and twice."""
    phase = PHASES[outcome.repeat % len(PHASES)]
    outcome.notes["phase"] = phase
    server = bench.new_server("--drain-timeout", END_SECONDS)
    server.spawn()
    await server.wait_log("listening")
    if phase in ("serving", "restarting", "twice"):
        await server.wait_ready()
    wave = bench.open_wave(server)
    await all_accepted(server, len(wave.records))
    if phase in ("joined", "weights"):
        await server.wait_log(phase)
    elif phase != "listening":
        await wave.reach(rng.uniform(0.0, 0.6))
    if phase == "restarting":
        server.note_processes()
        server.begin_watch()
        kill(server.pid(f"worker {rng.randrange(bench.settings.tensor_parallel_size)}"), signal.SIGKILL)
        while server.watch.lost is None and not server.ended():
            await asyncio.sleep(0.005)
    server.note_processes()
    server.process.send_signal(signal.SIGTERM)
    if phase == "twice":
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        server.process.send_signal(signal.SIGTERM)
    records = await wave.finish(END_SECONDS)
    await check_end(bench, server, outcome, records, 0, errors_allowed=phase == "twice")


LIFE_FAULTS = [
    LifeFault("crash-loop", "every worker is killed at its start: the process ends with 75", crash_loop),
    LifeFault("oom-capture", "graphs are captured with next to no device memory left", oom_capture),
    LifeFault("sigterm", "SIGTERM while it listens, joins, loads, serves, restarts; and twice", sigterm),
]
