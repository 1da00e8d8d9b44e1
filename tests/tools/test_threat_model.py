"""docs/THREAT_MODEL.md names tests that exist."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def known_tests():
    names = set()
    for path in (ROOT / "tests").rglob("*"):
        if path.suffix == ".cpp":
            for suite, test in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.M):
                names |= {suite, test}
        elif path.name.startswith("test_") and path.suffix == ".py":
            names |= set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.M))
    return names


def entries(page):
    """Its threats, paragraphs that begin in bold; the list of who is trusted has none."""
    return [paragraph for paragraph in page.split("\n\n") if paragraph.startswith("**")]


def test_every_entry_of_the_threat_model_names_a_test_that_exists():
    names, fuzzers = known_tests(), {p.name.removesuffix("_fuzzer.cpp") for p in (ROOT / "tests/fuzz").glob("*_fuzzer.cpp")}
    page = (ROOT / "docs/THREAT_MODEL.md").read_text()
    threats = entries(page)
    for entry in threats:
        cited = re.findall(r"`(\w+)`", entry.partition("\nTests: ")[2])
        assert cited, f"no test in: {entry}"
        unknown = [name for name in cited if name not in names and name not in fuzzers]
        assert not unknown, f"{unknown} in: {entry}"
    assert len(threats) == page.count("\nTests: ") > 40
