"""Parts of the drills that need no server: start times from a log, requests, the table."""
import asyncio
import json
import random
from pathlib import Path

from drills import report
from drills.bench import Outcome
from drills.ledger import Fault
from drills.live_faults import LiveFault
from drills.start_times import start_times
from drills.workload import made_up_tokenizer, make_requests

TOKENIZER = Path(__file__).resolve().parents[1] / "fixtures/models/qwen3/tokenizer.json"

LOG = """\
00:00:01.000 error [coordinator] worker group of epoch 3: the process of rank 0 (pid 7 on here) ended
00:00:01.200 info [worker 0] opening the device (cuda)
00:00:01.250 info [worker 1] opening the device (cuda)
00:00:01.600 info [worker 0] rank 0 of 2 on NVIDIA H200, coordinator ipc:///run/engine
00:00:01.850 info [worker 1] rank 1 of 2 on NVIDIA H200, coordinator ipc:///run/engine
00:00:01.900 info [worker 0] joined group refrain-1-4 of ipc:///run/engine, epoch 4
00:00:01.900 info [worker 1] joined group refrain-1-4 of ipc:///run/engine, epoch 4
00:00:02.400 info [worker 0] group of 2 GPUs: NCCL 2.28.3 (own), sums up to 512 KiB over peer memory
00:00:03.400 info [worker 0] weights: 2.0 MB in 1.00 s; room for 9 KV blocks
00:00:02.900 info [worker 1] weights: 2.0 MB in 1.00 s; room for 9 KV blocks
00:00:03.900 info [worker 0] ready: FULL, 86 keys captured, arena 1.6 MB
00:00:03.900 info [worker 1] ready: FULL, 86 keys captured, arena 1.6 MB
"""


def test_start_times_are_those_of_the_slowest_rank_also_over_midnight():
    assert start_times(LOG, 86400 - 0.5) == {"process": 1.75, "context": 0.6, "hello": 0.3, "nccl": 0.5, "weights": 1.0,
                                             "capture": 1.0}
    assert start_times("nothing with a stamp", 0) == {}


def test_a_process_that_starts_twice_counts_from_its_last_start():
    again = LOG + "00:00:09.000 info [worker 0] opening the device (cuda)\n00:00:09.100 info [worker 0] rank 0 of 2\n"
    assert start_times(again, 1.0)["process"] == 8.0


def test_requests_have_markers_and_words_of_their_own_and_follow_from_the_seed():
    requests = make_requests(TOKENIZER, 16, random.Random(5))
    assert requests == make_requests(TOKENIZER, 16, random.Random(5))
    assert requests != make_requests(TOKENIZER, 16, random.Random(6))
    assert len({request.marker for request in requests}) == 16
    assert all(request.marker in request.body["prompt"] for request in requests)
    bound = [request for request in requests if request.words]
    assert len(bound) == 8 and sum(len(r.words) for r in bound) == len(frozenset().union(*[r.words for r in bound]))
    assert {"seed" in request.body for request in bound} == {True, False}
    assert {"logprobs" in request.body for request in requests} == {True, False}


def test_adapters_and_the_base_model_meet_every_kind_of_request():
    requests = make_requests(TOKENIZER, 16, random.Random(5), adapters=["a", "b"])
    kinds = {(request.body.get("model"), request.words is not None) for request in requests}
    assert kinds == {(model, bound) for model in (None, "a", "b") for bound in (True, False)}
    plain = make_requests(TOKENIZER, 16, random.Random(5))
    assert [{**request.body, "model": None} for request in requests] == [{**request.body, "model": None} for request in plain]


def test_made_up_words_are_the_numbers_of_their_tokens(tmp_path):
    path = made_up_tokenizer(tmp_path / "t", 300)
    requests = make_requests(path, 8, random.Random(1), (300, 8, 40))
    for request in requests:
        assert all(0 <= token < 300 for token in request.body["prompt"])
        if request.words:
            assert {f"t{number}" for number in request.body["allowed_token_ids"]} == request.words


def test_the_table_shows_what_was_lost_and_what_was_broken():
    outcomes = [Outcome(0, detected=0.1, served=1.0), Outcome(1, detected=0.3, served=2.0, lost=2,
                                                              faults=[Fault("I1", "a", "x"), Fault("I1", "b", "x")])]
    good = report.summarise("kill-rank", "kill", outcomes[:1])
    bad = report.summarise("kill-rank", "kill", outcomes)
    absent = report.summarise("clock-jump", "clock", [], "no library")
    assert report.clean([good, absent]) and not report.clean([bad])
    assert not report.clean([{**good, "lost": 1}])
    lines = report.table([bad, absent]).splitlines()
    assert lines[1].split() == ["kill-rank", "2", "0.20", "/", "0.30", "1.50", "/", "2.00", "2", "0", "I1:2"]
    assert "not run" in lines[2] and "no library" in lines[2]
    assert report.markdown([bad]).splitlines()[2] == "| kill-rank | 2 | 0.20 / 0.30 | 1.50 / 2.00 | 2 | 0 | I1:2 |"
    assert json.loads(json.dumps(bad))["runs"][1]["ledger"][0]["rule"] == "I1"


def test_a_loss_that_no_look_at_ready_met_was_noticed_where_counters_say_so():
    class Counts:
        """Of a server after the fault."""

        def __init__(self, **counts):
            self.counts = {f"refrain:{name}_total": value for name, value in counts.items()}

        async def metrics(self):
            return self.counts

    def said(**counts):
        fault = LiveFault("disk full", "", None, incident=False)
        return [each.what for each in asyncio.run(fault.check_outage(Counts(**counts), None, {}, None, 1.0, 0.0))]
    assert said(worker_group_restarts=1, incidents_unwritten=1) == said(incidents=1, incidents_unwritten=1) == []
    assert said() == ["did not notice"]
