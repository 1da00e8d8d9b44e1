"""The checks of tools/ hold for this tree."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


@pytest.mark.parametrize("command", [
    [sys.executable, ROOT / "tools/check_layering.py"],
    [sys.executable, ROOT / "tools/check_file_size.py"],
    [sys.executable, ROOT / "tools/check_class_size.py"],
    [sys.executable, ROOT / "tools/check_ops.py"],
    [ROOT / "tools/check_format"],
    [sys.executable, ROOT / "tools/check_headers.py", "--build", os.environ.get("REFRAIN_BUILD_DIR", ROOT / "build")],
], ids=["layering", "file_size", "class_size", "ops", "format", "headers"])
def test_tree_passes(command):
    result = run(*command)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("script", ["quickstart", "install", "fetch_model", "check_format", "newcomer"])
def test_script_names_an_unknown_option_and_does_nothing(script):
    result = run(ROOT / "tools" / script, "--no-such-option")
    assert result.returncode == 64 and "usage:" in result.stderr


@pytest.mark.parametrize("script", ["quickstart", "install", "fetch_model", "check_format", "test", "newcomer"])
def test_script_explains_itself(script):
    result = run(ROOT / "tools" / script, "--help")
    assert result.returncode == 0 and f"usage: tools/{script}" in result.stdout + result.stderr


@pytest.mark.parametrize(("listed", "chosen", "count"), [
    (0, None, 0), (1, None, 1), (4, None, 4), (4, "0", 1), (4, "1,3", 2), (4, "", 0), (1, "0,1", 1)])
def test_gpus_are_counted_as_a_program_sees_them(tmp_path, listed, chosen, count):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\n" + "".join(f"echo 'GPU {i}: NVIDIA H200'\n" for i in range(listed)))
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    if chosen is not None:
        env["CUDA_VISIBLE_DEVICES"] = chosen
    script = f'set -euo pipefail; source "{ROOT}/tools/lib.sh"; visible_gpus'
    result = subprocess.run(["bash", "-c", script, str(ROOT / "tools/quickstart")], capture_output=True, text=True, env=env)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{count}\n", "")


# Timers, deadlines and detectors run on the monotonic clock, so that a jump of the wall clock harms nothing.
WALL_CLOCK = {"runtime/engine/engine.cpp": "the first epoch, above those of coordinators before",
              "runtime/offline/generate.cpp": "`created` of an answer",
              "runtime/load/load_run.cpp": "the date of figures",
              "runtime/supervise/incident.cpp": "the time of a record, and its file's name",
              "runtime/supervise/run_directory.cpp": "the age of files, which their dates tell",
              "runtime/server/replies.cpp": "`created` of an answer"}


def test_only_dates_that_people_see_come_from_the_wall_clock_R13():
    found = set()
    for folder in ("apps", "ipc", "kernels", "runtime", "worker"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".cpp", ".h", ".cu", ".cuh"} and not path.is_relative_to(ROOT / "runtime/text"):
                text = path.read_text()
                if any(word in text for word in ("system_clock", "gettimeofday", "CLOCK_REALTIME", "time(nullptr)")):
                    found.add(str(path.relative_to(ROOT)))
    assert found == set(WALL_CLOCK)
