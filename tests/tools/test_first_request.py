"""The quickstart's request: a restart on the way to the answer fails it, though the answer was right (R-21)."""
import first_request
import pytest

CALM = "\n".join(["# HELP refrain:worker_group_restarts_total x", 'refrain:worker_group_restarts_total{model_name="m"} 0',
                  'refrain:requests_resumed_total{model_name="m"} 0', 'refrain:requests_without_logit_total{model_name="m"} 0'])


@pytest.mark.parametrize("text, good", [
    (CALM, True), (CALM.replace('restarts_total{model_name="m"} 0', 'restarts_total{model_name="m"} 1'), False),
    (CALM.replace('resumed_total{model_name="m"} 0', 'resumed_total{model_name="m"} 3'), False),
    (CALM.replace('logit_total{model_name="m"} 0', 'logit_total{model_name="m"} 1'), False), ("", False)])
def test_counts_that_moved_fail_it_R21(monkeypatch, capsys, text, good):
    monkeypatch.setattr(first_request, "fetch", lambda base, path: (200, text))
    assert first_request.undisturbed("http://nowhere") == good
    assert good or "the workers failed on the way" in capsys.readouterr().out
