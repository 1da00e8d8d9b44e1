"""One group over two hosts that share neither network, pids nor /dev/shm (R-5, R-8): tokens as ever, and what a rank's
loss at each phase leaves behind."""
import json
import os
import re
import signal
import subprocess

import pytest
from conftest import BIN, TINY, wait_for, within
from hosts import Host, child_of, connect

MODEL = TINY / "qwen3"
EXPECTED = json.loads((MODEL / "expected.json").read_text())
PORT, ENGINE = 8000, 5555
LONG = 400  # tokens of a stream that a rank is lost in
DEADLINE_MS = 4000
SIZES = ["--cudagraph-capture-sizes", 1, 2, 4, 8, 16]
MANY_SIZES = ["--cudagraph-capture-sizes", *range(1, 2001)]  # their capture lasts long enough to be met


@pytest.fixture
def hosts():
    made = []
    try:
        made = [Host(), Host()]
        addresses = connect(*made)
    except (OSError, subprocess.CalledProcessError) as error:
        for host in made:
            host.close()
        reason = getattr(error, "stderr", None) or error
        pytest.skip(f"no namespaces of network, mounts and pids here: {reason}")
    yield made, addresses
    for host in made:
        host.close()


class Group:
    """The coordinator and rank 0 on the first host, rank 1 on the second."""

    def __init__(self, hosts, folder, *options):
        (self.first, self.second), (self.address, _) = hosts
        self.folder, self.logs = folder, {}
        keys = folder / "keys"
        subprocess.run([BIN / "refrain", "keygen", keys, "rank0", "rank1"], check=True, capture_output=True)
        self.keys = keys
        self.coordinator = self.start(
            self.first, "coordinator", "coordinator", "--listen", f"tcp://{self.address}:{ENGINE}", "--port", PORT,
            "--dtype", "float32", "--max-num-seqs", 8, "--collective-timeout-ms", DEADLINE_MS, "--heartbeat-timeout", 5,
            *options, "--curve-key", keys / "coordinator.key",
            "--curve-allow", keys / "coordinator.allow")
        self.workers = {}

    def start(self, host, name, program, *options):
        self.logs[name] = self.folder / f"{name}-{len(self.logs)}.log"
        return host.start(BIN / program, "--model", MODEL, "--tensor-parallel-size", 2, *options, log=self.logs[name])

    def add(self, rank, port=ENGINE):
        host = (self.first, self.second)[rank]
        self.workers[rank] = self.start(
            host, f"rank {rank}", "worker", "--rank", rank, "--coordinator", f"tcp://{self.address}:{port}",
            "--curve-key", self.keys / f"rank{rank}.key", "--curve-allow", self.keys / "worker.allow")
        return self.workers[rank]

    def log(self, name):
        return self.logs[name].read_text()

    def await_log(self, name, text):
        wait_for(lambda: text in self.log(name), 30, f"{text} in {self.logs[name]}")

    def wait_ready(self):
        wait_for(lambda: self.first.ask(PORT, "/ready") is not None, 60, f"ready ({self.folder})")

    def body(self, prompt, max_tokens, **more):
        return {"model": MODEL.name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, **more}

    def complete(self, prompt, max_tokens):
        answer = json.loads(self.first.ask(PORT, "/v1/completions", self.body(prompt, max_tokens)))
        return answer["choices"][0]["token_ids"]

    def assert_golden(self):
        for entry in EXPECTED[:4]:
            assert self.complete(entry["prompt_ids"], len(entry["output_ids"])) == entry["output_ids"], entry["name"]

    def end(self):
        """All end by themselves when they are asked to, and nothing stays on either host."""
        for process in [self.coordinator, *self.workers.values()]:
            signal_program(process, signal.SIGTERM)
        codes = [process.wait(timeout=within(30)) for process in [self.coordinator, *self.workers.values()]]
        assert codes == [0, 0, 0], (codes, self.folder)
        for host in (self.first, self.second):
            wait_for(lambda: not host.leftovers(), 10, f"nothing left ({host.leftovers()})")


