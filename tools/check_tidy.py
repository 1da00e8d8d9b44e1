#!/usr/bin/env python3
"""Runs clang-tidy on the C++ files that changed since a commit. Exit 1 if it finds anything.

Writes build/test-results/clang-tidy.xml for tools/summarise_results.py. When the time is up, the files that were not
reached are named; they count as skipped, not as passed.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build/test-results/clang-tidy.xml"
FOLDERS = ("apps/", "runtime/", "ipc/", "kernels/", "worker/")
# clang 14 does not announce the coroutines it has to Asio, and does not know all of GCC's warnings.
EXTRA = ["-DBOOST_ASIO_HAS_CO_AWAIT", "-DBOOST_ASIO_HAS_STD_COROUTINE", "-Wno-unknown-warning-option", "-Wno-error"]


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout


def default_base():
    """Where this branch left the main one; on the main branch itself, the commit before."""
    head = git("rev-parse", "HEAD").strip()
    for name in ("origin/HEAD", "origin/main", "main"):
        result = subprocess.run(["git", "-C", str(ROOT), "merge-base", "HEAD", name], capture_output=True, text=True)
        if result.returncode == 0 and result.stdout.strip() != head:
            return result.stdout.strip()
    parent = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--verify", "-q", "HEAD~1"], capture_output=True, text=True)
    return parent.stdout.strip() or "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # the empty tree


def changed(base):
    names = git("diff", "--name-only", "--diff-filter=d", base).splitlines()
    names += git("ls-files", "--others", "--exclude-standard").splitlines()
    return {name for name in names if name.startswith(FOLDERS) and name.endswith((".h", ".cpp"))}


def to_check(names, commands):
    """The translation units among the names, and those beside a changed header."""
    units = {str(Path(c["file"]).resolve().relative_to(ROOT)) for c in commands
             if Path(c["file"]).resolve().is_relative_to(ROOT)}
    wanted = {name if name.endswith(".cpp") else name[:-2] + ".cpp" for name in names}
    return sorted(wanted & units)


def configure_file_by_file(folder):
    """The build compiles several files together; clang-tidy wants the command of each."""
    log = subprocess.run(["cmake", "--preset", "host-debug", "-B", str(folder)], cwd=ROOT, capture_output=True, text=True)
    if log.returncode:
        sys.exit(f"check_tidy: cmake --preset host-debug failed\n{log.stderr[-2000:]}")


def find_clang_tidy():
    found = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    if not found:
        sys.exit("check_tidy: clang-tidy was not found\n  What to do: run tools/install --for-tests")
    return found


def check_file(tool, build, name, deadline):
    """(name, 'passed' | 'failed' | 'skipped', output)."""
    left = deadline - time.monotonic()
    if left <= 0:
        return name, "skipped", "no time left"
    command = [tool, "-p", str(build), "--quiet", *(f"--extra-arg={argument}" for argument in EXTRA), name]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        return name, "skipped", "no time left"
    return name, "failed" if result.returncode else "passed", result.stdout


def write_results(outcomes):
    suite = ElementTree.Element("testsuite", name="clang-tidy")
    for name, outcome, output in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname="clang-tidy", name=name)
        if outcome != "passed":
            ElementTree.SubElement(case, "failure" if outcome == "failed" else "skipped", message=output[:200])
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(RESULTS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="compare with this commit (default: where the branch left main)")
    parser.add_argument("--build", type=Path, help="a folder with compile_commands.json (default: build/tidy, made anew)")
    parser.add_argument("--seconds", type=float, default=600, help="stop after this time (default 600)")
    parser.add_argument("files", nargs="*", help="check these instead of what changed")
    arguments = parser.parse_args()
    if arguments.build is None:
        arguments.build = ROOT / "build/tidy"
        configure_file_by_file(arguments.build)
    database = arguments.build / "compile_commands.json"
    if not database.exists():
        sys.exit(f"check_tidy: {database} is missing\n  What to do: run cmake --preset host-release")
    commands = json.loads(database.read_text())
    files = to_check(arguments.files or changed(arguments.base or default_base()), commands)
    deadline = time.monotonic() + arguments.seconds
    tool = find_clang_tidy()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda name: check_file(tool, arguments.build, name, deadline), files))
    for name, outcome, output in outcomes:
        if outcome == "failed":
            print(output)
    write_results(outcomes)
    counts = {kind: sum(o[1] == kind for o in outcomes) for kind in ("passed", "failed", "skipped")}
    print(f"clang-tidy: {len(files)} files, {counts['failed']} with findings, {counts['skipped']} not reached in time")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
