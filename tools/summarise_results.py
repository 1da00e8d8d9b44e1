#!/usr/bin/env python3
"""Adds up JUnit files of ctest and pytest. The last line is 'N passed, N failed', alone.

Exit 1 if a test failed, if a named file is missing, or if no test ran at all.
"""
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def outcomes(path):
    """Yields (name, 'passed' | 'failed' | 'skipped', reason)."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = "::".join(filter(None, [case.get("classname"), case.get("name")]))
        bad = [child for child in case if child.tag in ("failure", "error")]
        if bad or case.get("status") == "fail":
            yield name, "failed", bad[0].get("message", "") if bad else ""
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped = case.find("skipped")
            yield name, "skipped", skipped.get("message", "") if skipped is not None else ""
        else:
            yield name, "passed", ""


def main(paths):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    missing = [path for path in paths if not Path(path).is_file()]
    for path in paths:
        if path in missing:
            print(f"no results: {path} was not written; the run was cut short")
            continue
        for name, outcome, reason in outcomes(path):
            counts[outcome] += 1
            if outcome != "passed":
                print(f"{outcome}: {name} {reason}".splitlines()[0][:200])
    if counts["skipped"]:
        print(f"{counts['skipped']} skipped, named above")
    if counts["passed"] + counts["failed"] == 0:
        print("no test ran: the filter matches none")
    failed = counts["failed"] + len(missing)
    print(f"{counts['passed']} passed, {failed} failed")
    return 1 if failed or counts["passed"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
