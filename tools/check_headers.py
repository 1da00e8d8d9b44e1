#!/usr/bin/env python3
"""Does every header compile on its own? Exit 1 with the first errors of those that do not.

A header that its own .cpp includes first is proven by the build, so only the others are compiled here, with the flags
that build/compile_commands.json has for a file that includes it, or else for a neighbour.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# header: reason why it may need another context.
EXCEPTIONS = {
    "kernels/host/simd/avx2.h": "included between '#pragma GCC target' lines only, in table_avx2.cpp",
    "kernels/host/simd/avx512.h": "included between '#pragma GCC target' lines only, in table_avx512*.cpp",
}
TOP = ("apps", "library", "runtime", "ipc", "kernels", "worker")


def proven_by_build(root, header):
    """The .cpp beside it includes it before anything else."""
    source = header.with_suffix(".cpp")
    if not source.exists():
        return False
    first = re.search(r'^\s*#\s*include\s+[<"]([^>"]+)', source.read_text(encoding="utf-8"), re.M)
    return bool(first) and first.group(1) == header.relative_to(root).as_posix()


def includes(file, name):
    return f'"{name}"' in Path(file).read_text(encoding="utf-8")


def flags_for(commands, header, name):
    """The command of a translation unit that includes the header or is nearest in the tree, without input and output."""
    nearest = max(commands, key=lambda c: (includes(c["file"], name), len(os.path.commonpath([c["file"], str(header)]))))
    words, flags = shlex.split(nearest["command"]), []
    skip = False
    for word in words:
        if skip or word == nearest["file"] or word in ("-c", "-o") or word.endswith("ccache"):
            skip = word == "-o"
            continue
        flags.append(word)
    return flags


def compile_header(root, commands, header):
    """(header, error text or '')."""
    name = header.relative_to(root).as_posix()
    code = f'#include "{name}"\n'
    command = flags_for(commands, header, name) + ["-fsyntax-only", "-x", "c++", "-"]
    result = subprocess.run(command, input=code, capture_output=True, text=True)
    return header, result.stderr if result.returncode else ""


def check(root, commands):
    ours = tuple(f"{root / top}/" for top in (*TOP, "tests"))  # no libraries that are built along
    commands = [c for c in commands if Path(c["file"]).exists()
                and (c["file"].startswith(ours) or "Unity" in Path(c["file"]).parts)]
    headers = [h for top in TOP for h in sorted((root / top).rglob("*.h"))
               if "cuda" not in h.relative_to(root).parts and not proven_by_build(root, h)
               and h.relative_to(root).as_posix() not in EXCEPTIONS]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        results = list(pool.map(lambda h: compile_header(root, commands, h), headers))
    return len(headers), [(h, error) for h, error in results if error]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path, help="the folder with compile_commands.json (default: ROOT/build)")
    arguments = parser.parse_args()
    database = (arguments.build or arguments.root / "build") / "compile_commands.json"
    if not database.exists():
        sys.exit(f"check_headers: {database} is missing\n  What to do: run cmake --preset host-release")
    count, faults = check(arguments.root, json.loads(database.read_text()))
    for header, error in faults:
        print(f"{header.relative_to(arguments.root)}: does not compile on its own\n" + "\n".join(error.splitlines()[:6]))
    print(f"headers: {count} compiled on their own, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
