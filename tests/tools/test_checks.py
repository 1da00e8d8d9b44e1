"""The checks of tools/ find what they are there to find, and pass what is right."""
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRAGMA = "#pragma once\n"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


layering = load("check_layering")
file_size = load("check_file_size")
headers = load("check_headers")
tidy = load("check_tidy")


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def layering_faults(tmp_path, files):
    return layering.check(write(tmp_path, files))[1]


@pytest.mark.parametrize(("file", "header"), [
    ("kernels/host/gemm.cpp", "worker/device/device.h"),
    ("worker/runner/runner.cpp", "runtime/sched/scheduler.h"),
    ("worker/worker/worker.cpp", "runtime/engine/engine.h"),
    ("worker/worker/worker.cpp", "runtime/server/server.h"),
    ("worker/graph/capturer.cpp", "runtime/text/tokenizer.h"),
    ("runtime/engine/engine.cpp", "worker/runner/runner.h"),
    ("runtime/engine/engine.cpp", "kernels/core/dtype.h"),
    ("ipc/protocol/codec.cpp", "ipc/transport/endpoint.h"),
    ("worker/device/device.cpp", "worker/device/host/stream.h"),
    ("worker/graph/capture.cpp", "worker/device/cuda/graph.h"),
    ("apps/coordinator/main.cpp", "worker/worker/worker.h"),
    ("runtime/base/log.cpp", "runtime/config/options.h"),
])
def test_layering_refuses_an_include_against_the_arrows(tmp_path, file, header):
    faults = layering_faults(tmp_path, {file: f'#include "{header}"\n', header: PRAGMA})
    assert len(faults) == 1 and file in faults[0] and ":1:" in faults[0]


@pytest.mark.parametrize(("file", "header"), [
    ("worker/runner/input.cpp", "cuda_runtime.h"),
    ("worker/device/device.h", "nccl.h"),
    ("kernels/core/table.h", "cuda/std/span"),
    ("worker/worker/worker.cpp", "boost/asio/awaitable.hpp"),
    ("runtime/engine/group.h", "zmq.hpp"),
    ("runtime/sched/scheduler.h", "cereal/cereal.hpp"),
    ("apps/worker/main.cpp", "boost/beast/http.hpp"),
])
def test_layering_keeps_third_party_headers_in_their_folders(tmp_path, file, header):
    faults = layering_faults(tmp_path, {file: f"#include <{header}>\n"})
    assert len(faults) == 1 and header in faults[0]


def test_layering_refuses_links_against_the_arrows(tmp_path):
    faults = layering_faults(tmp_path, {
        "kernels/core/CMakeLists.txt": "refrain_library(refrain_kernels_core DEPS\n  refrain_device)\n",
        "worker/device/CMakeLists.txt": "refrain_library(refrain_device DEPS refrain_kernels_core)\n"})
    assert faults == ["kernels/core/CMakeLists.txt (refrain_kernels_core): kernels/core may not use worker/device"]


def test_layering_refuses_relative_includes_tests_and_unknown_folders(tmp_path):
    faults = layering_faults(tmp_path, {
        "worker/kv/cache.cpp": '#include "../program/op.h"\n#include "op.h"\n#include "tests/util.h"\n',
        "worker/program/op.h": PRAGMA,
        "worker/extra/thing.cpp": '#include "worker/kv/cache.h"\n'})
    assert len(faults) == 4 and sum("extra" in f for f in faults) == 1


def test_layering_passes_what_is_right(tmp_path):
    count, faults = layering.check(write(tmp_path, {
        "worker/graph/capture.cpp": '#include "worker/graph/capture.h"\n#include "kernels/core/dtype.h"\n'
                                    '#include "runtime/base/result.h"\n#include <vector>\n',
        "worker/device/cuda/graph.cpp": "#include <cuda_runtime.h>\n",
        "runtime/server/http.cpp": "#include <boost/beast/http.hpp>\n",
        "runtime/text/jinja/lexer.cpp": '#include "runtime/text/jinja/lexer.h"\n'}))
    assert (count, faults) == (4, [])


