"""tools/check_class_size.py counts a class over all its files."""
import importlib.util
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("check_class_size", ROOT / "tools/check_class_size.py")
class_size = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(class_size)

HEADER = """#pragma once
namespace refrain {

struct Small;
enum class Kind : uint8_t { kOne };

// What it is.
class Large final : public Base {
 public:
  struct Inner {
    int a = 0;

    int b() const { return 2; }
  };
  void one();
};

}  // namespace refrain
"""
# Between and in functions there are lines that look like others' ends and beginnings.
SOURCE = """#include "a.h"

namespace refrain {
namespace {

int free_function(const Large& large) {
  return Other::make(large);
}

}  // namespace

Large::Large(std::function<void()> hook)
    : hook_(std::move(hook)), other_({[this] {
        one();
      }}) {}

void Large::one() {
  two();

  three();
}

std::vector<std::unique_ptr<Other>> Large::Inner::two(
    int a, const std::function<void(int)>& call) const {
  return Other::many();
}

bool operator==(const Large& a, const Large& b) { return Other::same(a, b); }
std::function<void(int)> Large::four() { return {}; }

void Other::one() {
  two();
}

}  // namespace refrain
"""


@pytest.fixture
def tree(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)

    def write(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


def test_counts_the_body_and_what_is_defined_outside_of_it(tree):
    totals = class_size.count(tree({"worker/a/a.h": HEADER, "worker/a/a.cpp": SOURCE}))
    assert totals[("worker/a", "Large")] == 9 + 4 + 5 + 4 + 1
    assert totals[("worker/a", "Other")] == 3
    assert not any(name in ("Small", "Kind", "Inner") for _, name in totals)


def test_finds_a_class_that_is_too_large_over_its_files_alone(tree):
    def part(n):
        return "void Large::part%d() {\n%s}\n" % (n, "  step();\n" * 200)
    root = tree({"worker/a/a.h": HEADER, "worker/a/one.cpp": part(1), "worker/a/two.cpp": part(2),
                 "worker/b/a.h": HEADER, "worker/b/a.cpp": part(1), "tests/a/a.cpp": part(1) + part(2)})
    faults = class_size.check(root)[1]
    assert len(faults) == 1 and faults[0].startswith("worker/a: class Large has 413 lines, the limit is 360")


def test_classes_of_one_name_in_one_folder_are_counted_apart(tree):
    root = tree({"worker/a/one.h": HEADER, "worker/a/two.h": HEADER + SOURCE})
    totals = class_size.count(root)
    assert totals[("worker/a/one.h", "Large")] == 9 and totals[("worker/a/two.h", "Large")] == 23


def test_the_limit_itself_may_be_reached(tree):
    root = tree({"worker/a/a.h": HEADER, "worker/a/a.cpp": SOURCE})
    assert class_size.check(root, limit=23)[1] == []
    assert len(class_size.check(root, limit=22)[1]) == 1
