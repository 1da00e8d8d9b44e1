"""The ledger I1 to I8: what must hold for every request and process after a load or a fault. Pure: records in, faults out."""
import dataclasses
from dataclasses import dataclass, field

RULES = {
    "I1": "every accepted request has one terminal record",
    "I2": "streams have no gap and no repeat",
    "I3": "output equals that of the fault-free run",
    "I4": "no token of another request",
    "I5": "one second after idle all KV blocks are free",
    "I6": "memory, descriptors, threads, files and processes are back at the baseline",
    "I7": "errors are OpenAI-shaped and in time",
    "I8": "the incident record names the process and its last step",
}


@dataclass(frozen=True)
class Fault:
    """A broken rule, and where."""
    rule: str
    where: str
    what: str

    def __str__(self):
        return f"{self.rule} {self.where}: {self.what}"


@dataclass
class Record:
    """What a client saw of one streamed request. `end` is one of:
    complete   [DONE] after a finish reason
    error      an error body or an error event
    cut        the connection ended in the middle of the answer
    refused    no connection, or none was answered
    left       the client itself hung up
    open       none of these: the client gave up waiting
    """
    name: str
    marker: str = ""                 # a word of this request's prompt that no other prompt has
    words: frozenset | None = None   # the only words its output may have; None: any
    begun: float = 0.0
    ended: float = 0.0
    status: int = 0
    end: str = "open"
    ids: set = field(default_factory=set)          # the server's names for it
    pieces: list = field(default_factory=list)     # (time, text)
    offsets: list = field(default_factory=list)    # (told, seen): text_offset of a token, and where the stream was
    tokens: int = 0                                # told one by one; 0 when the request did not ask for that
    finishes: list = field(default_factory=list)
    errors: list = field(default_factory=list)     # JSON bodies
    dones: int = 0
    after_end: int = 0                             # events after [DONE]
    usage: int | None = None                       # completion tokens, as the server counts
    broken: list = field(default_factory=list)     # what the client could not read

    @property
    def text(self):
        return "".join(text for _, text in self.pieces)


@dataclass
class Rules:
    """What a fault may do to the requests that it meets."""
    max_tokens: dict                 # name -> tokens of a complete answer
    reference: dict                  # name -> text of the fault-free run
    agreed: dict = field(default_factory=dict)   # name -> characters of it that hold, where not all do
    errors_allowed: bool = False     # requests may end with an explicit error
    cuts_allowed: bool = False       # the listening process itself was killed: connections end
    error_deadline: float = 30.0     # seconds from `since` (or the request's begin) to an error
    since: float = 0.0


def check_end(record, rules):
    """I1 of one record."""
    def fault(what):
        return Fault("I1", record.name, what)
    if record.end == "open":
        yield fault("no terminal record")
    elif record.end == "complete":
        if len(record.finishes) != 1:
            yield fault(f"{len(record.finishes)} finish reasons")
        if record.dones != 1:
            yield fault(f"{record.dones} times [DONE]")
        if record.errors:
            yield fault("complete, and with an error as well")
    elif record.end == "error":
        if not rules.errors_allowed:
            yield fault(f"ended with an error: {record.errors[0] if record.errors else '(no body)'}")
        if len(record.errors) != 1 or record.finishes:
            yield fault(f"{len(record.errors)} errors, {len(record.finishes)} finish reasons")
    elif record.end in ("cut", "refused") and not rules.cuts_allowed:
        yield fault(f"{record.end} after {len(record.pieces)} pieces")
    if record.after_end:
        yield fault(f"{record.after_end} events after the end")
    if len(record.ids) > 1:
        yield fault(f"answers of {len(record.ids)} ids: {sorted(record.ids)}")
    for what in record.broken:
        yield fault(f"unreadable: {what}")


def check_stream(record, rules):
    """I2 of one record."""
    wrong = [pair for pair in record.offsets if pair[0] != pair[1]]
    if wrong:
        yield Fault("I2", record.name, f"a token is said to be at {wrong[0][0]}, the stream is at {wrong[0][1]}")
    if record.end == "complete":
        want = rules.max_tokens[record.name]
        if record.usage != want:
            yield Fault("I2", record.name, f"usage counts {record.usage} tokens, {want} were asked for")
        if record.tokens and record.tokens != want:
            yield Fault("I2", record.name, f"{record.tokens} tokens streamed, {want} were asked for")


