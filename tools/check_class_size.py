#!/usr/bin/env python3
"""A class has one purpose: at most 360 lines over all its files. Exit 1 with one line a fault.

Counted are the lines of its body, and those of its member functions that are defined outside of it, in any file; a class
within another one counts to that one. Code is read as tools/check_format leaves it: what begins at the left margin ends
with a brace there.
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 360
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
FOLDERS = ("apps/", "library/", "runtime/", "ipc/", "kernels/", "worker/")

CLASS = re.compile(r"^(?:template <.*> )?(?:class|struct)(?: alignas\(\S+\))? (\w+(?:<.*?>)?)(?: final)?(?: :.*)?$")
# The class of `Type Class::Inner::name(`: the first name in front of "::" that is written like a type's.
MEMBER = re.compile(r"^[^(]*?(?<![\w:])([A-Z]\w*(?:<[^()]*?>)?)::(?:\w+::)*(?:~?\w+|operator[^\w(]+)\(")
CALLABLE = re.compile(r"<[^<>()]*\([^()]*\)[^<>]*>")  # std::function<void(int)>: its parenthesis is no function's


def blocks_of(lines):
    """What begins at the left margin: (first line, line after the last one)."""
    at = 0
    while at < len(lines):
        begin = at
        at += 1
        if not lines[begin][:1].isalpha() or lines[begin].startswith("namespace "):
            continue
        if lines[begin].endswith((";", "}")):
            yield begin, at
            continue
        while at < len(lines):
            if lines[at].startswith("}"):
                at += 1
                break
            if not lines[at] and at + 1 < len(lines) and lines[at + 1][:1] not in ("", " ", "#", "}"):
                break
            at += 1
        yield begin, at


def sizes_of(text):
    """(name, lines, whether it is the class's body) of each class and each member function that is defined outside."""
    lines = text.splitlines()
    for begin, end in blocks_of(lines):
        head = CALLABLE.sub("", " ".join(line.strip() for line in lines[begin : begin + 6]))
        if "{" not in head:
            continue
        body = CLASS.match(head.split("{")[0].rstrip())
        found = body or MEMBER.match(head)
        if found:
            yield found.group(1), end - begin, body is not None


def tracked(root):
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(set(names))  # of a merge that is under way git names a file once a side


def count(root):
    """{(place, name): lines}; the place is a folder, or a file where several files of a folder have such a class."""
    parts, bodies = [], {}
    for name in tracked(root):
        path = root / name
        if not name.startswith(FOLDERS) or path.suffix not in SUFFIXES or not path.exists():
            continue
        folder = str(Path(name).parent)
        for owner, lines, body in sizes_of(path.read_text(encoding="utf-8")):
            parts.append((folder, name, owner, lines))
            if body:
                bodies.setdefault((folder, owner), set()).add(name)
    totals = {}
    for folder, name, owner, lines in parts:
        key = (name if len(bodies.get((folder, owner), ())) > 1 else folder, owner)
        totals[key] = totals.get(key, 0) + lines
    return totals


def check(root, limit=LIMIT):
    totals = count(root)
    return totals, [f"{place}: class {name} has {lines} lines, the limit is {limit}; split it by purpose"
                    for (place, name), lines in sorted(totals.items()) if lines > limit]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to check (default: this one)")
    parser.add_argument("--largest", type=int, default=0, metavar="N", help="prints the N largest classes, too")
    arguments = parser.parse_args()
    totals, faults = check(arguments.root)
    for (place, name), lines in sorted(totals.items(), key=lambda item: -item[1])[: arguments.largest]:
        print(f"{lines:5} {place}: {name}")
    print("\n".join(faults + [f"class size: {len(totals)} classes, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
