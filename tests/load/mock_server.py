"""A real coordinator in front of a mock worker: everything but the model is what serves."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/fixtures/models/qwen3"
READY_SECONDS = 120
AUDIT_RATE = 0.02  # a mock worker has nothing to compare: who is asked, and what becomes of the answers, is the coordinator's
sys.path.insert(0, str(ROOT / "tools"))
from drills import ledger  # noqa: E402


class MockServer:
    """with MockServer(build, "--max-num-seqs", 8, step_us=1000) as server: ..."""

    def __init__(self, build, *options, step_us=0, blocks=4096, max_positions=0, audit_rate=AUDIT_RATE,
                 audit_differences=0):
        self.build, self.step_us, self.blocks = Path(build), step_us, blocks
        self.options = ("--audit-rate", audit_rate, *options)
        self.audit_differences = audit_differences  # what a mock audit finds
        self.max_positions = max_positions  # 0: as the fixture says
        self.port = 0
        self.processes = []

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))
        self.log = self.folder / "coordinator.log"
        address = f"ipc://{self.folder}/run/engine"
        model = self._model()
        try:
            self.coordinator = self._start(self.log, self.build / "bin/coordinator", "--model", model, "--listen",
                                           address, "--port", 0, "--log-stats-interval", 0, *self.options)
            self.start_worker = lambda: self._start(
                self.folder / "worker.log", self.build / "tests/mock_worker", "--coordinator", address, "--model", model,
                "--blocks", self.blocks, "--step-us", self.step_us, "--audit-differences", self.audit_differences)
            self.worker = self.start_worker()
            self._wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind, *_):
        """What was right until here is worth nothing if the workers were lost on the way (R-21), or audits found a difference."""
        try:
            if kind is None and self.coordinator.poll() is None:  # else the test has ended it
                self.expect_undisturbed()
        finally:
            self._end()

    def expect_undisturbed(self):
        counts = {name: self.metric(f"refrain:{name}_total") for name in
                  ("worker_group_restarts", "requests_resumed", "requests_without_logit")}
        if any(counts.values()):
            raise AssertionError(f"the workers failed though no fault was planted: {counts}")
        metrics = self.metrics()
        if faults := ledger.check_audit(metrics) + ledger.check_audited({}, metrics, AUDIT_RATE):
            raise AssertionError("; ".join(map(str, faults)))

    def replace_worker(self):
        """A planted fault: the worker is killed and another one comes."""
        self.worker.kill()
        self.worker.wait()
        self.processes.remove(self.worker)
        self.worker = self.start_worker()
        deadline = time.monotonic() + READY_SECONDS
        while self.metric("refrain:worker_group_restarts_total") == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        self._wait_ready()

    def _end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=40)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _model(self):
        if not self.max_positions:
            return MODEL
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        config = json.loads((MODEL / "config.json").read_text()) | {"max_position_embeddings": self.max_positions}
        (model / "config.json").write_text(json.dumps(config))
        return model

    def _start(self, log, *argv):
        with log.open("w") as out:
            process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT)
        self.processes.append(process)
        return process

    def _wait_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            for process in self.processes:
                if process.poll() is not None:
                    logs = "".join(p.read_text()[-2000:] for p in self.folder.glob("*.log"))
                    raise RuntimeError(f"{process.args[0]} ended ({process.returncode}):\n{logs}")
            if found := re.search(r"listening on https?://[^:]+:(\d+)", self.log.read_text()):
                self.port = int(found.group(1))
                if self.get("/ready")[0] == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"not ready within {READY_SECONDS} s:\n{self.log.read_text()[-2000:]}")

    def _key(self):
        """A key of this server's, or None."""
        options = [str(option) for option in self.options]
        if "--api-key" in options:
            return options[options.index("--api-key") + 1]
        if "--api-key-file" in options:
            return json.loads(Path(options[options.index("--api-key-file") + 1]).read_text())["keys"][0]["key"]
        return None

    def post(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        return self._answer(request)

    def get(self, path, key=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        return self._answer(request)

    def _answer(self, request):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        """{name: sum over its labels}"""
        values = {}
        for line in self.get("/metrics", self._key())[1].splitlines():
            if line and not line.startswith("#"):
                label, value = line.rsplit(" ", 1)
                name = label.split("{")[0]
                values[name] = values.get(name, 0.0) + float(value)
        return values

    def metric(self, name, labels=""):
        """The value of a metric; `labels` is a part of its label text."""
        for line in self.get("/metrics", self._key())[1].splitlines():
            if line.startswith(name + "{") and labels in line:
                return float(line.split()[-1])
        raise KeyError(name + labels)

    def idle(self):
        return self.metric("refrain:num_requests_running") == 0 == self.metric("refrain:kv_cache_usage_perc")

    def wait_idle(self, seconds):
        """Seconds until no request runs and all blocks are free."""
        begin = time.monotonic()
        while not self.idle():
            if time.monotonic() - begin > seconds:
                raise RuntimeError(f"requests or blocks are left after {seconds} s")
            time.sleep(0.02)
        return time.monotonic() - begin

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.coordinator.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def thread_seconds(self):
        """CPU seconds of each of the coordinator's threads, by name and number."""
        seconds = {}
        for task in Path(f"/proc/{self.coordinator.pid}/task").iterdir():
            name = (task / "comm").read_text().strip()
            seconds[name, int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        return seconds

    def memory_kib(self):
        return self._status("VmRSS")

    def threads(self):
        return self._status("Threads")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.coordinator.pid}/fd"))

    def _status(self, name):
        text = Path(f"/proc/{self.coordinator.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", text).group(1))
