"""The ledger of the drills: a clean record gives no fault, and for each rule I1 to I8 a bad one is found."""
import dataclasses

import pytest
from drills import ledger
from drills.ledger import Record, Resources, Rules

ERROR = {"error": {"message": "the workers were lost", "type": "server_error", "param": None, "code": None}}


def record(**changes):
    """A complete answer of three tokens, told one by one."""
    base = Record(name="a", marker="zq1x", words=frozenset({"cat", "dog"}), begun=1.0, ended=2.0, status=200, end="complete",
                  ids={"cmpl-1"}, pieces=[(1.1, " cat"), (1.2, " dog"), (1.3, " cat")], offsets=[(0, 0), (4, 4), (8, 8)],
                  tokens=3, finishes=["length"], dones=1, usage=3)
    return dataclasses.replace(base, **changes)


def rules(**changes):
    return dataclasses.replace(Rules(max_tokens={"a": 3, "b": 3}, reference={"a": " cat dog cat"}), **changes)


def broken(records, given=None):
    return {fault.rule for fault in ledger.check_records(records, given or rules())}


def test_a_clean_record_breaks_no_rule():
    assert broken([record()]) == set()


@pytest.mark.parametrize("changes", [
    {"end": "open"}, {"end": "cut"}, {"end": "refused", "ids": set(), "pieces": [], "offsets": []}, {"finishes": []},
    {"finishes": ["length", "length"]}, {"dones": 2}, {"after_end": 1}, {"ids": {"cmpl-1", "cmpl-2"}}, {"errors": [ERROR]},
    {"end": "error", "errors": [ERROR], "finishes": []}, {"broken": ["no JSON"]}])
def test_I1_one_terminal_record(changes):
    assert "I1" in broken([record(**changes)])


def test_I1_two_requests_do_not_share_an_id():
    assert "I1" in broken([record(), record(name="b", marker="zq2x")])


def test_I1_allows_what_the_fault_may_do():
    ended = record(end="error", errors=[ERROR], finishes=[], dones=0, usage=None)
    assert broken([ended], rules(errors_allowed=True)) == set()
    cut = record(end="cut", finishes=[], dones=0, usage=None)
    assert broken([cut], rules(cuts_allowed=True)) == set()
    assert "I1" in broken([record(end="open")], rules(errors_allowed=True, cuts_allowed=True))


@pytest.mark.parametrize("changes", [
    {"offsets": [(0, 0), (8, 4)]}, {"offsets": [(0, 0), (4, 4), (4, 8)]}, {"usage": 2}, {"usage": None}, {"tokens": 4}])
def test_I2_a_gap_or_a_repeat(changes):
    assert "I2" in broken([record(**changes)])


@pytest.mark.parametrize("pieces", [
    [(1.1, " cat"), (1.2, " cat"), (1.3, " dog")], [(1.1, " cat"), (1.2, " dog")],
    [(1.1, " cat"), (1.2, " dog"), (1.3, " cat"), (1.4, " cat")]])
def test_I3_another_text(pieces):
    assert "I3" in broken([record(pieces=pieces)])


def test_I3_what_came_before_an_error_must_be_the_beginning():
    good = record(end="error", errors=[ERROR], finishes=[], pieces=[(1.1, " cat")], offsets=[(0, 0)])
    assert "I3" not in broken([good], rules(errors_allowed=True))
    bad = dataclasses.replace(good, pieces=[(1.1, " dog")])
    assert "I3" in broken([bad], rules(errors_allowed=True))


# Texts of three waves without a fault, on a device whose sums depend on the batch.
WAVES = [{"a": " the cat sat on a mat", "b": " one two three", "c": " so it goes"},
         {"a": " the cat sat on a mat", "b": " one two four", "c": " so it goes"},
         {"a": " the cat sits on it", "b": " one two three", "c": " so it goes"}]


def test_I3_what_fault_free_waves_agree_on():
    assert ledger.agreement(WAVES[:1]) == {}
    assert ledger.agreement(WAVES[:2]) == {"b": len(" one two ")}
    assert ledger.agreement(WAVES) == {"a": len(" the cat s"), "b": len(" one two ")}
    assert ledger.agreement([{"a": "cat"}, {"a": "catalogue"}, {"a": ""}]) == {"a": 0}


@pytest.mark.parametrize("name, text, end, right", [
    ("a", " the cat sat on a mat", "complete", True), ("a", " the cat sleeps", "complete", True),
    ("a", " the dog sat on a mat", "complete", False), ("a", " the cat", "complete", False), ("a", " the cat", "error", True),
    ("a", " the cat sleeps", "error", True), ("a", " the d", "error", False), ("c", " so it goes", "complete", True),
    ("c", " so it went", "complete", False), ("c", " so it", "complete", False), ("c", " so it", "error", True)])
def test_I3_is_judged_on_what_they_agree_on(name, text, end, right):
    given = Rules(max_tokens={name: 3}, reference=WAVES[0], agreed=ledger.agreement(WAVES), errors_allowed=True)
    seen = record(name=name, pieces=[(1.1, text)], end=end, errors=[ERROR] if end == "error" else [])
    assert ("I3" not in broken([seen], given)) == right


def test_I4_a_word_or_marker_of_another():
    free = Rules(max_tokens={"a": 3, "b": 3}, reference={})
    assert "I4" in broken([record(pieces=[(1.1, " cat cow")], offsets=[])], free)
    other = record(name="b", marker="zq2x", ids={"cmpl-2"}, words=None, pieces=[(1.1, " it is zq1x.")], offsets=[])
    assert "I4" in broken([record(), other], free)
    assert broken([record(), dataclasses.replace(other, pieces=[(1.1, " it is zq2x.")])], free) == set()


