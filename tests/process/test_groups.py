"""Two groups of workers behind one coordinator (--data-parallel-size): the load shared by work and by prefix, one lost
under load without a token lost, every kind of request in both (R-8, R-10)."""
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from adapters import merge, write_adapter
from conftest import SMOLLM2, TINY, Load, command_line, held, kill_busy, wait_for

TWO = ["--data-parallel-size", 2, "--device", "host", "--host-threads", 1]
MODEL = TINY / "qwen3"
SMALL = ["--max-num-seqs", 16, "--max-model-len", 512, "--block-size", 16]
GOLDEN = {"model": SMOLLM2.name, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}


def of_groups(server, name):
    """A series of /metrics by group."""
    found = re.findall(rf'^refrain:group_{name}{{group="(\d+)".*?}} (\S+)$', server.get("/metrics")[1], re.M)
    return {int(group): float(value) for group, value in found}


def groups(server):
    return json.loads(server.get("/cudagraphs?format=json")[1])["groups"]


def all_ready(server):
    return wait_for(lambda: set(of_groups(server, "ready").values()) == {1.0}, 60, "both groups ready")


def worker_of(server, group):
    def group_of(pid):
        line = command_line(pid)
        return line[line.index("--group") + 1]
    return next(pid for pid in server.workers() if group_of(pid) == str(group))


def ask(server, first, tokens=40, **fields):
    status, text = server.post("/v1/completions", {"prompt": [first, 2, 3, 5, 7], "max_tokens": tokens, "temperature": 0,
                                                   "ignore_eos": True, "return_token_ids": True, **fields})
    assert status == 200, text
    return json.loads(text)["choices"][0]["token_ids"]


@pytest.fixture
def two(start_server):
    def start(*options, model=MODEL, tp=1):
        server = start_server(*SMALL, *TWO, *options, model=model, tp=tp)
        all_ready(server)
        return server
    return start


def test_two_groups_give_the_tokens_of_one(start_server, two):
    one = start_server(*SMALL, "--device", "host", model=SMOLLM2, tp=1)
    expected = json.loads(one.post("/v1/completions", GOLDEN)[1])["choices"]
    assert one.stop() == 0
    server = two(model=SMOLLM2)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: server.post("/v1/completions", GOLDEN), range(4)))
    assert [json.loads(text)["choices"] for _, text in answers] == [expected] * 4
    assert "Paris" in expected[0]["text"]
    assert server.stop() == 0


def test_groups_of_two_ranks_share_the_work(two):
    server = two(tp=2)
    assert len(server.workers()) == 4
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda first: ask(server, first), range(10, 34)))
    generated = of_groups(server, "generation_tokens_total")
    # The first eight are shared evenly; then each goes where one has ended, which is a matter of time.
    assert sum(generated.values()) == 24 * 40 and min(generated.values()) >= 4 * 40, generated
    assert answers == [ask(server, first) for first in range(10, 34)]
    page = groups(server)
    assert [(g["group"], g["state"], g["ranks"]) for g in page] == [(0, "ready", 2), (1, "ready", 2)]
    health = json.loads(server.get("/health")[1])
    assert [(g["group"], g["state"]) for g in health["groups"]] == [(0, "ready"), (1, "ready")]
    assert server.stop() == 0


def test_a_conversation_stays_where_its_prefix_is_cached(two):
    server = two()
    prompts = {n: [n] * 64 for n in (20, 30)}
    for turn in range(4):
        for n, prompt in prompts.items():
            status, text = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 16, "temperature": 0,
                                                           "ignore_eos": True, "return_token_ids": True})
            assert status == 200, text
            prompts[n] = prompt + json.loads(text)["choices"][0]["token_ids"]
    hits = of_groups(server, "prefix_cache_hits_total")
    # Each turn finds all whole blocks but that of the last token.
    assert sum(hits.values()) >= 2 * (64 + 64 + 80) and min(hits.values()) > 0, hits
    assert server.stop() == 0