def signal_program(process, number):
    pid = child_of(process)
    if pid is not None:
        os.kill(pid, number)


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL_AND_PIECEWISE"])
def test_a_group_over_two_hosts_gives_the_golden_tokens(hosts, tmp_path, mode):
    group = Group(hosts, tmp_path, *SIZES, "--cudagraph-mode", mode)
    for rank in (0, 1):
        group.add(rank)
    group.wait_ready()
    group.assert_golden()
    for rank, address in enumerate(hosts[1]):
        assert f"meets over tcp, rank {rank} at tcp://{address}:" in group.log(f"rank {rank}")
    metrics = group.first.ask(PORT, "/metrics")
    ran = {line.split('mode="')[1].split('"')[0] for line in metrics.splitlines()
           if line.startswith("refrain:cudagraph_dispatch_total{") and not line.endswith(" 0")}
    graphs = {"NONE": set(), "PIECEWISE": {"PIECEWISE"}, "FULL_AND_PIECEWISE": {"PIECEWISE", "FULL"}}
    assert ran - {"NONE"} == graphs[mode]  # prompts beyond the sizes run without one
    assert [p for p in os.listdir("/dev/shm") if p.startswith("refrain")] == []
    group.end()


def reach(group, phase):
    """Both ranks, rank 1 in this phase."""
    if phase == "before hello":
        group.add(1, port=ENGINE + 1)  # where nobody listens
        group.await_log("rank 1", "rank 1 of 2")
        return
    if phase == "rendezvous":
        group.add(1)
        group.await_log("rank 1", "joined group")
        return
    group.add(0)
    group.add(1)
    if phase == "capture":
        group.await_log("coordinator", "capturing graphs")  # of the rank that is furthest behind
        return
    group.wait_ready()


def go_on(process):
    process.send_signal(signal.SIGCONT)  # nsenter has stopped with its program
    signal_program(process, signal.SIGCONT)


def stream_in_the_middle(group, rank, prompt):
    """A stream that has begun and not ended, and its first line; the rank stands still."""
    for _ in range(20):
        stream = group.first.client(PORT, "/v1/completions", group.body(prompt, LONG, stream=True))
        begun = stream.stdout.readline()
        signal_program(rank, signal.SIGSTOP)
        counts = re.findall(r"^refrain:num_requests_(?:running|waiting)\S* (\S+)$", group.first.ask(PORT, "/metrics"), re.M)
        if sum(map(float, counts)) == 1:
            return stream, begun
        go_on(rank)  # the stream had ended before it was looked at
        stream.kill()
        stream.communicate()
    raise AssertionError("every stream had ended before its rank stood still")


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("phase", ["before hello", "rendezvous", "capture", "serving"])
def test_a_rank_lost_at_each_phase_ends_the_group_which_serves_again(hosts, tmp_path, phase, how):
    group = Group(hosts, tmp_path, *(MANY_SIZES if phase == "capture" else SIZES))
    reach(group, phase)
    stream, prompt = None, EXPECTED[0]["prompt_ids"]
    if phase == "serving":
        whole = group.complete(prompt, LONG)
        stream, begun = stream_in_the_middle(group, group.workers[1], prompt)
    lost = group.workers.pop(1)
    wait_for(lambda: child_of(lost), 10, "the worker runs")
    signal_program(lost, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    if how == "killed":
        lost.send_signal(signal.SIGCONT)  # nsenter, which stood still with it in the middle of a stream
    if phase == "capture":
        assert "ready:" not in group.log("rank 1"), "the capture was over already"
    if 0 not in group.workers and phase == "rendezvous":
        group.add(0)
    if phase != "before hello":
        # The other rank ends with its collective, or when it is told to; the coordinator, whose host it shares, ends it
        # if it still waits for its peer by then, or captures on a busy machine.
        code = group.workers.pop(0).wait(timeout=within(30))
        may_be_ended = how == "stopped" or phase == "capture"
        assert code in (0, 70, 75) or may_be_ended and code == -signal.SIGKILL, group.log("rank 0")
    group.add(0)
    group.add(1)
    group.wait_ready()
    if how == "stopped":  # its group is gone, or its rank has been taken
        go_on(lost)
        if phase == "before hello":
            signal_program(lost, signal.SIGTERM)
    assert lost.wait(timeout=within(30)) in ((-signal.SIGKILL, 128 + signal.SIGKILL) if how == "killed"
                                             else (0, 64, 70, 75))
    group.assert_golden()
    if stream is not None:
        # communicate() would pass over what came together with the first line.
        rest, errors = stream.stdout.read(), stream.stderr.read()
        stream.wait(timeout=within(60))
        chunks = [json.loads(line[6:]) for line in [begun, *rest.splitlines()] if line.startswith("data: {")]
        tokens = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or []]
        assert tokens == whole, errors
        assert "go on where they were" in group.log("coordinator"), "the stream had ended before its rank was lost"
    group.end()
