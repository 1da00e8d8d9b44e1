"""Faults that meet a server under load: all streams are open, a seeded share of the tokens has come, then it happens."""
import asyncio
import signal
import time
from dataclasses import dataclass, field

from drills import ledger
from drills.bench import Outcome, generator
from drills.ledger import Fault
from drills.server import START_SECONDS, kill
from drills.start_times import start_times

LATEST = 0.7   # the fault comes before this share of all tokens has


@dataclass
class Context:
    """Of one repeat, for the function that does the damage."""
    bench: object
    server: object
    wave: object
    rng: object
    repeat: int
    rank: int
    process: str = ""            # whose loss the incident record must name
    undo: list = field(default_factory=list)   # coroutines to wait for when the streams have ended
    released: float | None = None   # when what kept new requests out was taken away
    faults: list = field(default_factory=list)
    notes: dict = field(default_factory=dict)


@dataclass
class LiveFault:
    name: str
    text: str
    inject: object                # coroutine function of a Context
    options: tuple = ()           # of the server
    outage: bool = True           # the group is expected to be lost
    spare: bool = False           # of two groups one is: the server serves on, and it comes back
    cuts: bool = False            # connections end with the process that holds them
    incident: bool = True         # the loss must be on record, else counted as one that could not be written
    latest: float = LATEST
    missing: object = None        # function of Settings: why it cannot run here, or None
    server_kwargs: object = None  # function of Settings: further arguments of Server

    @property
    def server_key(self):
        """Faults with the same key share a server."""
        return self.options, self.server_kwargs

    async def run(self, bench, repeat):
        outcome = Outcome(repeat)
        rng = generator(bench.settings.seed, self.name, repeat)
        server, baseline = await bench.shared_server(self)
        before = await server.metrics()
        wave = bench.open_wave(server)
        context = Context(bench, server, wave, rng, repeat, rng.randrange(bench.settings.tensor_parallel_size))
        moment = rng.uniform(0.0, self.latest)
        await wave.reach(moment)
        server.note_processes()
        server.begin_watch()
        wall, begun, logged = time.time(), time.monotonic(), len(server.log_text())
        await self.inject(context)
        probe = asyncio.create_task(self.time_probe(bench, server, wave))
        records = await wave.finish()
        for coroutine in context.undo:
            await coroutine
        served = await probe
        lost = server.watch.lost
        outcome.detected = None if lost is None or not self.outage else lost - begun
        outcome.served = None if served is None else served - (context.released or begun)
        outcome.notes = {"moment": round(moment, 3), "rank": context.rank, **context.notes,
                         "pieces_before": sum(1 for r in records for t, _ in r.pieces if t < begun)}
        if self.outage and lost:
            first = min((t for record in records for t, _ in record.pieces if t > lost), default=None)
            outcome.notes["streams_on_s"] = None if first is None else round(first - begun, 3)
            outcome.notes["start_s"] = start_times(server.log_text()[logged:], second_of_day(wall))
        outcome.faults += context.faults
        outcome.faults += ledger.check_records(records, bench.rules(cuts_allowed=self.cuts, since=begun))
        outcome.cut = sum(record.end in ("cut", "refused") for record in records) if self.cuts else 0
        outcome.lost = count_lost(records, cuts_allowed=self.cuts)
        if self.cuts:
            outcome.faults += await self.send_again(bench, server, records)
        outcome.faults += await self.check_outage(server, context, before, lost, served, wall)
        await server.end_watch()
        outcome.faults += await bench.check_rest(server, baseline)
        return outcome

    async def time_probe(self, bench, server, wave):
        """First token of a request that was sent after the loss was noticed, or after the fault where none is expected."""
        while self.outage and server.watch.lost is None and not all(task.done() for task in wave.tasks):
            await asyncio.sleep(0.005)
        return await bench.probe(server)

    async def send_again(self, bench, server, records):
        """What was cut is asked again, as its client would: the whole answer must come now."""
        before = await server.metrics()
        again = bench.open_wave(server)
        ended = {record.name for record in records if record.end in ("cut", "refused")}
        done = [record for record in await again.finish() if record.name in ended]
        return ledger.check_undisturbed(before, await server.metrics()) + ledger.check_records(done, bench.rules())

    async def wait_groups(self, server):
        """Both serve again."""
        async def both():
            return (await server.metrics()).get("refrain:group_ready") == 2
        try:
            await server.until(both, START_SECONDS, "both groups are ready")
        except RuntimeError as error:
            return [Fault("R-8", "serve", str(error))]
        return []

    async def check_outage(self, server, context, before, lost, served, wall):
        if served is None:
            return [Fault("R-13", "serve", "does not serve again")]
        now = await server.metrics()

        def more(name):
            return now.get(name, 0) - before.get(name, 0)
        if self.spare:
            wrong = [Fault("R-8", "serve", "was not ready all the time, and a group was left")] if lost else []
            if more("refrain:worker_group_restarts_total") != 1:
                wrong.append(Fault("R-8", "serve", f"{more('refrain:worker_group_restarts_total'):.0f} groups were lost, not one"))
            return wrong + await self.wait_groups(server) + context.bench.check_incident(server, context.process, wall)
        if not self.outage:
            wrong = [Fault("R-13", "serve", "was not ready all the time")] if lost else []
            return wrong + ledger.check_undisturbed(before, now)
        # A short loss may have been over between two looks at /ready; counters stay.
        noticed = lost is not None or more("refrain:worker_group_restarts_total") or more("refrain:incidents_total")
        if not noticed:
            return [Fault("R-13", "serve", "did not notice")]
        if self.incident:
            return context.bench.check_incident(server, context.process or f"rank {context.rank}", wall)
        unwritten = more("refrain:incidents_unwritten_total")
        return [] if unwritten else [Fault("I8", "serve", "a record that could not be written is not counted")]


