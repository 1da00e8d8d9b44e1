"""tools/drill against real processes: three faults once each, a tiny model on two ranks (R-13)."""
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("REFRAIN_BUILD_DIR", ROOT / "build"))
FAULTS = ("slow-rank", "lose-transfers", "disconnect-storm", "sigterm")


def drill(*options):
    return subprocess.run([sys.executable, str(ROOT / "tools/drill"), "--bin", str(BUILD / "bin"), "--model",
                           str(ROOT / "tests/fixtures/models/qwen3"), *map(str, options)],
                          capture_output=True, text=True, timeout=180, check=False)


def test_three_faults_lose_nothing(tmp_path):
    result = tmp_path / "drills.json"
    done = drill("--fault", ",".join(FAULTS), "--repeats", 1, "--streams", 16, "--tokens", 100, 300, "--json", result)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(result.read_text())["faults"]
    assert tuple(row["fault"] for row in rows) == FAULTS
    for row in rows:
        assert (row["repeats"], row["lost"], row["ledger"], row["not_run"]) == (1, 0, {}, None), row
        assert row["fault"] in done.stdout


def test_requests_of_adapters_lose_nothing_with_their_workers(tmp_path):
    result = tmp_path / "drills.json"
    done = drill("--fault", "kill-rank", "--repeats", 2, "--streams", 24, "--tokens", 40, 80, "--adapters", 3, "--json", result)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(result.read_text())["faults"][0]
    assert (row["fault"], row["repeats"], row["lost"], row["ledger"], row["not_run"]) == ("kill-rank", 2, 0, {}, None), row


def test_the_noise_of_the_device_is_measured_and_the_host_has_none(tmp_path):
    result = tmp_path / "drills.json"
    done = drill("--fault", "kill-rank", "--repeats", 1, "--streams", 16, "--tokens", 20, 60, "--compare", "agreed", "--json", result)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(result.read_text())
    assert content["compare"] == "agreed" and content["noise"]["waves"] >= 4 and content["noise"]["requests"] == 16
    assert content["noise"]["differ"] == 0 and content["noise"]["share_of_text_agreed"] == 1, content["noise"]
    table = drill("--markdown", result)
    assert table.returncode == 0 and table.stdout.splitlines()[-1].startswith("| kill-rank | 1 | "), table.stdout + table.stderr


def test_an_unknown_fault_is_refused_and_the_known_ones_are_named():
    done = drill("--fault", "no-such-fault")
    assert done.returncode == 64 and "kill-rank" in done.stderr


def test_a_loss_in_a_wave_that_should_have_none_fails_the_drill_R21(tmp_path):
    """A worker ends at a step of the fault-free wave that comes first; every client gets its whole answer all the same."""
    result = tmp_path / "drills.json"
    done = drill("--fault", "disconnect-storm", "--repeats", 1, "--streams", 8, "--tokens", 20, 40, "--json", result, "--serve",
                 "--fault", "kind=oom,rank=0,step=25")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "R-21" in done.stdout and "worker groups were lost" in done.stdout, done.stdout
