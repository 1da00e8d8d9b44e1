"""The clients that people have, each in its environment (tools/clients), all against one server with the small real model.

Each with_NAME.py holds the tests of one client; run_cases.py runs it there, and each of its functions is a test here."""
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "process"))
from conftest import ROOT, SMOLLM2, Server, nothing_left_behind, within  # noqa: E402, F401

CASES = {path.stem.removeprefix("with_").replace("_", "-"): path for path in sorted(HERE.glob("with_*.py"))}
TESTS = [(client, name) for client, path in CASES.items() for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of each client, its tests' faults by name; null where there was none."""
    subprocess.run([ROOT / "tools/clients", *CASES], check=True, timeout=within(600))
    folder = tmp_path_factory.mktemp("clients")
    # In bfloat16 two first tokens are so near each other that the best one hangs on the machine's instructions.
    server = Server(folder / "serve.log", "--dtype", "float32", "--max-model-len", 2048, "--max-num-seqs", 16, "--max-queue-wait", 600,
                    "--enable-auto-tool-choice", "--tool-call-parser", "hermes", tp=1).start()

    def run(client):
        results = folder / f"{client}.json"
        python = ROOT / "build/clients" / client / "bin/python"
        done = subprocess.run([python, HERE / "run_cases.py", CASES[client], results], capture_output=True, text=True,
                              cwd=folder, timeout=within(300),
                              env={**os.environ, "REFRAIN_URL": server.base, "REFRAIN_MODEL": SMOLLM2.name})
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(results.read_text())

    with ThreadPoolExecutor(len(CASES)) as pool:
        yield dict(zip(CASES, pool.map(run, CASES)))
    assert server.stop() == 0


@pytest.mark.parametrize(("client", "name"), TESTS)
def test_client(outcomes, client, name):
    assert outcomes[client][name] is None, outcomes[client][name]


def test_no_test_is_hidden_by_another_of_its_name(outcomes):
    assert sorted((client, name) for client in outcomes for name in outcomes[client]) == sorted(TESTS)
