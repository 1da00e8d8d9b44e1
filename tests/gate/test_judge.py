"""What judges is itself held: the numpy reference by transformers' tokens, the verdict by answers that are wrong."""
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from gate import cases, checkpoints, traffic, verdict  # noqa: E402
from gate.reference import Reference, numpy  # noqa: E402

FIXTURES = ROOT / "tests/fixtures/models"


@pytest.mark.parametrize("name", ["llama-sharded", "llama-bias-f32", "qwen2", "qwen3"])
def test_the_reference_gives_the_log_probabilities_of_transformers(name):
    entries = json.loads((FIXTURES / name / "expected.json").read_text())
    pairs = [(entry["prompt_ids"], entry["output_ids"]) for entry in entries]
    for entry, logprobs in zip(entries, Reference(FIXTURES / name).logprobs(pairs)):
        assert logprobs.argmax(-1).tolist() == entry["output_ids"]
        ordered = numpy.sort(logprobs, -1)
        assert numpy.allclose(ordered[:, -1] - ordered[:, -2], entry["margins"], atol=2e-3)
        for token, value in entry["first_top5_logprobs"]:
            assert logprobs[0, token] == pytest.approx(value, abs=2e-3)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A judge, and what a right run would have given it: the bfloat16 reference's own greedy tokens."""
    model = checkpoints.make(tmp_path_factory.mktemp("m"), checkpoints.SHAPES["kv2-of-64"])
    exact, low = Reference(model), Reference(model, bfloat16=True)
    rows = []
    for number, body in enumerate(traffic.make_bodies(traffic.Traffic(requests=6), 1024)):
        output, reported = [], []
        for _ in range(12):
            last = next(low.logprobs([(body["prompt"], output + [0])]))[-1]
            output.append(int(last.argmax()))
            reported.append(float(last.max()))
        rows.append((f"request {number}", body["prompt"], output, reported))
    return verdict.Judge(exact, low), rows


def test_right_tokens_pass(judged):
    judge, rows = judged
    assert verdict.faults_of(judge.distances(rows)) == []


def test_one_wrong_token_is_found_and_named(judged):
    judge, rows = judged
    name, prompt, output, reported = rows[3]
    wrong = [*output[:-1], (output[-1] + 500) % 1024]
    faults = verdict.faults_of(judge.distances([*rows[:3], (name, prompt, wrong, []), *rows[4:]]))
    assert any("worst" in fault and "below the best" in fault for fault in faults)
    assert "the worst is token 11 of request 3" in faults


@pytest.mark.parametrize("change", [lambda value: value - 1, lambda value: float("nan")])
def test_a_wrong_log_probability_of_a_right_token_is_found(judged, change):
    judge, rows = judged
    name, prompt, output, reported = rows[0]
    faults = verdict.faults_of(judge.distances([(name, prompt, output, [*reported[:-1], change(reported[-1])]), *rows[1:]]))
    assert any("reported" in fault for fault in faults)


@pytest.mark.parametrize(("tokens", "found"), [(1200, True), (900, False)])
def test_a_tail_counts_where_there_are_tokens_enough_for_it(tokens, found):
    every = [numpy.full(tokens, 0.3)]   # beyond the floor of the percentile, not of the worst
    faults = verdict.faults_of(verdict.Distances(gap=every, gap_theirs=[numpy.zeros(tokens)]))
    assert [fault for fault in faults if "p999" in fault] == faults and bool(faults) == found


def answer(**changes):
    good = {"prompt": [5], "max_tokens": 3, "status": 200, "text": ["t4 t5", " t6"], "usage": 3, "finish": "length"}
    return traffic.Answer(**(good | changes))


def test_an_answer_tells_its_tokens():
    assert traffic.output_ids(answer()) == [4, 5, 6]
    assert traffic.output_ids(answer(token_ids=[4, 5, 6])) == [4, 5, 6]


@pytest.mark.parametrize("changes", [
    {"status": 503}, {"error": "cut"}, {"text": ["t4 t5"]}, {"usage": 2}, {"finish": "stop"}, {"text": ["t4 word t6"]},
    {"token_ids": [4, 5, 7]}, {"token_ids": [4, 5]}])
def test_an_answer_that_is_not_whole_is_no_answer(changes):
    with pytest.raises(ValueError):
        traffic.output_ids(answer(**changes))


def metrics(**changes):
    values = {name: 0 for name in cases.MUST_BE_ZERO} | {
        "refrain:steps_total": 9, "refrain:audit_steps_total": 1, "refrain:num_preemptions_total": 1, "refrain:prefix_cache_hits_total": 16,
        "refrain:cascade_steps_total": 0} | changes
    lines = [f'{name}{{model_name="m"}} {value}' for name, value in values.items()]
    return "\n".join(["# HELP x", *lines, 'refrain:cudagraph_dispatch_total{mode="FULL"} 3',
                      'refrain:cudagraph_dispatch_total{mode="PIECEWISE"} 0'])


def faults_of_metrics(text, mode="FULL", small=True, cascade=False):
    outcome = cases.Outcome()
    cases.look_at_metrics(outcome, text, mode, small, cascade)
    return outcome.faults


def test_a_case_must_have_run_what_it_is_for():
    assert faults_of_metrics(metrics()) == []
    assert "needs ['FULL', 'PIECEWISE']" in faults_of_metrics(metrics(), mode="FULL_AND_PIECEWISE")[0]
    assert "preempted" in faults_of_metrics(metrics(**{"refrain:num_preemptions_total": 0}))[0]
    assert faults_of_metrics(metrics(**{"refrain:num_preemptions_total": 0}), small=False) == []
    assert "prefix" in faults_of_metrics(metrics(**{"refrain:prefix_cache_hits_total": 0}))[0]
    assert "cascade" in faults_of_metrics(metrics(), cascade=True)[0]
    assert faults_of_metrics(metrics(**{"refrain:cascade_steps_total": 3}), cascade=True) == []


@pytest.mark.parametrize("name", cases.MUST_BE_ZERO)
def test_a_restart_is_a_failure(name):
    assert faults_of_metrics(metrics(**{name: 1})) == [f"{name} is 1"]
    assert faults_of_metrics(metrics().replace(name, "refrain:other")) == [f"{name} is missing from /metrics"]


def test_a_run_without_an_audited_step_is_a_failure():
    assert faults_of_metrics(metrics(**{"refrain:audit_steps_total": 0})) == ["no step was audited"]