def test_I5_blocks_in_use():
    assert ledger.check_blocks(0.0) == []
    assert [fault.rule for fault in ledger.check_blocks(0.01)] == ["I5"]
    assert [fault.rule for fault in ledger.check_blocks(None)] == ["I5"]


def test_I1_requests_that_nobody_waits_for():
    idle = {"refrain:num_requests_running": 0.0, "refrain:num_requests_waiting": 0.0, "refrain:steps_in_flight": 0.0}
    assert ledger.check_busy(idle) == []
    for name in idle:
        assert [fault.rule for fault in ledger.check_busy({**idle, name: 2.0})] == ["I1"], name


def test_I5_what_is_held_for_other_groups():
    idle = {"refrain:kv_cache_usage_perc": 0.0, "refrain:group_kv_leases": 0.0}
    assert ledger.check_idle(idle) == []
    for name in ledger.MOVING:
        assert [fault.rule for fault in ledger.check_idle({**idle, name: 2.0})] == ["I5"], name


@pytest.mark.parametrize("changes", [
    {"fds": 11}, {"threads": 6}, {"rss": 400 << 20}])
def test_I6_a_process_that_grew(changes):
    before = Resources({"coordinator": {"rss": 100 << 20, "fds": 10, "threads": 5}}, frozenset())
    after = Resources({"coordinator": {**before.processes["coordinator"], **changes}}, frozenset())
    assert ledger.check_resources(before, before) == []
    assert {fault.rule for fault in ledger.check_resources(before, after)} == {"I6"}


def test_I6_processes_and_files_that_came_or_went():
    one = {"rss": 1 << 20, "fds": 10, "threads": 5}
    before = Resources({"serve": one}, frozenset({"a"}))
    for after in (Resources({"serve": one, "worker 0": one}, frozenset({"a"})), Resources({}, frozenset({"a"})),
                  Resources({"serve": one}, frozenset({"a", "b"})), Resources({"serve": one}, frozenset())):
        assert [fault.rule for fault in ledger.check_resources(before, after)] == ["I6"]


@pytest.mark.parametrize("body", [
    None, "lost", {"error": "lost"}, {"error": {"message": "lost"}}, {"message": "lost"},
    {"error": {"message": "", "type": "server_error", "param": None, "code": None}}])
def test_I7_an_error_of_another_shape(body):
    bad = record(end="error", errors=[body], finishes=[])
    assert "I7" in broken([bad], rules(errors_allowed=True))


def test_I7_an_error_that_comes_late():
    late = record(end="error", errors=[ERROR], finishes=[], ended=40.0)
    assert "I7" in broken([late], rules(errors_allowed=True, error_deadline=30.0))
    assert "I7" not in broken([late], rules(errors_allowed=True, error_deadline=30.0, since=20.0))


@pytest.mark.parametrize("incidents", [
    [], [{"process": "rank 0", "step": 7}], [{"process": "rank 1"}], [{"process": "rank 1", "step": None}],
    [{"process": "rank 0", "lagging_rank": 0, "step": 7}, {"process": "rank 1", "step": 7}]])
def test_I8_no_record_or_a_wrong_one(incidents):
    assert "I8" in {fault.rule for fault in ledger.check_incident(incidents, "rank 1")}


def test_I8_the_process_is_named_by_its_end_or_as_the_one_that_lags():
    assert ledger.check_incident([{"process": "rank 1 (pid 7)", "step": 7}], "rank 1") == []
    assert ledger.check_incident([{"process": "the worker group", "lagging_rank": 1, "step": 7}], "rank 1") == []


def test_every_rule_has_a_name():
    assert sorted(ledger.RULES) == [f"I{i}" for i in range(1, 9)]


def test_CG41_a_difference_that_an_audit_found_is_a_fault():
    assert ledger.check_audit({"refrain:audit_differences_total": 0.0}) == []
    [fault] = ledger.check_audit({"refrain:audit_differences_total": 3.0})
    assert fault.rule == "CG-41" and "3 differences" in fault.what
    [fault] = ledger.check_audit({})
    assert "not in /metrics" in fault.what


def test_CG41_steps_without_any_audit_are_a_fault():
    before, after = {"refrain:steps_total": 10.0, "refrain:audit_steps_total": 1.0}, {"refrain:steps_total": 60.0}
    assert ledger.check_audited(before, {**after, "refrain:audit_steps_total": 3.0}, 0.05) == []
    [fault] = ledger.check_audited(before, {**after, "refrain:audit_steps_total": 1.0}, 0.05)
    assert "none of 50 steps" in fault.what
    assert ledger.check_audited(before, {**after, "refrain:audit_steps_total": 1.0}, 0) == []


CALM = {"refrain:worker_group_restarts_total": 2.0, "refrain:requests_resumed_total": 7.0,
        "refrain:requests_without_logit_total": 0.0}


def test_R21_counts_that_stand_still_break_nothing():
    assert ledger.check_undisturbed(CALM, dict(CALM)) == []


@pytest.mark.parametrize("name", CALM)
def test_R21_a_wave_without_a_planted_fault_moves_no_count(name):
    [fault] = ledger.check_undisturbed(CALM, {**CALM, name: CALM[name] + 1})
    assert fault.rule == "R-21" and "1 " in fault.what
    [fault] = ledger.check_undisturbed(CALM, {key: value for key, value in CALM.items() if key != name})
    assert "not in /metrics" in fault.what
