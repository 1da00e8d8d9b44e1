"""Every bug that tools/mutants plants still applies, and one that does not is an error (R-20)."""
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tool():
    loader = SourceFileLoader("mutants", str(ROOT / "tools/mutants"))
    module = module_from_spec(spec_from_loader("mutants", loader))
    loader.exec_module(module)
    return module


def test_every_planted_bug_applies_R20():
    done = subprocess.run([sys.executable, ROOT / "tools/mutants", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_differ_and_every_bug_changes_its_file_and_names_tests():
    listed = tool().mutants()
    assert len({m["name"] for m in listed}) == len(listed) >= 15
    for mutant in listed:
        assert mutant["text"] != mutant["instead"] and mutant["tests"], mutant["name"]


def test_a_text_that_is_gone_or_there_twice_or_in_no_file_is_an_error(tmp_path):
    check = tool().check
    (tmp_path / "a.cpp").write_text("one two two\n")
    bug = {"name": "bug", "file": "a.cpp", "instead": "", "tests": ["test"]}
    assert check([bug | {"text": "one"}], tmp_path) == []
    assert check([bug | {"text": "two"}], tmp_path) == ["bug: its text occurs 2 times in a.cpp, not once"]
    assert check([bug | {"text": "three"}], tmp_path) == ["bug: its text occurs 0 times in a.cpp, not once"]
    assert check([bug | {"text": "one", "file": "b.cpp"}], tmp_path) == ["bug: b.cpp is not there"]