def test_layering_finds_a_cycle_among_its_own_rules(monkeypatch):
    monkeypatch.setitem(layering.EXTRA, ("kernels/core", "worker/device"), "planted")
    assert any("reaches itself" in fault for fault in layering.check_arrows())


@pytest.fixture
def repository(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def test_file_size_finds_long_files_of_every_kind(repository):
    write(repository, {"worker/a.cpp": "\n" * 401, "worker/b.cpp": "\n" * 400, "tools/run": "#!/bin/sh\n" + "\n" * 400,
                       "apps/worker/main.cpp": "\n" * 151, "docs/long.md": "\n" * 900})
    count, faults = file_size.check(repository, {})
    assert count == 4
    assert sorted(fault.split(":")[0] for fault in faults) == ["apps/worker/main.cpp", "tools/run", "worker/a.cpp"]


def test_file_size_refuses_exceptions_that_are_not_needed(repository):
    write(repository, {"worker/a.cpp": "\n" * 401, "worker/b.cpp": "\n"})
    _, faults = file_size.check(repository, {"worker/a.cpp": "long", "worker/b.cpp": "short", "worker/c.cpp": "gone"})
    assert sorted(fault.split(":")[0] for fault in faults) == ["worker/b.cpp", "worker/c.cpp"]


def check_format(root, *arguments):
    return subprocess.run([ROOT / "tools/check_format", "--root", root, *arguments], capture_output=True, text=True)


def test_format_finds_and_mends_a_badly_formatted_file(repository):
    write(repository, {".clang-format": (ROOT / ".clang-format").read_text(),
                       "good.cpp": "int main() { return 0; }\n", "bad.cpp": "int main( ){return 0;}\n"})
    before = check_format(repository)
    assert before.returncode == 1 and "bad.cpp: not formatted" in before.stdout and "good.cpp" not in before.stdout
    assert check_format(repository, "--fix").returncode == 0
    assert check_format(repository).returncode == 0


def test_format_refuses_an_empty_tree(repository):
    assert check_format(repository).returncode == 1


def test_headers_finds_one_that_needs_another_first(tmp_path):
    root = write(tmp_path, {"worker/good.h": "#include <string>\ninline std::string good() { return {}; }\n",
                            "worker/bad.h": "inline std::string bad() { return {}; }\n",
                            "worker/proven.h": "syntax error\n",
                            "worker/proven.cpp": '#include "worker/proven.h"\n',
                            "worker/user.cpp": '#include <string>\n#include "worker/bad.h"\n'})
    commands = [{"file": str(root / "worker/user.cpp"), "command": f"ccache g++ -I{root} -o x.o -c {root}/worker/user.cpp"}]
    count, faults = headers.check(root, commands)
    assert count == 2 and [path.name for path, _ in faults] == ["bad.h"]


def test_clang_tidy_finds_a_wrong_name_and_passes_a_right_one(tmp_path):
    root = write(tmp_path, {
        ".clang-tidy": (ROOT / ".clang-tidy").read_text(),
        "good.cpp": "inline constexpr int kLimit = 3;\nint good_sum(int a) { constexpr int step = 2; return a + kLimit + step; }\n",
        "bad.cpp": "int BadName(int a) { return a; }\n",
        "late.cpp": "int late() { return 0; }\n"})
    commands = [{"directory": str(root), "file": str(root / name), "command": f"g++ -std=c++20 -c {root / name}"}
                for name in ("good.cpp", "bad.cpp", "late.cpp")]
    (root / "compile_commands.json").write_text(json.dumps(commands))
    tool, soon = tidy.find_clang_tidy(), time.monotonic() + 60
    assert tidy.check_file(tool, root, str(root / "good.cpp"), soon)[1] == "passed"
    _, outcome, output = tidy.check_file(tool, root, str(root / "bad.cpp"), soon)
    assert outcome == "failed" and "BadName" in output
    assert tidy.check_file(tool, root, str(root / "late.cpp"), time.monotonic() - 1)[1] == "skipped"
