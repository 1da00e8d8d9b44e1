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


def test_a_token_that_differs_is_found(tool):
    bodies = tool.make_bodies(4, 30, 500, seed=1)
    right = [[number, 5, 6] for number in range(6)]
    assert tool.differences(bodies, right, right) == []
    wrong = [list(answer) for answer in right]
    wrong[1][2] = 9    # of the first round
    wrong[5].pop()     # of the second
    found = tool.differences(bodies, right, wrong)
    assert len(found) == 2 and "token 2 of 3 differs" in found[0] and f"{len(bodies[2]['prompt'])} tokens" in found[1]
    with pytest.raises(ValueError):
        tool.differences(bodies, right, right[:5])


@pytest.mark.parametrize("changed", [{"kv_transfers_failed_total": 1}, {"prompt_tokens_total": 30}, {"kv_transfers_total": 10},
                                     {"kv_transfers_total": 60}, {"kv_transfer_early_bytes_total": 0},
                                     {"requests_resumed_total": 1}, {"audit_differences_total": 1}, {"audit_steps_total": 0}])
def test_what_was_not_reached_is_a_fault(tool, changed):
    assert tool.faults_of(metrics(), 60) == []
    [fault] = tool.faults_of(metrics(**changed), 60)
    assert changed != {"prompt_tokens_total": 30} or not tool.faults_of(metrics(num_preemptions_total=1, **changed), 60)
    assert next(iter(changed)).removesuffix("_total").split("_")[-1] in fault or "no step was audited" in fault
