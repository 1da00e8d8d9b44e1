"""Adding an op is four places, and tools/check_ops.py finds a fifth; tools/compare_programs finds what moved."""
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    """What check_ops reads of this tree, to spoil."""
    for folder in ("worker", "kernels/core", "kernels/host/ops", "kernels/cuda", "tests/ops", "tests/gpu/ops"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def check(root):
    result = subprocess.run([sys.executable, ROOT / "tools/check_ops.py", "--root", root], capture_output=True, text=True)
    return result.returncode, result.stdout.splitlines()[:-1]


def spoil(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_tree_has_four_places_an_op(tree):
    assert check(tree) == (0, [])


@pytest.mark.parametrize("file", ["worker/graph/interpreter.cpp", "worker/program/printer.cpp",
                                  "worker/program/passes/validate.cpp", "worker/runner/value_dump.cpp"])
def test_a_fifth_place_is_found(tree, file):
    spoil(tree / file, "\n}  // namespace refrain::worker", "\nvoid special(const AddOp&) {}\n}  // namespace refrain::worker")
    status, faults = check(tree)
    assert status == 1 and len(faults) == 1 and faults[0].startswith(f"{file}: names AddOp")


@pytest.mark.parametrize(("file", "old", "missing"), [
    ("kernels/host/ops/table.h", "table.silu_mul =", "kernels/host/ops/table.h"),
    ("kernels/cuda/kernel_table.cpp", ".silu_mul =", "kernels/cuda/kernel_table.cpp"),
    ("worker/program/ops.h", "SiluMulOp,", "worker/program/ops.h"),
])
def test_a_place_that_lacks_the_op_is_found(tree, file, old, missing):
    spoil(tree / file, old, "")
    status, faults = check(tree)
    assert status == 1 and len(faults) == 1 and "SiluMulOp" in faults[0] and missing in faults[0]


def test_the_kernel_of_a_shared_definition_is_held_for_every_op_of_it(tree):
    spoil(tree / "kernels/host/ops/table.h", "table.add_rms_norm =", "")
    status, faults = check(tree)
    assert status == 1 and len(faults) == 2
    assert all(any(f"add_rms_norm of {op} is not in" in fault for fault in faults)
               for op in ("AddRmsNormOp", "AllReduceAddRmsNormOp"))


def test_an_op_without_a_test_is_found(tree):
    for path in list((tree / "tests/ops").glob("*.cpp")) + list((tree / "tests/gpu/ops").glob("*.cpp")):
        path.write_text(path.read_text().replace("select_rows", "x"))
    status, faults = check(tree)
    assert status == 1 and len(faults) == 1 and "select_rows of SelectRowsOp is not in tests/ops" in faults[0]


BEFORE = """== tiny rank 0 of 1
program P vocab_size=10
input  token_ids int32 [T, 1]
weight table bfloat16 [10, 4]
   0: prepare_inputs()
   1: x bfloat16 [T, 4] = embed(ids=token_ids, table=table) vocab=0:10
   2: sample(logits=x) shards=1
arena 64 bytes, 64 without reuse
at x 0
"""
AFTER = """== tiny rank 0 of 1
program P vocab_size=10
input  token_ids int32 [T, 1]
input  seq_lens int32 [R, 1]
weight table bfloat16 [10, 4]
   0: token_ids int32 [T, 1], seq_lens int32 [R, 1] = prepare_inputs()
   1: x bfloat16 [T, 4] = embed(ids=token_ids, table=table) vocab=0:10
   2: sample(logits=x, seq_lens=seq_lens) shards=1
arena 64 bytes, 64 without reuse
at x 0
"""


def compare(tmp_path, after):
    (tmp_path / "before").write_text(BEFORE)
    (tmp_path / "after").write_text(after)
    return subprocess.run([sys.executable, ROOT / "tools/compare_programs", tmp_path / "before", tmp_path / "after"],
                          capture_output=True, text=True)


def test_new_operands_are_told_and_no_fault(tmp_path):
    result = compare(tmp_path, AFTER)
    assert result.returncode == 0, result.stdout
    assert "new: sample: reads seq_lens" in result.stdout and "1 Programs, 3 ops: nothing else" in result.stdout


@pytest.mark.parametrize(("old", "new"), [
    ("at x 0", "at x 256"),  # a place in the arena
    ("vocab=0:10", "vocab=0:9"),  # an attribute
    ("ids=token_ids, ", ""),  # an operand
    ("embed(ids", "add(ids"),  # an op
    ("x bfloat16 [T, 4] =", "x bfloat16 [R, 4] ="),  # a shape
    ("input  token_ids int32 [T, 1]\ninput", "input"),  # a value
    ("== tiny rank 0 of 1", "== other"),  # a Program
    ("   2: sample(logits=x, seq_lens=seq_lens) shards=1\n", ""),
])
def test_whatever_else_moved_is_found(tmp_path, old, new):
    assert old in AFTER
    assert compare(tmp_path, AFTER.replace(old, new)).returncode == 1
