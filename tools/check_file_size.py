#!/usr/bin/env python3
"""A source file has one subject and stays under 400 lines. Exit 1 with one line a fault.

An exception stands in EXCEPTIONS with its reason; one that is no longer needed is a fault too.
"""
import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 400
MAIN_LIMIT = 150  # apps/*/main.cpp only reads options and starts things
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}
FOLDERS = ("apps/", "library/", "python/", "examples/", "runtime/", "ipc/", "kernels/", "worker/", "tests/", "tools/", "cmake/", ".ci/")

# file: reason.
EXCEPTIONS = {}


def is_source(name, path):
    if not name.startswith(FOLDERS) or name.startswith("tests/fixtures/"):
        return False
    if path.suffix in SUFFIXES:
        return True
    if path.suffix or not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def tracked(root):
    """The names that git tracks or would add; it leaves the ignored ones out."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def check(root, exceptions):
    faults, count = [], 0
    for name in tracked(root):
        path = root / name
        if not path.exists() or not is_source(name, path):
            continue
        count += 1
        lines = len(path.read_text(encoding="utf-8").splitlines())
        limit = MAIN_LIMIT if name.startswith("apps/") else LIMIT
        if lines > limit and name not in exceptions:
            faults.append(f"{name}: {lines} lines, the limit is {limit}; split it by subject, or give a reason "
                          "in EXCEPTIONS of tools/check_file_size.py")
        if lines <= limit and name in exceptions:
            faults.append(f"{name}: {lines} lines need no exception any more; take it out of EXCEPTIONS")
    faults += [f"{name}: in EXCEPTIONS but not in the tree" for name in exceptions if not (root / name).exists()]
    return count, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to check (default: this one)")
    arguments = parser.parse_args()
    count, faults = check(arguments.root, EXCEPTIONS)
    print("\n".join(faults + [f"file size: {count} files, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