def second_of_day(wall):
    """Of the local clock that the log's stamps show."""
    local = time.localtime(wall)
    return local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + wall % 1


def count_lost(records, errors_allowed=False, cuts_allowed=False):
    """Requests that did not come to an end that this fault allows."""
    lost = {"open"} | (set() if errors_allowed else {"error"}) | (set() if cuts_allowed else {"cut", "refused"})
    return sum(record.end in lost for record in records)


# ---- the damage

async def kill_rank(context):
    kill(context.server.pid(f"worker {context.rank}"), signal.SIGKILL)


async def kill_rank_of_group(context):
    group = context.rng.randrange(2)
    context.process = f"group {group} rank {context.rank}"
    context.notes["group"] = group
    kill(context.server.pid(f"worker {group}.{context.rank}"), signal.SIGKILL)


async def kill_coordinator(context):
    context.process = "coordinator"
    kill(context.server.pid("coordinator"), signal.SIGKILL)


async def kill_front(context):
    context.process = "front"
    kill(context.server.pid("front"), signal.SIGKILL)


async def stop_rank(context):
    await stop_process(context, context.server.pid(f"worker {context.rank}"), 10.0)


async def stop_process(context, pid, seconds):
    kill(pid, signal.SIGSTOP)
    begun = time.monotonic()

    async def go_on():
        while pid in context.server.tree() and time.monotonic() - begun < seconds:
            await asyncio.sleep(0.1)
        context.notes["stopped_s"] = round(time.monotonic() - begun, 2)
        kill(pid, signal.SIGCONT)
    task = asyncio.create_task(go_on())
    context.undo.append(task)


async def stage(context):
    """The fault that the workers were started with (--fault) begins."""
    kill(context.server.pid(f"worker {context.rank}"), signal.SIGUSR1)


async def disconnect_all(context):
    await context.wave.leave()


def of_role(damage, group):
    """What is done to a rank, of the prefill group (0) or the decode group (1)."""
    async def damage_it(context):
        context.process = f"group {group} rank {context.rank}"
        await damage(context, context.server.pid(f"worker {group}.{context.rank}"))
    return damage_it


async def kill_it(_context, pid):
    kill(pid, signal.SIGKILL)


async def stop_it(context, pid):
    await stop_process(context, pid, 10.0)


async def lose_transfers(context):
    """It happens by itself; in the end some must have been lost."""
    async def count():
        lost = (await context.server.metrics()).get("refrain:group_kv_transfers_failed_total", 0)
        context.notes["transfers_lost"] = lost
        if not lost:
            context.faults.append(Fault("R-13", "serve", "no transfer was lost"))
    context.undo.append(count())


