"""A wheel of what is built, in an environment of its own, and programs that run in it. For the tests of the package."""
import json
import signal
import subprocess
import sys
import venv

import pytest
from conftest import BIN, ROOT, SANITIZED, SMOLLM2, descendants, wait_for, within

strangers = pytest.mark.skipif(SANITIZED, reason="strangers link no sanitizer")
ENGINE = f"LLM({str(SMOLLM2)!r}, tensor_parallel_size=2, max_model_len=512)"
BEGIN = f"""
import asyncio, json, os, signal, sys, time
from refrain import AsyncLLM, EngineError, LLM, RequestOutputKind, SamplingParams
FRANCE = "The capital of France is"
PARIS = " Paris.\\n\\nThe answer is:"
greedy = SamplingParams(temperature=0, max_tokens=8)
endless = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "wheel"
    if folder.exists():  # another module's
        return next(folder.glob("refrain-*.whl"))
    command = [sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "--no-index",
               "-w", folder, "-C", f"cmake.define.REFRAIN_PREBUILT={BIN.parent}", "-C", f"build-dir={folder}/build"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("refrain-*.whl"))


@pytest.fixture(scope="session")
def python(wheel):
    """The interpreter of an environment with nothing but the wheel; without pip, so unpacked by another's."""
    home = wheel.parent / "env"
    if home.exists():
        return home / "bin/python"
    venv.create(home, symlinks=True)
    subprocess.run([sys.executable, "-m", "pip", "--python", home / "bin/python", "install", "-q", "--no-deps",
                    "--no-index", wheel], check=True)
    return home / "bin/python"


@pytest.fixture
def start(python, tmp_path):
    """start(code): a program that runs it behind BEGIN, elsewhere than in the tree."""
    def run(code):
        return subprocess.Popen([python, "-c", BEGIN + code], cwd=tmp_path, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return run


@pytest.fixture
def run(start):
    """run(code): what it prints as JSON at the end."""
    def finished(code):
        process = start(code)
        out, err = process.communicate(timeout=within(120))
        assert process.returncode == 0, out + err
        return json.loads(out.splitlines()[-1])
    return finished


def interrupt(process, begun):
    """SIGINT when the program has said that it has begun; the workers it then has."""
    assert process.stdout.readline() == begun + "\n"
    children = wait_for(lambda: descendants(process.pid), 20, "workers")
    process.send_signal(signal.SIGINT)
    return children