@pytest.mark.parametrize("options", [[], ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']])
def test_a_group_killed_under_load_loses_nothing_R8(two, tmp_path, options):
    server = two("--dtype", "float32", "--incident-dir", tmp_path / "incidents", *options)
    expected = [ask(server, first, 300) for first in range(10, 22)]
    for group in (1, 0):
        victim, other = worker_of(server, group), worker_of(server, 1 - group)
        with ThreadPoolExecutor(12) as pool:
            load = Load(pool, lambda first: ask(server, first, 300), range(10, 22))

            def busy():
                load.go_on()
                return of_groups(server, "requests_running").get(group, 0) >= 3
            kill_busy(victim, busy, 20, "the group has requests")
            assert load.answers() == [expected] * len(load.rounds)
        assert server.get("/health")[0] == 200
        all_ready(server)
        assert worker_of(server, group) != victim and worker_of(server, 1 - group) == other
        assert of_groups(server, "restarts_total")[group] == 1
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "incidents").glob("incident-*.json"))]
    assert [record["group"] for record in records] == [1, 0]
    metrics = server.get("/metrics")[1]
    assert float(re.search(r"^refrain:requests_resumed_total\{.*?\} (\S+)$", metrics, re.M)[1]) >= 6
    assert server.stop() == 0


CONTROL = ["--control-key", "operator"]


def control(server, route, key="operator", **body):
    status, text = server.post(route, body, {"Authorization": f"Bearer {key}"})
    return status, json.loads(text)


def test_groups_start_again_one_after_the_other_under_load_and_lose_nothing_R11(two, tmp_path):
    server = two("--dtype", "float32", "--incident-dir", tmp_path / "incidents", *CONTROL)
    expected = {first: ask(server, first, 100) for first in range(10, 22)}
    rolling = threading.Event()

    def client(first):
        asked = 0
        while not (rolling.is_set() and asked):
            assert ask(server, first, 100) == expected[first]
            asked += 1
    with ThreadPoolExecutor(12) as pool:
        clients = [pool.submit(client, first) for first in expected]
        try:
            wait_for(lambda: min(of_groups(server, "requests_running").values()) > 0, 20, "both groups have requests")
            for group in (0, 1):
                before, other = worker_of(server, group), worker_of(server, 1 - group)
                assert control(server, "/restart", group=group) == (200, {"group": group, "status": "ready"})
                assert worker_of(server, group) != before and worker_of(server, 1 - group) == other
        finally:
            rolling.set()
        for each in clients:
            each.result()
    assert set(of_groups(server, "restarts_total").values()) == {0.0}, "an operator's restart is no loss"
    assert float(re.search(r"^refrain:requests_resumed_total\{.*?\} (\S+)$", server.get("/metrics")[1], re.M)[1]) == 0
    assert not list((tmp_path / "incidents").glob("*")) and server.stop() == 0


def test_a_drained_group_takes_nothing_until_it_is_told_to(two):
    server = two(*CONTROL)
    assert control(server, "/drain", group=1) == (200, {"group": 1, "status": "drained"})
    assert of_groups(server, "held") == {0: 0.0, 1: 1.0}
    before = of_groups(server, "generation_tokens_total")
    for first in range(10, 14):
        ask(server, first, 8)
    after = of_groups(server, "generation_tokens_total")
    assert (after[0] - before[0], after[1] - before[1]) == (32, 0)
    assert control(server, "/resume", group=1)[0] == 200
    for first in range(10, 14):
        ask(server, first, 8)
    assert of_groups(server, "generation_tokens_total")[1] > after[1]
    refused = [control(server, "/drain", group=2), control(server, "/drain", "wrong", group=1),
               control(server, "/resume"), control(server, "/restart", group=1, role="decode"),
               control(server, "/drain", grup=1)]
    assert [status for status, _ in refused] == [400, 401, 400, 400, 400]
    assert [answer["error"]["param"] for _, answer in refused] == ["group", None, "group", "role", "grup"]
    assert server.stop() == 0


def test_a_drained_server_ends_when_its_requests_have_R11(start_server):
    server = start_server(*SMALL, "--device", "host", *CONTROL, model=SMOLLM2, tp=1)
    expected = ask(server, 10, 60)
    with ThreadPoolExecutor(1) as pool:
        load = Load(pool, lambda first: ask(server, first, 60), [10])

        def runs():
            load.go_on()
            return re.search(r"^refrain:num_requests_running\S* 1", server.get("/metrics")[1], re.M)
        with held(server.workers()[0], runs, 20, "it runs"):
            assert control(server, "/drain") == (202, {"status": "draining"})
            assert server.post("/v1/completions", {"prompt": "x"})[0] == 503 and server.get("/ready")[0] == 503
        assert load.answers() == [[expected]] * len(load.rounds)
    assert server.process.wait(timeout=60) == 0


def test_without_its_key_no_operator_is_there(start_server):
    server = start_server(*SMALL, "--device", "host", model=MODEL, tp=1)
    assert [control(server, route, group=0)[0] for route in ("/drain", "/resume", "/restart")] == [404] * 3
    assert server.stop() == 0


