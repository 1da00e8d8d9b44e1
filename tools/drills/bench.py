"""The ground that every drill stands on: servers, waves of streams, probes, and the ledger after them."""
import asyncio
import math
import random
import time
from dataclasses import dataclass, field

from drills import ledger
from drills.client import new_record
from drills.incident import incidents_since
from drills.ledger import Fault, Record
from drills.server import Server

WAVE_SECONDS = 300    # after that a stream counts as lost
SETTLE_SECONDS = 4.0  # for descriptors and processes of what was lost
STEP_SECONDS = 20.0  # for a step that runs: nothing stops it, and drills may run on a busy machine
BLOCK = 16            # tokens of a KV block


@dataclass
class Settings:
    binaries: str
    model: str
    requests: list
    options: list            # of every server
    streams: int
    seed: int
    tensor_parallel_size: int
    device: str = "host"     # or "cuda"
    compare: str = "text"    # I3: "text", all of it; "agreed", that on which fault-free waves agree; "off"
    audit_rate: float = 0    # as in the options


@dataclass
class Outcome:
    """Of one repeat. Seconds from the moment of the fault; None: it did not come to it."""
    repeat: int
    detected: float | None = None
    served: float | None = None
    lost: int = 0        # accepted requests without a terminal record, or cut where they may not be
    cut: int = 0         # connections that ended with the process that held them
    faults: list = field(default_factory=list)
    notes: dict = field(default_factory=dict)
    seconds: float | None = None   # that the repeat took

    def as_json(self):
        return {"repeat": self.repeat, "seconds": rounded(self.seconds), "detected_s": rounded(self.detected), "served_s": rounded(self.served),
                "lost": self.lost, "cut": self.cut, "ledger": ledger.as_json(self.faults), **self.notes}


def rounded(seconds):
    return None if seconds is None else round(seconds, 3)


