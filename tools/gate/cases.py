"""One case of the gate: a server in one mode under one traffic, then the evidence of what ran and the distances of its tokens."""
import re
from dataclasses import dataclass, field

from pathlib import Path

from drills.client import Broken
from drills.server import Server

from gate import traffic as load
from gate import verdict

MODES = {"NONE": {"NONE"}, "PIECEWISE": {"PIECEWISE"}, "FULL": {"FULL"}, "FULL_DECODE_ONLY": {"FULL", "NONE"},
         "FULL_AND_PIECEWISE": {"FULL", "PIECEWISE"}}
SMALL = ["--max-num-seqs", 16, "--max-num-batched-tokens", 64, "--max-model-len", 512, "--num-gpu-blocks-override", 40,
         "--cudagraph-capture-sizes", "1,4,8,32,64"]
AUDIT_RATE = 0.05
ALONE = 4                        # requests sent one after the other before the others arrive
AT_ONCE = 3                      # rounds of all requests at once, at most
MUST_BE_ZERO = ("refrain:worker_group_restarts_total", "refrain:requests_resumed_total",
                "refrain:request_failure_total", "refrain:requests_refused_total", "refrain:audit_differences_total")


@dataclass
class Outcome:
    faults: list = field(default_factory=list)
    evidence: dict = field(default_factory=dict)
    judged: dict = field(default_factory=dict)   # by the adapter's name, "" without: [(name, prompt, output, log-probabilities)]
    distances: verdict.Distances | None = None


def metrics_of(text):
    """({name: sum over labels}, runtime modes that steps ran in)"""
    values, modes = {}, {}
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        label, value = line.rsplit(" ", 1)
        name = label.split("{")[0]
        values[name] = values.get(name, 0.0) + float(value)
        if name == "refrain:cudagraph_dispatch_total":
            mode = re.search(r'mode="(\w+)"', label)[1]
            modes[mode] = modes.get(mode, 0.0) + float(value)
    return values, {mode for mode, count in modes.items() if count > 0}


def audit_options():
    """The audit of replayed steps (CG-41) is on."""
    return ["--audit-rate", AUDIT_RATE]


def faults_of_metrics(values):
    """What no load without a planted fault may leave in the metrics."""
    faults = [f"{name} is missing from /metrics" for name in MUST_BE_ZERO if name not in values]
    if values.get("refrain:audit_steps_total", 0) == 0:
        faults.append("no step was audited")
    return faults + [f"{name} is {values[name]:g}" for name in MUST_BE_ZERO if values.get(name, 0) != 0]


async def fetch_metrics(server):
    """The text of /metrics; RuntimeError with the end of the log when there is none."""
    try:
        status, text = await server.client.fetch("/metrics")
    except (OSError, Broken, TimeoutError) as error:
        raise RuntimeError(f"the server does not answer any more ({error}); the end of its log:\n{server.log_text()[-1500:]}") from error
    if status != 200:
        raise RuntimeError(f"/metrics answers {status}: {text[:200]}")
    return text


async def run_case(binaries, model, vocab, mode, options, traffic, small=True, adapters=()):
    """Serves and asks. `small`: cache and steps are so small that preemption and chunks must be seen. `adapters`: names that the
    options made known; requests ask for the model and each of them in turns."""
    outcome, answers = Outcome(), []
    server = Server(binaries, model, ["--dtype", "bfloat16", "--cudagraph-mode", mode, "--log-stats-interval", 0, "--max-queue-wait", 0, *audit_options(), *options])
    try:
        await server.start()
        bodies = load.make_bodies(traffic, vocab, adapters)
        longest = max(bodies[:ALONE], key=lambda body: len(body["prompt"]))   # whose blocks are there the second time
        answers = await load.send_alone(server.port, [*bodies[:ALONE], longest, longest])
        answers += await load.send_as_they_arrive(server.port, bodies[ALONE:], traffic.rate, traffic.seed)
        # The same once more, all at once, over what the cache holds of them now; again where a slow client sent them
        # so late that none met another.
        for _ in range(AT_ONCE):
            answers += await load.send_as_they_arrive(server.port, bodies, 0, traffic.seed)
            metrics = await fetch_metrics(server)
            if not small or metrics_of(metrics)[0]["refrain:num_preemptions_total"]:
                break
        look_at_metrics(outcome, metrics, mode, small, cascade=traffic.prefix_of_all > 0)
    except RuntimeError as error:
        outcome.faults.append(str(error))
    finally:
        code = await server.stop()
        server.remove_home()
    if code != 0:
        outcome.faults.append(f"serve ended with {code}")
    for number, answer in enumerate(answers):
        name = f"request {number} ({len(answer.prompt)} + {answer.max_tokens})"
        try:
            outcome.judged.setdefault(answer.model, []).append((name, answer.prompt, load.output_ids(answer), answer.logprobs))
        except ValueError as error:
            outcome.faults.append(f"{name}: {error}")
    if not all(answer.token_ids for answer in answers):
        outcome.faults.append("an answer has no token_ids")
    return outcome


def look_at_metrics(outcome, text, mode, small, cascade=False):
    values, modes = metrics_of(text)
    outcome.evidence = {"modes": modes, "steps": values["refrain:steps_total"],
                        "preemptions": values["refrain:num_preemptions_total"],
                        "prefix_hits": values["refrain:prefix_cache_hits_total"],
                        "cascade_steps": values["refrain:cascade_steps_total"]}
    outcome.faults += faults_of_metrics(values)
    if not MODES[mode] <= modes:
        outcome.faults.append(f"steps ran in {sorted(modes)}: a case of {mode} needs {sorted(MODES[mode])}")
    if not outcome.evidence["prefix_hits"]:
        outcome.faults.append("no prompt was found in the prefix cache: the case shows nothing of it")
    if cascade and not outcome.evidence["cascade_steps"]:
        outcome.faults.append("no step read the prefix of all prompts once: the case shows nothing of cascade attention")
    if small and not outcome.evidence["preemptions"]:
        outcome.faults.append("nothing was preempted: the case shows nothing of it")


def judge_case(outcome, judges):
    """`judges` by the adapter's name."""
    if outcome.judged:
        outcome.distances = verdict.Distances()
        for adapter, answers in outcome.judged.items():
            outcome.distances.add(judges[adapter].distances(answers))
        outcome.faults += verdict.faults_of(outcome.distances)
    return outcome