def common_length(texts):
    """Characters with which all begin."""
    least, most = min(texts), max(texts)
    return next((i for i, (a, b) in enumerate(zip(least, most)) if a != b), len(least))


def agreement(waves):
    """{name: characters on which all fault-free waves agree} of the requests in which they differ; `waves`: {name: text} each."""
    agreed = {}
    for name in waves[0]:
        texts = [wave[name] for wave in waves]
        if len(set(texts)) > 1:
            agreed[name] = common_length(texts)
    return agreed


def check_text(record, rules):
    """I3 of one record: equal, or the beginning of it when the request ended early. Of a request in which fault-free runs
    differ, what they have in common must be there."""
    want, text = rules.reference.get(record.name), record.text
    if want is None:
        return
    if record.name in rules.agreed:
        want = want[:rules.agreed[record.name]]
        text = text[:len(want)]
    if record.end == "complete" and text != want:
        at = common_length([text, want])
        yield Fault("I3", record.name, f"differs at character {at}: {text[at:at + 20]!r}, "
                                       f"without a fault {want[at:at + 20]!r}")
    elif not want.startswith(text):
        yield Fault("I3", record.name, f"{len(record.text)} characters before its end ({record.end}) are not those of the "
                                       "fault-free run")


def check_strangers(record, markers):
    """I4 of one record."""
    text = record.text
    if record.words is not None:
        # The last word may be half there when the stream ended early.
        seen = text.split()
        if record.end != "complete" and seen and not text[-1].isspace():
            seen = seen[:-1]
        strange = [word for word in seen if word not in record.words]
        if strange:
            yield Fault("I4", record.name, f"words that it may not say: {strange[:4]}")
    for name, marker in markers.items():
        if name != record.name and marker and marker in text:
            yield Fault("I4", record.name, f"has the marker of {name}")


def check_errors(record, rules):
    """I7 of one record."""
    def fault(what):
        return Fault("I7", record.name, what)
    for body in record.errors:
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict) or not {"message", "type", "param", "code"} <= error.keys():
            yield fault(f"not an OpenAI error: {str(body)[:120]}")
        elif not (isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)):
            yield fault(f"message or type is not a text: {str(error)[:120]}")
    if record.end == "error":
        took = record.ended - max(record.begun, rules.since)
        if took > rules.error_deadline:
            yield fault(f"its error came after {took:.1f} s, the limit is {rules.error_deadline:.1f} s")
        if not record.pieces and record.status == 200 and not record.errors:
            yield fault("an error without a body")


def check_records(records, rules):
    """I1 to I4 and I7."""
    faults = []
    markers = {record.name: record.marker for record in records}
    owner = {}
    for record in records:
        for rule in (check_end(record, rules), check_stream(record, rules), check_text(record, rules),
                     check_strangers(record, markers), check_errors(record, rules)):
            faults.extend(rule)
        for server_id in record.ids:
            other = owner.setdefault(server_id, record.name)
            if other != record.name:
                faults.append(Fault("I1", record.name, f"has the id {server_id} of {other}"))
    return faults


UNMOVED = {"refrain:worker_group_restarts_total": "worker groups were lost",
           "refrain:requests_resumed_total": "requests had to be resumed",
           "refrain:requests_without_logit_total": "requests had no finite logit"}


def check_undisturbed(before, after):
    """R-21: /metrics before and after what had no planted fault. Resuming hides a loss from every client, not from these."""
    faults = []
    for name, what in UNMOVED.items():
        if name not in before or name not in after:
            faults.append(Fault("R-21", "server", f"{name} is not in /metrics"))
        elif after[name] != before[name]:
            faults.append(Fault("R-21", "server", f"without a planted fault {after[name] - before[name]:.0f} {what}"))
    return faults


def check_audit(metrics):
    """CG-41, with and without a planted fault: what graphs computed agrees with eager runs of the same steps."""
    differences = metrics.get("refrain:audit_differences_total")
    if differences is None:
        return [Fault("CG-41", "server", "refrain:audit_differences_total is not in /metrics")]
    return [Fault("CG-41", "server", f"audits found {differences:.0f} differences")] if differences else []