def test_a_killed_coordinator_adopts_both_groups_R10(two):
    server = two()
    expected, workers = ask(server, 10), set(server.workers())
    server.kill(server.coordinator())
    wait_for(lambda: all(f"group {group} ready: 1 rank ready, adopted with weights and graphs" in server.log.read_text()
                         for group in (0, 1)), 20, "both groups adopted")
    all_ready(server)
    assert set(server.workers()) == workers and ask(server, 10) == expected
    assert server.stop() == 0


def test_a_group_that_keeps_failing_is_left_and_the_last_one_ends_serve_R8(two):
    server = two("--max-restarts", 1)
    expected = ask(server, 10)

    def kill_twice(group):
        first = worker_of(server, group)
        os.kill(first, signal.SIGKILL)
        second = wait_for(lambda: next((pid for pid in server.workers() if pid != first and str(group) == command_line(
            pid)[command_line(pid).index("--group") + 1]), None), 30, "another worker")
        os.kill(second, signal.SIGKILL)
    kill_twice(1)
    wait_for(lambda: of_groups(server, "failed").get(1) == 1.0, 30, "group 1 is given up")
    assert server.get("/health")[0] == 200 and ask(server, 10) == expected
    assert "group 1 has failed; the others serve on" in server.log.read_text()
    kill_twice(0)
    assert server.process.wait(timeout=60) == 75


def test_adapters_are_in_both_groups(two, tmp_path):
    base = TINY / "llama-bias-f32"
    write_adapter(tmp_path / "one", base, 1)
    merged = merge(tmp_path / "one", base, tmp_path / "merged")
    options = ["--dtype", "float32", "--max-num-batched-tokens", 64]
    plain = two(*options, model=merged)
    expected = [ask(plain, first, 12) for first in range(10, 18)]
    assert plain.stop() == 0
    server = two(*options, "--enable-lora", "--max-loras", 1, "--lora-modules", f"one={tmp_path / 'one'}", model=base)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda first: ask(server, first, 12, model="one"), range(10, 18))) == expected
    assert min(of_groups(server, "generation_tokens_total").values()) >= 24
    assert server.stop() == 0


def test_grammars_hold_in_both_groups(two):
    server = two(model=SMOLLM2)

    def choose(number):
        status, text = server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": f"{number}: red or blue?"}], "max_tokens": 8, "temperature": 0,
            "structured_outputs": {"choice": ["red", "blue"]}})
        assert status == 200, text
        return json.loads(text)["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(choose, range(8))) <= {"red", "blue"}
    assert min(of_groups(server, "generation_tokens_total").values()) > 0
    assert server.stop() == 0


def test_the_page_shows_both_groups(two):
    from test_dashboard import SCRIPT, STAND_IN
    server = two()
    for first in (10, 11):
        ask(server, first, 8)
    said = {"metrics": server.get("/metrics")[1], "graphs": server.get("/cudagraphs?format=json")[1],
            "ready": server.get("/ready")[1]}
    assert server.stop() == 0
    read = set(re.findall(r'\bof\("(\w+)"', SCRIPT))
    assert len(read) == 4 and not read - set(re.findall(r"^refrain:(\w+)", said["metrics"], re.M))
    if not shutil.which("node"):
        pytest.skip("no node here to run the page's script")
    checks = """
const said = JSON.parse(require("fs").readFileSync(0, "utf8"));
const assert = require("assert");
update(1000, parseMetrics(said.metrics), JSON.parse(said.graphs), JSON.parse(said.ready));
const cells = id => nodes.get(id).children.map(line => line.children.map(cell => String(cell.textContent)));
assert.strictEqual(nodes.get("groups_part").hidden, false);
assert.deepStrictEqual(cells("groups").map(line => [line[0], line[4]]), [["0", "8"], ["1", "8"]]);
assert.deepStrictEqual(cells("ranks").map(line => line[0]), ["0.0: ready", "1.0: ready"]);
process.exit(0);
"""
    done = subprocess.run(["node", "-e", STAND_IN + SCRIPT + checks], input=json.dumps(said), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_generate_runs_on_both_groups(generate):
    lines = [{"prompt_ids": [first, 2, 3], "max_tokens": 20, "temperature": 0} for first in range(10, 22)]
    alone, _ = generate(lines, "--device", "host", model=MODEL)
    both, done = generate(lines, *TWO, model=MODEL)
    assert both == alone
