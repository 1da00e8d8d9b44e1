"""The load scenarios of tools/load in small: what must hold at any size, no timing (R-17, R-18)."""
import os
from pathlib import Path

import pytest
import scenarios
from mock_server import MockServer

ASK = {"model": "qwen3", "prompt": [5, 6], "max_tokens": 200, "ignore_eos": True}
BUILD = Path(os.environ.get("REFRAIN_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))


def test_streams_open_at_once_end_whole_or_free_their_blocks_R18():
    figures = scenarios.streams(BUILD, count=300, tokens=24, step_us=500_000)
    assert figures["streams_open_at_once"] == 300 and figures["hung_up"] == 270


def test_overload_is_answered_or_refused_and_the_accepted_end_R17():
    figures = scenarios.overload(BUILD, seconds=8, max_wait=2)
    assert figures["refused"] > 0 and figures["answered"] > 0
    assert figures["late"] <= 0.1 * figures["answered"]


def test_slow_headers_leave_other_users_alone_R18():
    figures = scenarios.slowloris(BUILD, sockets=200, seconds=2, rounds=1)
    assert figures["descriptors_held"] > 200 and figures["answers_attacked"] > 0


def test_a_lost_worker_fails_the_load_whatever_else_was_right_R21():
    with pytest.raises(AssertionError, match="no fault was planted.*'worker_group_restarts': 1"), MockServer(BUILD) as server:
        server.replace_worker()
        assert server.get("/ready")[0] == 200


def test_what_an_audit_finds_fails_the_load_whatever_else_was_right_CG41():
    with pytest.raises(AssertionError, match="audits found [0-9]+ differences"), MockServer(BUILD, audit_differences=1) as server:
        assert server.post("/v1/completions", ASK)[0] == 200
    with MockServer(BUILD) as server:
        assert server.post("/v1/completions", ASK)[0] == 200
        assert server.metric("refrain:audit_steps_total") > 0


def test_a_load_in_which_nothing_was_audited_fails_CG41():
    with pytest.raises(AssertionError, match="none of [0-9]+ steps was audited"), MockServer(BUILD, audit_rate=0) as server:
        assert server.post("/v1/completions", ASK)[0] == 200
