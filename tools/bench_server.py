"""A `refrain serve` that a benchmark starts. A run in which a worker was lost, a request resumed or an audited step differed fails,
whatever its figures."""
import contextlib
import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from drills.server import all_groups_ready

BIN = Path(os.environ.get("REFRAIN_BUILD_DIR", Path(__file__).resolve().parent.parent / "build")) / "bin"
MUST_BE_ZERO = ("worker_group_restarts_total", "requests_resumed_total", "request_failure_total", "audit_differences_total")


def counter(metrics, name):
    """The sum of all series of refrain:NAME."""
    return sum(float(value) for value in re.findall(rf"^refrain:{name}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE))


def get(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read().decode()


def post(base, body):
    """The answer to a completion, as an object."""
    request = urllib.request.Request(base + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.loads(response.read())


def check_unmoved(metrics):
    """Ends the program if one of those counters has moved."""
    moved = {name: counter(metrics, name) for name in MUST_BE_ZERO if f"refrain:{name}" not in metrics or counter(metrics, name) != 0}
    if moved:
        raise SystemExit(f"without a planted fault these must be 0: {moved}")


@contextlib.contextmanager
def served(model, name, *options):
    """Its base URL; the server ends with the block."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([str(BIN / "refrain"), "serve", "--model", str(model), "--served-model-name", name, "--port", str(port),
                               "--log-level", "warning", *map(str, options)])
    try:
        while True:
            if server.poll() is not None:
                raise SystemExit(f"the server ended with {server.returncode}")
            try:
                get(base + "/ready")
                if all_groups_ready(get(base + "/metrics")):
                    break
            except OSError:
                pass
            time.sleep(0.2)
        yield base
        metrics = get(base + "/metrics")
        check_unmoved(metrics)
        print(f"restarts, resumed, failed and audited steps that differed: 0 ({counter(metrics, 'audit_steps_total'):.0f} steps audited)")
    finally:
        server.terminate()
        server.wait()
