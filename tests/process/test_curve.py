"""Keys on tcp:// (R-5, R-6): a coordinator and workers started by hand with the files of `refrain keygen`."""
import os
import signal
import socket
import stat
import subprocess

import pytest
from conftest import BIN, SMOLLM2, TINY, Server, free_port, wait_for, within

SMALL = ["--max-num-seqs", 8, "--max-model-len", 512]


def run(*argv):
    return subprocess.run([str(BIN / argv[0]), *map(str, argv[1:])], capture_output=True, text=True, timeout=within(60))


def keygen(directory, *workers):
    done = run("refrain", "keygen", directory, *workers)
    assert done.returncode == 0, done.stderr
    return directory


def worker_keys(keys, name="worker"):
    return ["--curve-key", keys / f"{name}.key", "--curve-allow", keys / "worker.allow"]


class Group:
    """A coordinator and its workers; each has a log of its own."""

    def __init__(self, folder, model, tp, keys):
        self.folder, self.model, self.tp = folder, model, tp
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.server = Server(folder / "coordinator.log")
        self.coordinator = self.start("coordinator", "coordinator", "--listen", self.address, "--port",
                                      self.server.port, *SMALL, "--curve-key", keys / "coordinator.key",
                                      "--curve-allow", keys / "coordinator.allow")
        self.server.process = self.coordinator
        self.workers = []

    def start(self, name, program, *options):
        log = (self.folder / f"{name}.log").open("w")
        return subprocess.Popen([str(BIN / program), "--model", str(self.model), "--tensor-parallel-size", str(self.tp),
                                 *map(str, options)], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def add_worker(self, rank, *options):
        self.workers.append(self.start(f"worker-{rank}", "worker", "--rank", rank, "--coordinator", self.address,
                                       *options))

    def log(self):
        return (self.folder / "coordinator.log").read_text()

    def end(self):
        for process in [self.coordinator, *self.workers]:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=within(30)) for process in [self.coordinator, *self.workers]]
        assert codes == [0] * len(codes), self.log()


@pytest.fixture
def start_group(tmp_path):
    groups = []

    def start(*arguments):
        groups.append(Group(tmp_path, *arguments))
        return groups[-1]

    yield start
    for group in groups:
        for process in [group.coordinator, *group.workers]:
            if process.poll() is None:
                process.kill()
                process.wait()


def test_two_workers_serve_a_real_model_over_encrypted_tcp_R5(tmp_path, start_group):
    keys = keygen(tmp_path / "keys", "host-a", "host-b")
    group = start_group(SMOLLM2, 2, keys)
    group.add_worker(0, *worker_keys(keys, "host-a"))
    group.add_worker(1, *worker_keys(keys, "host-b"))
    group.server.wait_ready()
    answer = group.server.client().completions.create(model=SMOLLM2.name, prompt="The capital of France is",
                                                      temperature=0, max_tokens=1)
    assert answer.choices[0].text == " Paris"
    assert "may not connect" not in group.log()
    group.end()


def test_a_worker_with_another_key_or_none_is_kept_out_R6(tmp_path, start_group):
    keys, strange = keygen(tmp_path / "keys"), keygen(tmp_path / "strange")
    group = start_group(TINY / "qwen3", 1, keys)
    rank = ["worker", "--model", TINY / "qwen3", "--rank", 0, "--tensor-parallel-size", 1, "--coordinator",
            group.address]

    refused = run(*rank, "--curve-key", strange / "worker.key", "--curve-allow", keys / "worker.allow")
    assert refused.returncode == 64 and "refuses the key" in refused.stderr, refused.stderr
    secret = next(line.split()[1] for line in (strange / "worker.key").read_text().splitlines() if "secret" in line)
    assert secret not in refused.stderr + group.log()
    public = (strange / "coordinator.allow").read_text().split()[1]
    wait_for(lambda: "may not connect" in group.log() and public in group.log(), 20, "the coordinator says whom it refused")

    no_keys = subprocess.Popen([str(BIN / "worker"), *map(str, rank[1:]), "--insecure-tcp"], stderr=subprocess.DEVNULL)
    wait_for(lambda: "without a fitting key" in group.log(), 30, "a peer without a key was counted")
    assert group.server.get("/ready")[0] == 503  # it says Hello again and again, and is not heard
    no_keys.send_signal(signal.SIGTERM)
    no_keys.wait(timeout=within(30))

    with socket.create_connection(("127.0.0.1", int(group.address.rsplit(":", 1)[1]))) as raw:
        raw.sendall(os.urandom(4096))
    group.add_worker(0, *worker_keys(keys))
    group.server.wait_ready()
    group.end()


def test_keygen_writes_private_files_and_overwrites_none(tmp_path):
    keys = keygen(tmp_path / "keys", "host-a")
    assert sorted(p.name for p in keys.iterdir()) == ["coordinator.allow", "coordinator.key", "host-a.key", "worker.allow"]
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in keys.iterdir())
    before = {p.name: p.read_bytes() for p in keys.iterdir()}
    again = run("refrain", "keygen", keys, "host-a")
    assert again.returncode == 64 and "host-a.key" in again.stderr
    assert {p.name: p.read_bytes() for p in keys.iterdir()} == before
    keygen(keys, "host-b")
    assert len((keys / "coordinator.allow").read_text().splitlines()) == 2
    assert (keys / "coordinator.key").read_bytes() == before["coordinator.key"]


@pytest.mark.parametrize("options, words", [
    ([], ["--curve-key", "--insecure-tcp", "keygen"]),
    (["--curve-key", "{keys}/coordinator.key"], ["--curve-allow", "together"]),
    (["--curve-key", "{keys}/gone.key", "--curve-allow", "{keys}/coordinator.allow"], ["gone.key"]),
    (["--curve-key", "{keys}/open.key", "--curve-allow", "{keys}/coordinator.allow"], ["0644", "0600"]),
    (["--curve-key", "{keys}/coordinator.key", "--curve-allow", "{keys}/empty"], ["lists no key"])])
def test_tcp_without_fitting_keys_is_refused(tmp_path, options, words):
    keys = keygen(tmp_path / "keys")
    (keys / "open.key").write_bytes((keys / "coordinator.key").read_bytes())
    (keys / "open.key").chmod(0o644)
    (keys / "empty").write_text("# nobody\n")
    options = [o.format(keys=keys) for o in options]
    for command in (["coordinator", "--listen", f"tcp://127.0.0.1:{free_port()}", "--port", 0],
                    ["worker", "--rank", 0, "--tensor-parallel-size", 1, "--coordinator", "tcp://127.0.0.1:9"]):
        done = run(*command, "--model", TINY / "qwen3", *options)
        assert done.returncode == 64, done.stderr
        for word in words:
            assert word in done.stderr, done.stderr


def test_workers_without_keys_are_possible_when_asked_for(tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    log = tmp_path / "coordinator.log"
    common = ["--model", TINY / "qwen3", "--tensor-parallel-size", 1, "--insecure-tcp"]
    coordinator = subprocess.Popen([str(BIN / "coordinator"), "--listen", address, "--port", "0", *map(str, common)],
                                   stderr=log.open("w"))
    worker = subprocess.Popen([str(BIN / "worker"), "--rank", "0", "--coordinator", address, *map(str, common)],
                              stderr=(tmp_path / "worker.log").open("w"))
    try:
        wait_for(lambda: "ready:" in log.read_text(), 30, "ready")
    finally:
        for process in (coordinator, worker):
            process.send_signal(signal.SIGTERM)
        assert [process.wait(timeout=within(20)) for process in (coordinator, worker)] == [0, 0]