class Wave:
    """All requests as open streams at once."""

    def __init__(self, server, requests):
        self.server = server
        self.requests = requests
        self.records = [new_record(request) for request in requests]
        self.pieces = 0
        self.total = sum(request.max_tokens for request in requests)
        self.tasks = [asyncio.create_task(server.client.stream(record, request.body, self.count))
                      for record, request in zip(self.records, requests)]

    def count(self, _record):
        self.pieces += 1

    async def reach(self, share, seconds=WAVE_SECONDS):
        """Waits until this share of all tokens has come."""
        limit = time.monotonic() + seconds
        while self.pieces < share * self.total:
            if time.monotonic() > limit or all(task.done() for task in self.tasks):
                return
            await asyncio.sleep(0.005)

    async def finish(self, seconds=WAVE_SECONDS):
        """Waits for all; what has not ended by then stays open in its record."""
        _, late = await asyncio.wait(self.tasks, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        for record, task in zip(self.records, self.tasks):
            if task in late and record.end == "left":
                record.end = "open"
        return self.records

    async def leave(self):
        """All clients hang up at once."""
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


class Bench:
    def __init__(self, settings):
        self.settings = settings
        self.reference = {}
        self.fault_free = []  # {name: text} of every wave without a fault
        self.agreed = {}      # see ledger.agreement
        self.noise = None     # of the device, as measured: for the report
        self.shared = {}      # key -> (server, resources at rest)

    # ---- servers

    def new_server(self, *options, **kwargs):
        if "--max-restarts" not in options:
            options += ("--max-restarts", 1000000)
        kept = list(self.settings.options)
        for name in ("--num-gpu-blocks-override", "--max-model-len"):   # given once
            if name in options and name in kept:
                del kept[kept.index(name):kept.index(name) + 2]
        return Server(self.settings.binaries, self.settings.model, [*kept, *options], **kwargs)

    async def shared_server(self, fault=None):
        """A warm server for this fault, made on first use and again when it is gone; and its resources at rest."""
        key = fault.server_key if fault else ((), None)
        server, baseline = self.shared.get(key, (None, None))
        if server is not None and not server.ended():
            return server, baseline
        if server is not None:
            await self.retire(key)
        options, make_kwargs = key
        server = self.new_server(*options, **(make_kwargs(self.settings) if make_kwargs else {}))
        try:
            await server.start()
            faults = await self.warm_up(server)
            if faults:
                raise RuntimeError("without any fault the ledger is not clean: " + "; ".join(map(str, faults[:5])))
            self.shared[key] = (server, await self.at_rest(server))
        except RuntimeError:
            await server.stop()
            raise
        return self.shared[key]

    async def retire(self, key):
        """Ends a shared server; what it leaves behind."""
        server, _ = self.shared.pop(key)
        return await self.end_server(server)

    async def end_server(self, server, code=0):
        got = server.process.returncode if server.ended() else await server.stop()
        faults = [] if got == code else [Fault("R-8", "serve", f"ended with {got}, not {code}")]
        faults += [Fault("I6", "files", f"left behind: {what}") for what in await server.leftovers()]
        if not faults:
            server.remove_home()
        return faults

    async def at_rest(self, server, seconds=SETTLE_SECONDS):
        """Resources when they have been the same twice."""
        await asyncio.sleep(1.0)
        before, limit = server.resources(), time.monotonic() + seconds
        while time.monotonic() < limit:
            await asyncio.sleep(0.2)
            now = server.resources()
            if not ledger.check_resources(before, now) and not ledger.check_resources(now, before):
                return now
            before = now
        return before

    # ---- requests

    def rules(self, **kwargs):
        return ledger.Rules(max_tokens={request.name: request.max_tokens for request in self.settings.requests},
                            reference={} if self.settings.compare == "off" else self.reference, agreed=self.agreed, **kwargs)

    def open_wave(self, server):
        return Wave(server, self.settings.requests)

    async def warm_up(self, server):
        """A wave without a fault: the first one gives the reference, each is checked, or is one more that must agree."""
        before = await server.metrics()
        records = await self.open_wave(server).finish()
        after = await server.metrics()
        disturbed = ledger.check_undisturbed(before, after) + ledger.check_audit(after)
        disturbed += ledger.check_audited(before, after, self.settings.audit_rate)
        self.fault_free.append({record.name: record.text for record in records})
        self.reference = self.fault_free[0]
        if self.settings.compare == "agreed":
            self.agreed = ledger.agreement(self.fault_free)
        return disturbed + ledger.check_records(records, self.rules())

    async def make_reference(self):
        """A server of its own for one wave; what was wrong with it."""
        key = ((), None)
        await self.shared_server()
        return await self.retire(key)

    async def measure_noise(self):
        """How far texts differ without any fault: after a wave, another one, and two on a server with a third of the KV blocks
        that they need, where other requests meet in a step and some are preempted and computed again, as after a loss."""
        server, _ = await self.shared_server()
        tokens = ((await server.metrics())["refrain:prompt_tokens_total"] +
                  sum(request.max_tokens for request in self.settings.requests))
        faults = await self.warm_up(server)
        again = len(ledger.agreement(self.fault_free))
        model_len = int(self.settings.options[self.settings.options.index("--max-model-len") + 1])
        blocks = math.ceil(max(model_len / BLOCK + 1, tokens / BLOCK / 3))
        tight = self.new_server("--num-gpu-blocks-override", blocks, "--no-enable-prefix-caching")
        try:
            await tight.start()
            for _ in range(2):
                faults += await self.warm_up(tight)
            preemptions = (await tight.metrics()).get("refrain:num_preemptions_total", 0)
        finally:
            faults += await self.end_server(tight)
        self.noise = {"waves": len(self.fault_free), "requests": len(self.reference), "differ_in_equal_waves": again,
                      "preemptions": preemptions, "differ": len(self.agreed),
                      "share_of_text_agreed": round(self.agreed_share(), 4)}
        return faults

    def agreed_share(self):
        lengths = {name: len(text) for name, text in self.reference.items()}
        return sum({**lengths, **self.agreed}.values()) / max(1, sum(lengths.values()))

    async def probe(self, server, seconds=WAVE_SECONDS):
        """When the first token of a small request came that was sent from now on; None: none did."""
        limit = time.monotonic() + seconds
        body = {"prompt": self.settings.requests[0].body["prompt"], "max_tokens": 1, "ignore_eos": True, "stream": True,
                "temperature": 0, "stream_options": {"include_usage": True}, "logprobs": 0}
        while time.monotonic() < limit and not server.ended():
            record = Record(name="probe")
            try:
                async with asyncio.timeout(limit - time.monotonic()):
                    await server.client.stream(record, body)
            except TimeoutError:
                return None
            if record.end == "complete" and record.pieces:
                return record.pieces[0][0]
            await asyncio.sleep(0.02)
        return None

    # ---- the ledger after a fault

    async def check_rest(self, server, baseline):
        """Idle soon, I5 within a second after that, I6, and CG-41."""
        async def faults_after(check, seconds):
            limit = time.monotonic() + seconds
            while (faults := check(await server.metrics())) and time.monotonic() < limit:
                await asyncio.sleep(0.05)
            return faults
        faults = await faults_after(ledger.check_busy, STEP_SECONDS)
        faults += await faults_after(ledger.check_idle, 1.0)
        limit = time.monotonic() + SETTLE_SECONDS
        while (wrong := ledger.check_resources(baseline, server.resources())) and time.monotonic() < limit:
            await asyncio.sleep(0.2)
        return faults + wrong + ledger.check_audit(await server.metrics())

    def check_incident(self, server, process, since):
        return ledger.check_incident(incidents_since(server.incidents, since), process)


def generator(seed, *names):
    """A random generator of its own for every fault and repeat."""
    return random.Random("/".join(map(str, (seed, *names))))
