"""How far each token is from the best: the distances of a run beside those of a bfloat16 reference on the same tokens."""
from dataclasses import dataclass, field

import numpy

# The bound: so many times the reference's own distance, as rounding falls otherwise and a thousand tokens say little of a
# 99.9th percentile; or the floor, where the reference was lucky. A wrong token of these models is 1 to 10 below the best.
FACTOR, FLOOR = {"p999": 2.0, "worst": 2.5}, {"p999": 0.2, "worst": 0.4}
LEAST = 1000   # tokens; of fewer the percentile is the worst one, which has a bound of its own
KINDS = {"gap": "log-probability below the best", "error": "error of the reported log-probability"}


@dataclass
class Distances:
    """Of every token judged. `theirs`: of the bfloat16 reference at the same places."""
    gap: list = field(default_factory=list)
    gap_theirs: list = field(default_factory=list)
    error: list = field(default_factory=list)
    error_theirs: list = field(default_factory=list)
    worst: tuple = (0.0, "")

    def add(self, other):
        for name in ("gap", "gap_theirs", "error", "error_theirs"):
            getattr(self, name).extend(getattr(other, name))
        self.worst = max(self.worst, other.worst)

    def figures(self):
        def pair(values):
            values = numpy.concatenate(values) if values else numpy.zeros(1)
            return {"count": len(values), "p999": float(numpy.quantile(values, 0.999)), "worst": float(values.max())}
        return {name: pair(getattr(self, name)) for name in ("gap", "gap_theirs", "error", "error_theirs")}


class Judge:
    """Distances by (prompt, output); what modes have in common is computed once."""

    def __init__(self, exact, low):
        self.exact, self.low, self.known = exact, low, {}

    def learn(self, pairs):
        new = list({key(pair): pair for pair in pairs if key(pair) not in self.known}.values())
        for pair, exact, low in zip(new, self.exact.logprobs(new), self.low.logprobs(new)):
            rows, output = numpy.arange(len(pair[1])), numpy.array(pair[1])
            best, chosen = exact.max(-1), exact[rows, output]
            self.known[key(pair)] = (best - chosen, best - exact[rows, low.argmax(-1)], chosen,
                                     numpy.abs(low[rows, output] - chosen))

    def distances(self, judged):
        """Of (name, prompt ids, output ids, log-probabilities that were reported, maybe none)."""
        self.learn([(prompt, output) for _, prompt, output, _ in judged])
        found = Distances()
        for name, prompt, output, reported in judged:
            gap, gap_theirs, chosen, error_theirs = self.known[key((prompt, output))]
            found.gap.append(gap)
            found.gap_theirs.append(gap_theirs)
            if reported:
                found.error.append(numpy.abs(numpy.array(reported) - chosen))
                found.error_theirs.append(error_theirs)
            if gap.max() > found.worst[0]:
                found.worst = (float(gap.max()), f"token {int(gap.argmax())} of {name}")
        return found


def key(pair):
    return tuple(pair[0]), tuple(pair[1])


def faults_of(distances):
    """What is beyond the bounds, in words."""
    figures, faults = distances.figures(), []
    for kind, what in KINDS.items():
        for name in ("p999", "worst") if figures[kind]["count"] >= LEAST else ("worst",):
            ours, theirs = figures[kind][name], figures[kind + "_theirs"][name]
            bound = max(FLOOR[name], FACTOR[name] * theirs)
            if not ours <= bound:   # NaN too
                faults.append(f"{what}, {name}: {ours:.3f} is more than {bound:.3f} (reference {theirs:.3f})")
    if any("best" in fault and "worst" in fault for fault in faults):
        faults.append(f"the worst is {distances.worst[1]}")
    return faults
