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


def test_every_line_of_the_threat_model_names_a_test_that_exists():
    names, fuzzers = known_tests(), {p.name.removesuffix("_fuzzer.cpp") for p in (ROOT / "tests/fuzz").glob("*_fuzzer.cpp")}
    rows = 0
    for line in (ROOT / "docs/THREAT_MODEL.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or cells[-1] in ("test", "not trusted with") or set(line) <= set("| -"):
            continue
        if len(cells) == 3 and not cells[-1].count("`") and "fuzz" not in cells[-1]:
            continue  # the table of trust
        rows += 1
        cited = re.findall(r"`(\w+)`", cells[-1])
        assert cited, f"no test in: {line}"
        unknown = [name for name in cited if name not in names and name not in fuzzers]
        assert not unknown, f"{unknown} in: {line}"
    assert rows > 30
