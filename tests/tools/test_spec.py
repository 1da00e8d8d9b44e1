"""A comment that cites CG-12 or R-7 can be followed: docs/spec states every number, docs/CONTRACTS.md accounts for each."""
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = {"CG": "docs/spec/cudagraph.md", "R": "docs/spec/reliability.md"}
# As in CG-12, CG12PaddingIsInert, CG3toCG6, R-7 and IsNoticed_R7; a range as in CG-3 … CG-6.
CITED = {"CG": re.compile(r"(?<![A-Z])CG-?(\d+)"), "R": re.compile(r"\bR-(\d+)\b|(?<=[a-z_])R(\d+)\b")}


def tracked():
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if Path(name).suffix not in {".json", ".safetensors", ".svg", ".png"} and (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(errors="ignore")


def numbers_in(text, kind):
    return {int(next(filter(None, match.groups()))) for match in CITED[kind].finditer(text)}


def with_ranges(text, kind):
    found = numbers_in(text, kind)
    for first, last in re.findall(rf"{kind}-(\d+) … {kind}-(\d+)", text):
        found |= set(range(int(first), int(last) + 1))
    return found


def statements(page, kind):
    """{number: its text}, in the page's order."""
    parts = re.split(rf"^\*\*{kind}-(\d+)\*\*", page, flags=re.M)
    return {int(number): text.split("\n## ")[0] for number, text in zip(parts[1::2], parts[2::2])}


def faults(files, kind):
    """What is wrong with the numbers of one kind in these {path: text}."""
    stated = statements(files[SPEC[kind]], kind)
    contracts = files["docs/CONTRACTS.md"]
    listed, kept, later = set(), set(), set()
    for head in heads(contracts):
        (kept if "kept for later" in head else listed).update(with_ranges(head, kind))
    for paragraph in re.findall(r"^Not yet: .*?(?=\n\n)", contracts, re.M | re.S):
        later |= numbers_in(paragraph, kind)
    found = []
    for path, text in files.items():
        found += [f"{path} cites {kind}-{n}, which {SPEC[kind]} does not state" for n in numbers_in(text, kind) - set(stated)]
    found += [f"{kind}-{n} is stated and CONTRACTS.md has no entry for it" for n in set(stated) - listed - later]
    found += [f"CONTRACTS.md has {kind}-{n} both in an entry and as not yet" for n in listed & later]
    found += [f"CONTRACTS.md and {SPEC[kind]} disagree whether {kind}-{n} is not yet" for n, text in stated.items()
              if n in later and "*Not yet" not in text]
    found += [f"{kind}-{n} is marked not yet and CONTRACTS.md does not say so" for n, text in stated.items()
              if "*Not yet" in text and n not in later | kept]
    if sorted(stated) != list(range(1, len(stated) + 1)) or list(stated) != sorted(stated):
        found.append(f"the numbers of {SPEC[kind]} are not 1 to {len(stated)} in order")
    return found


def heads(contracts):
    """The bold beginnings of the page's entries: CG-3 … CG-6 Downgrades."""
    return [" ".join(head.split()) for head in re.findall(r"(?:\A|\n\n)\*\*(.+?)\*\*", contracts, re.S)]


@pytest.mark.parametrize("kind", ["CG", "R"])
def test_every_number_that_is_cited_is_stated_and_accounted_for(kind):
    files = dict(tracked())
    assert len(statements(files[SPEC[kind]], kind)) >= 30
    assert sum(1 for text in files.values() if numbers_in(text, kind)) > 50
    assert faults(files, kind) == []


PAGE = "**CG-1** Five modes.\n\n**CG-2** Eager. *Not yet: roles.*\n\n**CG-3** Later. *Not yet.*\n"
CONTRACTS = "**CG-1 Modes.** a\n\n**CG-2 Eager.** a\n\n**CG-2, kept for later: roles.** b\n\nNot yet: CG-3 (later).\n\n"


@pytest.mark.parametrize(("path", "before", "after", "fault"), [
    ("a.cpp", "CG-1", "CG-4", "a.cpp cites CG-4"),
    ("a.cpp", "CG-1", "CG12Test", "a.cpp cites CG-12"),
    ("docs/CONTRACTS.md", "**CG-1 ", "**P-1 ", "CG-1 is stated and"),
    ("docs/CONTRACTS.md", "Not yet: CG-3", "Not yet: CG-1", "both in an entry"),
    ("docs/CONTRACTS.md", "kept for later: ", "", "CG-2 is marked not yet"),
    ("docs/spec/cudagraph.md", "Later. *Not yet.*", "Later.", "disagree whether CG-3"),
    ("docs/spec/cudagraph.md", "**CG-2**", "**CG-5**", "not 1 to 3 in order")])
def test_a_number_that_leads_nowhere_is_found(path, before, after, fault):
    files = {SPEC["CG"]: PAGE, "docs/CONTRACTS.md": CONTRACTS, "a.cpp": "// CG-1"}
    assert faults(files, "CG") == []
    files[path] = files[path].replace(before, after)
    assert any(fault in each for each in faults(files, "CG")), faults(files, "CG")
