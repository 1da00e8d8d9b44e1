"""Prefill and decode groups (--prefill-groups, --decode-groups): the tokens of one group, prompts that the decode group
never computes, and either side lost in mid load without a token lost (R-8, R-28)."""
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from adapters import write_adapter
from conftest import BIN, ROOT, TINY, Server, wait_for, within
from test_groups import CONTROL, ask, control, groups, of_groups, worker_of
from test_two_hosts import EXPECTED, hosts, signal_program  # noqa: F401 (a fixture)
from test_windows import with_windows
from tiny_head import write_head

MODEL = TINY / "qwen3"
OPTIONS = ["--device", "host", "--host-threads", 1, "--dtype", "float32", "--max-num-seqs", 16, "--max-model-len", 512,
           "--max-num-batched-tokens", 64, "--block-size", 16]
MOVES = ["--kv-transfer-policy", "always"]  # else what was measured decides
LENGTHS = [1, 15, 16, 17, 31, 33, 63, 64, 65, 130]  # around blocks and chunks


def start_divided(start_server, prefill_tp, decode_tp, *options, model=MODEL):
    server = start_server(*OPTIONS, *MOVES, "--prefill-groups", 1, "--decode-groups", 1,
                          "--prefill-tensor-parallel-size", prefill_tp, "--decode-tensor-parallel-size", decode_tp,
                          *options, model=model, tp=1)
    wait_for(lambda: set(of_groups(server, "ready").values()) == {1.0}, 60, "both groups ready")
    return server


def answers(server, tokens=12, **fields):
    def one(length):
        status, text = server.post("/v1/completions", {"prompt": [7 + (length * 31 + i) % 50 for i in range(length)],
                                                       "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                                                       "return_token_ids": True, **fields})
        assert status == 200, text
        return json.loads(text)["choices"][0]["token_ids"]
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, LENGTHS))


def all_free(server):
    used = float(re.search(r"^refrain:kv_cache_usage_perc\S* (\S+)$", server.get("/metrics")[1], re.M)[1])
    busy = [of_groups(server, f"kv_{name}") for name in ("leases", "transfers_running", "transfers_quarantined")]
    return used == 0 and all(value == 0 for series in busy for value in series.values())


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("one") / "log", *OPTIONS, model=MODEL, tp=1).start()
    found = answers(server)
    assert server.stop() == 0
    return found


