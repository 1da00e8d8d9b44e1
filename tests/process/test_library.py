"""The installed tree: programs, and the CMake package that another project builds against."""
import re
import subprocess

import pytest
from conftest import BIN, ROOT, SANITIZED, SMOLLM2, within

pytestmark = pytest.mark.skipif(SANITIZED, reason="strangers link no sanitizer")
FRANCE = "The capital of France is"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("installed") / "prefix"
    subprocess.run(["cmake", "--install", BIN.parent, "--prefix", prefix, "--strip"], check=True, stdout=subprocess.DEVNULL)
    return prefix


def build(source, prefix):
    """The program `ask` of a project that finds the installed package."""
    folder = prefix.parent / f"build-{source.name}"
    for command in (["cmake", "-S", source, "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"],
                    ["cmake", "--build", folder]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "ask"


@pytest.fixture(scope="module")
def ask(prefix):
    return build(ROOT / "examples", prefix)


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=within(120), **options)


def test_a_program_built_against_the_installed_package_answers(ask):
    done = run(ask, SMOLLM2, FRANCE, "--tensor-parallel-size", 2, "--max-model-len", 512)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" Paris.\n\nThe answer is:") and done.stdout.endswith("[5 tokens in; length]\n")


def test_the_program_that_the_page_shows_answers(prefix):
    blocks = dict(re.findall(r"^```(cmake|cpp)\n(.*?)^```", (ROOT / "docs/library.md").read_text(), re.M | re.S))
    source = prefix.parent / "page"
    source.mkdir()
    (source / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(page CXX)\n" + blocks["cmake"])
    (source / "ask.cpp").write_text(blocks["cpp"])
    done = run(build(source, prefix), cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, " Paris.\n\nThe answer is:"), done.stderr


def test_errors_of_the_library_are_the_command_lines(ask):
    done = run(ask, SMOLLM2, FRANCE, "--max-num-seq", 4)
    assert done.returncode == 64
    assert done.stderr == "unknown option --max-num-seq (did you mean --max-num-seqs?); --help lists them\n"
    done = run(ask, "/no/such/model", FRANCE)
    assert done.returncode == 64 and "/no/such/model" in done.stderr


def test_the_installed_command_finds_its_programs(prefix):
    done = run(prefix / "bin/refrain", "generate", "--model", SMOLLM2, "--prompt", FRANCE, "--max-tokens", 2,
               "--temperature", 0)
    assert (done.returncode, done.stdout) == (0, " Paris.\n"), done.stderr


def test_only_the_public_class_is_visible_in_the_library(prefix):
    listed = run("nm", "-DC", "--defined-only", prefix / "lib/librefrain.so").stdout.splitlines()
    names = [line.split(maxsplit=2)[2] for line in listed]
    strangers = [name for name in names if "refrain::v1::Engine" not in name]
    assert "refrain::v1::Engine::poll(std::chrono::duration<long, std::ratio<1l, 1000l> >)" in names
    assert strangers == []
