"""Faults that a server of their own meets: at its start, in capture, at its end."""
import asyncio
import signal
import time
from dataclasses import dataclass

from drills import ledger
from drills.bench import Outcome, generator
from drills.ledger import Fault
from drills.live_faults import count_lost
from drills.server import START_SECONDS, kill

END_SECONDS = 60
EXIT_TRY_AGAIN = 75
STARTS_TRIED = 5


@dataclass
class LifeFault:
    name: str
    text: str
    act: object             # coroutine function (bench, outcome, rng)
    missing: object = None
    server_key: object = None        # it shares none

    async def run(self, bench, repeat):
        outcome = Outcome(repeat)
        if not bench.reference:   # no other fault came before this one
            outcome.faults += await bench.make_reference()
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
    # Kernels that a GPU loads on first use need some MiB, without which there is nothing to degrade to.
    left = [0, 0, 1] if bench.settings.device == "host" else [24, 32]
    rank, free_mib = rng.randrange(bench.settings.tensor_parallel_size), rng.choice(left)
    server = bench.new_server("--fault", f"kind=oom-capture,rank={rank},free_mib={free_mib}")
    begun = time.monotonic()
    await server.start()
    outcome.served = time.monotonic() - begun
    before = await server.metrics()
    records = await bench.open_wave(server).finish()
    outcome.faults += ledger.check_undisturbed(before, await server.metrics())
    outcome.lost = count_lost(records)
    outcome.notes = {"rank": rank, "free_mib": free_mib, "dropped": "out of memory while capturing" in server.log_text()}
    outcome.faults += ledger.check_records(records, bench.rules())
    if "FAULT staged" not in server.log_text():
        outcome.faults.append(Fault("R-13", "drill", "the fault was not staged"))
    await server.stop()
    outcome.faults += await bench.end_server(server)


# ---- SIGTERM

PHASES = ("listening", "joined", "weights", "serving", "restarting", "draining", "twice")


@dataclass(frozen=True)
class Start:
    """A start that is held: its workers are stopped when the log has `hold_at` (None: as soon as they are there), the signal
    comes when it has `line`, and by then it must not have `not_yet`."""
    hold_at: str | None
    line: str
    not_yet: str
    every_rank: bool = True   # else the last one


STARTS = {"listening": Start(None, "listening", "joined group"), "joined": Start("joined group", "joined group", "weights:"),
          "weights": Start("joined group", "weights:", "ready:", every_rank=False)}


async def sigterm(bench, outcome, rng):
    """In turn: while it listens without workers, with some joined, with weights loaded; while it serves, brings a lost group
    back, loses one after the signal; and twice. Requests that were accepted are answered, but for the last."""
    phases = PHASES if bench.settings.tensor_parallel_size > 1 else [name for name in PHASES if name != "weights"]
    phase = phases[outcome.repeat % len(phases)]
    outcome.notes["phase"] = phase
    if phase in STARTS:
        server, held = await held_start(bench, outcome, STARTS[phase])
        wave = await end_a_start(server, bench.open_wave(server), STARTS[phase], held)
    else:
        server = await bench.new_server("--drain-timeout", END_SECONDS).start()
        wave = await end_service(server, bench.open_wave(server), phase, rng, bench.settings.tensor_parallel_size)
    records = await wave.finish(END_SECONDS)
    outcome.notes["complete"] = sum(record.end == "complete" for record in records)
    await check_end(bench, server, outcome, records, 0, errors_allowed=phase == "twice")


async def held_start(bench, outcome, start):
    """A server whose group cannot become ready, as processes of it are stopped; again when they were too quick for the drill."""
    roles = [f"worker {rank}" for rank in range(bench.settings.tensor_parallel_size)]
    for attempt in range(STARTS_TRIED):
        server, held = bench.new_server("--drain-timeout", END_SECONDS).spawn(), []
        for role in roles:
            async def there():
                return server.child(role) is not None
            await server.until(there, START_SECONDS, role, 0.001)
            held.append(server.child(role))
            if start.hold_at is None:
                kill(held[-1], signal.SIGSTOP)
        if start.hold_at:
            held = held if start.every_rank else held[-1:]
            await server.wait_log(start.hold_at, every=0.001)
            for pid in held:
                kill(pid, signal.SIGSTOP)
        await server.wait_log("listening")
        if start.not_yet not in server.log_text():
            outcome.notes["starts"] = attempt + 1
            return server, held
        for pid in held:
            kill(pid, signal.SIGCONT)
        outcome.faults += await bench.end_server(server)
    raise RuntimeError(f"the drill could not hold a start before {start.not_yet!r}")


async def end_a_start(server, wave, start, held):
    await all_accepted(server, len(wave.records))
    await server.wait_log(start.line)
    server.note_processes()
    server.process.send_signal(signal.SIGTERM)
    await server.wait_log("finishing")
    for pid in held:
        kill(pid, signal.SIGCONT)
    return wave


async def end_service(server, wave, phase, rng, ranks):
    rank = rng.randrange(ranks)
    await all_accepted(server, len(wave.records))
    await wave.reach(rng.uniform(0.0, 0.6))
    server.note_processes()
    if phase == "restarting":
        kill(server.pid(f"worker {rank}"), signal.SIGKILL)
        await server.wait_log("starts again")
    server.process.send_signal(signal.SIGTERM)
    if phase == "draining":
        await server.wait_log("finishing")
        kill(server.pid(f"worker {rank}"), signal.SIGKILL)
    if phase == "twice":
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        server.process.send_signal(signal.SIGTERM)
    return wave


LIFE_FAULTS = [
    LifeFault("crash-loop", "every worker is killed at its start: the process ends with 75", crash_loop),
    LifeFault("oom-capture", "graphs are captured with next to no device memory left", oom_capture),
    LifeFault("sigterm", "SIGTERM while it listens, joins, loads, serves, restarts, before a loss; and twice", sigterm),
]