@pytest.mark.parametrize("prefill_tp, decode_tp", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_the_tokens_are_those_of_one_group_R28(start_server, expected, prefill_tp, decode_tp):
    server = start_divided(start_server, prefill_tp, decode_tp)
    assert len(server.workers()) == prefill_tp + decode_tp
    assert answers(server) == expected
    assert of_groups(server, "kv_transfers_total")[1] == len(LENGTHS)
    assert of_groups(server, "kv_transfer_bytes_total")[1] > 0
    assert of_groups(server, "prompt_tokens_total")[1] == 0, "the decode group computed prompts"
    page = groups(server)
    assert [(g["role"], g["ranks"]) for g in page] == [("prefill", prefill_tp), ("decode", decode_tp)]
    assert page[1]["transfers"]["done"] == len(LENGTHS)
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert answers(server) == expected, "with what both groups have cached"
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert server.stop() == 0


def test_where_what_was_measured_decides_the_tokens_are_the_same(start_server, expected):
    # What the decode group has cached is not pulled, and would be in neither count.
    server = start_divided(start_server, 1, 1, "--kv-transfer-policy", "auto", "--no-enable-prefix-caching")
    for _ in range(3):
        assert answers(server) == expected
    moved = of_groups(server, "kv_transfers_total")[1]
    kept = float(re.search(r"^refrain:prompts_not_moved_total\S* (\S+)$", server.get("/metrics")[1], re.M)[1])
    assert moved >= 3, "the first ones move, since nothing is known of the link"
    assert moved + kept == 3 * len(LENGTHS), "how many of each is a matter of time"
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert server.stop() == 0


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL"])
def test_layers_come_while_the_prompt_runs(start_server, mode):
    """A chunk is long enough here for a reader to find its first layers done before its last one; in FULL graphs too."""
    options = ["--device", "host", "--host-threads", 1, "--dtype", "float32", "--max-num-seqs", 4, "--max-model-len", 512,
               "--max-num-batched-tokens", 512, "--block-size", 16, "--no-enable-prefix-caching", "--cudagraph-mode", mode,
               *([] if mode == "NONE" else ["--cudagraph-capture-sizes", "1,2,4,512"])]

    def long_answers(server):
        return [ask(server, first, 8, prompt=[first + (i * 31) % 50 for i in range(500)]) for first in range(10, 26)]
    one = start_server(*options, model=MODEL, tp=1)
    expected = long_answers(one)
    assert one.stop() == 0
    server = start_server(*options, *MOVES, "--prefill-groups", 1, "--decode-groups", 1, model=MODEL, tp=1)
    wait_for(lambda: set(of_groups(server, "ready").values()) == {1.0}, 60, "both groups ready")
    early = moved = rounds = 0
    while early == 0 and rounds < 5:   # a busy machine may have no time for the reader before the end of a step
        assert long_answers(server) == expected
        rounds += 1
        assert of_groups(server, "kv_transfers_total")[1] == rounds * len(expected)
        early, moved = (of_groups(server, f"kv_transfer_{name}_total")[1] for name in ("early_bytes", "bytes"))
    assert 0 < early < moved, "what the last layer has cannot be early"
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert server.stop() == 0


def test_a_group_changes_its_role_under_load_and_its_processes_stay_CG23(start_server, expected):
    server = start_server(*OPTIONS, *MOVES, *CONTROL, "--prefill-groups", 1, "--decode-groups", 2, "--no-enable-prefix-caching",
                          model=MODEL, tp=2)
    wait_for(lambda: set(of_groups(server, "ready").values()) == {1.0}, 60, "all groups ready")
    workers = server.workers()
    for role, prefills in (("prefill", True), ("decode", False)):
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(lambda: [answers(server) for _ in range(3)])
            assert control(server, "/restart", group=1, role=role) == (200, {"group": 1, "status": "ready"})
            assert load.result() == [expected] * 3
        before = of_groups(server, "prompt_tokens_total")[1]
        assert answers(server) == expected
        assert (of_groups(server, "prompt_tokens_total")[1] > before) == prefills
        assert groups(server)[1]["role"] == role
        ranks = json.loads(server.get("/cudagraphs?format=json")[1])["ranks"]  # two of each group
        modes = {graph["mode"] for graph in ranks[2]["manifest"]}
        assert modes == ({"PIECEWISE"} if prefills else {"FULL"})
    assert server.workers() == workers
    assert set(of_groups(server, "restarts_total").values()) == {0.0}
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert server.stop() == 0


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_checked_drafts_go_on_from_the_blocks_of_the_prompt(start_server, expected, tmp_path, method):
    options = {"method": method, "num_speculative_tokens": 3}
    if method == "eagle3":
        write_head(tmp_path / "head", MODEL, method)
        options["model"] = str(tmp_path / "head")
    server = start_divided(start_server, 1, 1, "--speculative-config", json.dumps(options))
    assert answers(server) == expected
    assert of_groups(server, "kv_transfers_total")[1] == len(LENGTHS)
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert server.stop() == 0


def test_a_request_with_an_adapter_goes_on_with_it(start_server, tmp_path):
    model = TINY / "llama-bias-f32"
    adapter = ["--enable-lora", "--lora-modules", f"odd={write_adapter(tmp_path / 'odd', model, 5)}"]
    one = start_server(*OPTIONS, *adapter, model=model, tp=1)
    expected = answers(one, model="odd")
    assert expected != answers(one) and one.stop() == 0
    server = start_divided(start_server, 1, 1, *adapter, model=model)
    assert answers(server, model="odd") == expected
    assert of_groups(server, "kv_transfers_total")[1] == len(LENGTHS)
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert server.stop() == 0


@pytest.mark.parametrize("layer_types", [["full_attention", "sliding_attention"], ["sliding_attention"] * 2])
def test_of_layers_with_a_window_only_what_they_see_moves(start_server, copy_model, layer_types):
    model = with_windows(copy_model(TINY / "qwen2"), layer_types)
    one = start_server(*OPTIONS, model=model, tp=1)
    expected = answers(one)
    assert one.stop() == 0
    server = start_divided(start_server, 2, 1, model=model)
    assert answers(server) == expected
    assert of_groups(server, "kv_transfers_total")[1] == len(LENGTHS)
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert server.stop() == 0


@pytest.mark.parametrize("side", [0, 1])
def test_either_side_killed_under_load_loses_nothing_R8(start_server, side):
    server = start_divided(start_server, 1, 1)
    expected = [ask(server, first, 200) for first in range(10, 18)]
    with ThreadPoolExecutor(8) as pool:
        jobs = []

        def decodes():
            if all(job.done() for job in jobs):  # they may end between two looks
                jobs.extend(pool.submit(ask, server, first, 200) for first in range(10, 18))
            return of_groups(server, "requests_running").get(1, 0) >= 2
        wait_for(decodes, 20, "the decode group has requests")
        os.kill(worker_of(server, side), signal.SIGKILL)
        more = [pool.submit(ask, server, first, 200) for first in range(10, 18)]
        assert [job.result() for job in jobs] == expected * (len(jobs) // 8)
        assert [job.result() for job in more] == expected
    wait_for(lambda: set(of_groups(server, "ready").values()) == {1.0}, 60, "both groups ready again")
    before = of_groups(server, "kv_transfers_total")[1]
    assert ask(server, 10, 200) == expected[0]
    assert of_groups(server, "kv_transfers_total")[1] == before + 1, "the new group is joined to the other"
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert server.stop() == 0


def test_small_pools_under_churn_show_nobody_anothers_tokens_R28(start_server):
    server = start_divided(start_server, 1, 1, "--num-gpu-blocks-override", 34)

    def storm(n):
        first, length = 10 + n % 12, 20 + 37 * n % 170
        status, text = server.post("/v1/completions", {"prompt": [first] * length, "max_tokens": 40 + n % 60, "seed": n,
                                                       "temperature": 0, "ignore_eos": True, "return_token_ids": True})
        assert status == 200, text
        return json.loads(text)["choices"][0]["token_ids"]
    alone = [storm(n) for n in range(24)]
    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(storm, range(24))) == alone
    wait_for(lambda: all_free(server), 5, "all blocks free, no leases")
    assert of_groups(server, "kv_transfers_failed_total")[1] == 0
    assert server.stop() == 0


def test_a_killed_coordinator_adopts_both_and_joins_them_again_R10(start_server, expected):
    server = start_divided(start_server, 1, 1)
    assert answers(server) == expected
    workers = set(server.workers())
    server.kill(server.coordinator())
    server.wait_ready()
    wait_for(lambda: set(of_groups(server, "ready").values()) == {1.0}, 60, "both groups ready")
    assert set(server.workers()) == workers and answers(server) == expected
    assert of_groups(server, "kv_transfers_total")[1] == len(LENGTHS)
    assert server.stop() == 0


@pytest.mark.parametrize("pairs, options", [
    ("1x4,2x2", []), ("2x1", ["--adapters", "2", "--serve", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']),
    ("1x2", ["--serve", "--kv-transfer-backend", "ucx"])])
def test_prompts_of_all_lengths_give_the_tokens_of_one_group_R28(pairs, options):
    """Fifty prompts of up to 3,000 tokens; the command alone asks 1,000 of up to 32,000."""
    done = subprocess.run([sys.executable, ROOT / "tools/compare_groups", "--bin", BIN, "--prompts", "50", "--longest", "3000", "--tp", pairs,
                           *options], capture_output=True, text=True, timeout=within(150))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all equal") == len(pairs.split(",")), done.stdout


@pytest.mark.parametrize("backend, way", [("auto", "tcp"), ("ucx", "ucx")])
def test_groups_on_two_hosts_move_blocks_R28(hosts, tmp_path, backend, way):  # noqa: F811
    (first, second), (address, _) = hosts
    if backend == "ucx" and subprocess.run(second.enter("test", "-e", "/sys/class/net/mesh0")).returncode != 0:
        pytest.skip("a host has no /sys of its own here, where UCX looks for its networks")
    keys = tmp_path / "keys"
    subprocess.run([BIN / "refrain", "keygen", keys, "prefill", "decode"], check=True, capture_output=True)

    def start(host, program, key, allow, *options):
        return host.start(BIN / program, "--model", MODEL, "--curve-key", keys / f"{key}.key", "--curve-allow",
                          keys / f"{allow}.allow", *options, log=tmp_path / f"{key}.log")

    def worker(host, group, role):
        return start(host, "worker", role, "worker", "--coordinator", f"tcp://{address}:5555", "--rank", 0, "--group",
                     group, "--role", role)

    programs = [start(first, "coordinator", "coordinator", "coordinator", "--listen", f"tcp://{address}:5555", "--port",
                      8000, "--dtype", "float32", "--max-num-seqs", 8, "--prefill-groups", 1, "--decode-groups", 1, *MOVES,
                      "--kv-transfer-backend", backend),
                worker(first, 0, "prefill"), worker(second, 1, "decode")]

    def metric(name):
        text = first.ask(8000, "/metrics") or ""
        return {int(group): float(value)
                for group, value in re.findall(rf'^refrain:group_{name}{{group="(\d+)".*?}} (\S+)$', text, re.M)}
    wait_for(lambda: metric("ready") == {0: 1.0, 1: 1.0}, 60, f"both groups ready ({tmp_path})")

    def answers():
        for entry in EXPECTED[:4]:
            body = {"prompt": entry["prompt_ids"], "max_tokens": len(entry["output_ids"]), "temperature": 0,
                    "ignore_eos": True, "return_token_ids": True}
            answer = json.loads(first.ask(8000, "/v1/completions", body))
            assert answer["choices"][0]["token_ids"] == entry["output_ids"], entry["name"]
    answers()
    assert f"of group 0 come over {way}" in (tmp_path / "decode.log").read_text()
    assert metric("kv_transfers_total")[1] == 4
    # Either side comes back, with the other one's connections as they were.
    for group, again in ((1, lambda: worker(second, 1, "decode")), (0, lambda: worker(first, 0, "prefill"))):
        signal_program(programs[1 + group], signal.SIGKILL)
        wait_for(lambda group=group: metric("ready").get(group) == 0.0, 20, f"group {group} is lost ({tmp_path})")
        programs[1 + group] = again()
        wait_for(lambda: metric("ready") == {0: 1.0, 1: 1.0}, 60, f"both groups ready again ({tmp_path})")
        done = metric("kv_transfers_total")[1]
        answers()  # of which the decode group may have one cached, when the prefill group is the new one
        assert metric("kv_transfers_total")[1] >= done + 3, f"not over the new connections ({tmp_path})"
    assert metric("kv_transfers_failed_total")[1] == 0
    assert metric("kv_leases") == {0: 0.0, 1: 0.0}
    signal_program(programs[0], signal.SIGTERM)  # which tells the workers
    assert [program.wait(timeout=within(30)) for program in programs] == [0, 0, 0], tmp_path
    for host in (first, second):
        wait_for(lambda host=host: not host.leftovers(), 10, f"nothing left ({host.leftovers()})")