def check_audited(before, after, rate):
    """That there were audits at all, after steps enough for two."""
    steps, audited = (after.get(name, 0) - before.get(name, 0) for name in ("refrain:steps_total", "refrain:audit_steps_total"))
    return [Fault("CG-41", "server", f"none of {steps:.0f} steps was audited")] if steps * rate >= 2 and not audited else []


def check_blocks(usage):
    """I5: the share of the KV cache in use, one second after idle; None: it could not be read."""
    if usage is None:
        return [Fault("I5", "server", "the share of used KV blocks is not in /metrics")]
    return [Fault("I5", "server", f"{usage:.4%} of the KV blocks are in use")] if usage > 0 else []


BUSY = {"refrain:num_requests_running": "requests run", "refrain:num_requests_waiting": "requests wait",
        "refrain:steps_in_flight": "steps run"}


def check_busy(metrics):
    """I1: what nobody waits for, the step that runs when its clients leave included; the second of I5 begins when there is none."""
    return [Fault("I1", "server", f"{metrics[name]:.0f} {what}, and no client waits") for name, what in BUSY.items()
            if metrics.get(name)]


MOVING = {"refrain:group_kv_leases": "leases are held", "refrain:group_kv_transfers_running": "transfers run",
          "refrain:group_kv_transfers_quarantined": "transfers are in quarantine"}


def check_idle(metrics):
    """I5: no block is in use, and between groups with roles nothing is on its way or held."""
    faults = check_blocks(metrics.get("refrain:kv_cache_usage_perc"))
    return faults + [Fault("I5", "server", f"{metrics[name]:.0f} {what}") for name, what in MOVING.items() if metrics.get(name)]


@dataclass
class Resources:
    """Of a server's processes: by role (serve, front, coordinator, worker 0, …), and what lies on disk."""
    processes: dict = field(default_factory=dict)   # role -> {"rss": bytes, "fds": n, "threads": n}
    files: frozenset = frozenset()                  # names without numbers of processes


RSS_FACTOR, RSS_SLACK = 1.25, 48 << 20


def check_resources(before, after):
    """I6."""
    faults = []
    if before.processes.keys() != after.processes.keys():
        faults.append(Fault("I6", "processes", f"{sorted(after.processes)}, before {sorted(before.processes)}"))
    for role, was in before.processes.items():
        now = after.processes.get(role)
        if now is None:
            continue
        for what in ("fds", "threads"):
            if now[what] != was[what]:
                faults.append(Fault("I6", role, f"{now[what]} {what}, before {was[what]}"))
        if now["rss"] > was["rss"] * RSS_FACTOR + RSS_SLACK:
            faults.append(Fault("I6", role, f"{now['rss'] >> 20} MiB, before {was['rss'] >> 20} MiB"))
    for name in sorted(after.files - before.files):
        faults.append(Fault("I6", "files", f"left behind: {name}"))
    for name in sorted(before.files - after.files):
        faults.append(Fault("I6", "files", f"gone: {name}"))
    return faults


def check_incident(incidents, process):
    """I8. `incidents`: records like {"process": text, "lagging_rank": number, "step": number}, oldest first; the first one
    must name the process: "coordinator", "front", or "rank N" ("group G rank N" of several) by its end or as the one that lags."""
    if not incidents:
        return [Fault("I8", process, "no incident record")]
    incident, faults = incidents[0], []
    of_group = f"group {incident['group']} " if "group" in incident else ""
    if process not in str(incident.get("process", "")) and process != f"{of_group}rank {incident.get('lagging_rank')}":
        faults.append(Fault("I8", process, f"the record names {incident.get('process')!r}, and as lagging rank "
                                           f"{incident.get('lagging_rank')}"))
    if not isinstance(incident.get("step"), int):
        faults.append(Fault("I8", process, "the record has no last step"))
    return faults


def summary(faults):
    """{"I1": 2, …} for a report; rules without a fault are left out."""
    counts = {}
    for fault in faults:
        counts[fault.rule] = counts.get(fault.rule, 0) + 1
    return dict(sorted(counts.items()))


def as_json(faults):
    return [dataclasses.asdict(fault) for fault in faults]