async def churn(context):
    """Waves, one after the other, until reads that were held have come among blocks that others have by now; and all of them in the end."""
    begun, waves, most = time.monotonic(), 0, 0
    while time.monotonic() - begun < HELD_SECONDS + 5:
        records = await context.bench.open_wave(context.server).finish()
        context.faults += ledger.check_records(records, context.bench.rules())
        waves += 1
        most = max(most, (await context.server.metrics()).get(QUARANTINED, 0))
    context.notes.update(waves=waves, quarantined=most)
    if not most:
        context.faults.append(Fault("R-28", "serve", "no read was held"))

    async def drained():
        return (await context.server.metrics()).get(QUARANTINED) == 0
    context.undo.append(context.server.until(drained, HELD_SECONDS + 20, "the last read that was held is done"))


async def nothing(_context):
    pass


FRONT = ("--api-server-count", 1)
TWO_GROUPS = ("--data-parallel-size", 2)
ROLES = ("--prefill-groups", 1, "--decode-groups", 1, "--kv-transfer-policy", "always")
# A read that is lost costs its request this long.
LOSSY = (*ROLES, "--no-enable-prefix-caching", "--fault", "kind=lose,one_in=16", "--kv-transfer-timeout", 0.5)
QUARANTINED = "refrain:group_kv_transfers_quarantined"
HELD_SECONDS = 60
HELD = (*ROLES, "--no-enable-prefix-caching", "--num-gpu-blocks-override", 24, "--max-model-len", 256, "--kv-transfer-timeout", 0.5,
        "--fault", f"kind=hold,one_in=8,steps=1,ms={HELD_SECONDS * 1000}")

LIVE_FAULTS = [
    LiveFault("kill-rank", "kill -9 of a rank in the middle of a step", kill_rank),
    LiveFault("kill-coordinator", "kill -9 of the coordinator; no stream is cut", kill_coordinator, options=FRONT),
    LiveFault("kill-front", "kill -9 of the front, which has the connections", kill_front, options=FRONT, cuts=True),
    LiveFault("stop-rank", "SIGSTOP of a rank for 10 s", stop_rank),
    LiveFault("spin", "a rank's device thread spins", stage, options=("--fault", "kind=spin")),
    LiveFault("skip-collective", "a rank never launches a step's collectives", stage, options=("--fault", "kind=skip")),
    LiveFault("slow-rank", "a rank is 0.3 s late for eight steps; nothing may be killed", stage,
              options=("--fault", "kind=slow,ms=300,steps=8"), outage=False),
    LiveFault("oom-step", "out of device memory in a step", stage, options=("--fault", "kind=oom")),
    LiveFault("kill-group", "of two groups one loses a rank by kill -9; the server serves on", kill_rank_of_group, options=TWO_GROUPS,
              outage=False, spare=True),
    LiveFault("kill-coordinator-of-two", "kill -9 of the coordinator of two groups", kill_coordinator,
              options=(*FRONT, *TWO_GROUPS)),
    LiveFault("kill-prefill", "kill -9 of a rank that computes prompts; answers go on", of_role(kill_it, 0), options=ROLES, outage=False,
              spare=True),
    LiveFault("kill-decode", "kill -9 of a rank that computes answers; they go on elsewhere", of_role(kill_it, 1), options=ROLES,
              outage=False, spare=True),
    LiveFault("stop-prefill", "SIGSTOP of a rank that computes prompts for 10 s", of_role(stop_it, 0), options=ROLES, outage=False, spare=True),
    LiveFault("stop-decode", "SIGSTOP of a rank that computes answers for 10 s", of_role(stop_it, 1), options=ROLES, outage=False, spare=True),
    LiveFault("kill-coordinator-of-roles", "kill -9 of the coordinator of a prefill and a decode group", kill_coordinator,
              options=(*FRONT, *ROLES)),
    LiveFault("lose-transfers", "one read of blocks in 16 between a prefill and a decode group is lost", lose_transfers, options=LOSSY,
              outage=False),
    LiveFault("hold-transfers", f"reads of blocks are done {HELD_SECONDS} s late, as where the reader stood still, into pools of 24 blocks",
              churn, options=HELD, outage=False),
    LiveFault("decode-full", "the blocks of a decode group are too few for all answers", nothing,
              options=(*ROLES, "--num-gpu-blocks-override", 96), outage=False),
    LiveFault("disconnect-storm-of-roles", "all clients of a prefill and a decode group hang up at once", disconnect_all, options=ROLES,
              outage=False),
    LiveFault("disconnect-storm", "all clients hang up at once", disconnect_all, outage=False),
]
