"""tools/compare_groups: its prompts, and that it finds what differs and what was not reached."""
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(ROOT / "tools"))
    loader = SourceFileLoader("compare_groups", str(ROOT / "tools/compare_groups"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare_groups", loader))
    loader.exec_module(module)
    return module


def metrics(**changed):
    zero = ("worker_group_restarts_total", "requests_resumed_total", "request_failure_total", "requests_refused_total",
            "audit_differences_total")
    values = dict.fromkeys(zero, 0) | {"audit_steps_total": 3}
    group = {"kv_transfers_failed_total": 0, "prompt_tokens_total": 0, "kv_transfers_total": 40,
             "kv_transfer_early_bytes_total": 1000}
    for name, value in changed.items():
        (group if name in group else values)[name] = value
    return "\n".join([f'refrain:{name}{{model_name="m"}} {value}' for name, value in values.items()] +
                     [f'refrain:group_{name}{{group="{number}",model_name="m"}} {value if number else 7}'
                      for name, value in group.items() for number in (0, 1)])


def test_prompts_are_at_edges_and_anywhere_and_begin_as_others(tool):
    bodies = tool.make_bodies(120, 5000, 500, seed=3, names=["", "a"])
    lengths = [len(body["prompt"]) for body in bodies]
    assert {15, 16, 17, 255, 256, 257} <= set(lengths) and max(lengths) == 5000 and min(lengths) == 1
    assert sum(length > 300 for length in lengths) > 20
    assert {body.get("model", "") for body in bodies} == {"", "a"}
    assert {body["temperature"] for body in bodies} == {0, 0.8}
    begins = sum(any(len(other["prompt"]) >= 16 and other is not body and other["prompt"][:16] == body["prompt"][:16] for other in bodies)
                 for body in bodies)
    assert begins > 20
    assert bodies == tool.make_bodies(120, 5000, 500, seed=3, names=["", "a"])


def answers(tool, count):
    return [tool.Answer([number, 5, 6], [-1.0, -2.0, -3.0], [-0.5, -0.6, -0.7]) for number in range(count)]


def test_a_token_that_differs_is_found(tool):
    bodies = tool.make_bodies(4, 30, 500, seed=1)
    right = answers(tool, 6)
    assert tool.differences(bodies, right, right) == ([], 0)
    wrong = answers(tool, 6)
    wrong[1].tokens[2] = 9    # of the first round
    wrong[5].tokens.pop()     # of the second
    found, _ = tool.differences(bodies, right, wrong)
    assert len(found) == 2 and "token 2 of 3 differs" in found[0] and f"{len(bodies[2]['prompt'])} tokens" in found[1]
    assert tool.differences(bodies, right, wrong, rounds=True)[0] == found    # neither was drawn
    with pytest.raises(ValueError):
        tool.differences(bodies, right, right[:5])


def test_a_log_probability_that_differs_is_found_and_a_draw_at_a_border_is_none(tool):
    bodies = tool.make_bodies(8, 30, 500, seed=1)    # the fourth and the eighth have a temperature
    right, wrong = answers(tool, 12), answers(tool, 12)
    wrong[0].logprobs[1] -= 0.01
    [fault], _ = tool.differences(bodies, right, wrong)
    assert "token 1 has log-probability -2.010000 instead of -2.000000" in fault
    wrong = answers(tool, 12)
    wrong[3].tokens[2], wrong[3].logprobs[2] = 9, -8.0
    assert len(tool.differences(bodies, right, wrong)[0]) == 1
    assert tool.differences(bodies, right, wrong, rounds=True) == ([], 1)
    wrong[7].tokens[1] = 9
    [fault], drawn = tool.differences(bodies, right, wrong, rounds=True)
    assert drawn == 2 and "2 answers part" in fault
    wrong = answers(tool, 12)
    wrong[3].tokens[2], wrong[3].best[2] = 9, -0.8    # no draw of the same distribution
    assert "differs" in tool.differences(bodies, right, wrong, rounds=True)[0][0]


@pytest.mark.parametrize("changed", [{"kv_transfers_failed_total": 1}, {"prompt_tokens_total": 30}, {"kv_transfers_total": 10},
                                     {"kv_transfers_total": 60}, {"kv_transfer_early_bytes_total": 0},
                                     {"requests_resumed_total": 1}, {"audit_differences_total": 1}, {"audit_steps_total": 0}])
def test_what_was_not_reached_is_a_fault(tool, changed):
    assert tool.faults_of(metrics(), 60) == []
    [fault] = tool.faults_of(metrics(**changed), 60)
    assert changed != {"prompt_tokens_total": 30} or not tool.faults_of(metrics(num_preemptions_total=1, **changed), 60)
    assert next(iter(changed)).removesuffix("_total").split("_")[-1] in fault or "no step was audited" in fault
