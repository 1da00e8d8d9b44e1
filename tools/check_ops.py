#!/usr/bin/env python3
"""Holds the tree to "adding an op is four places" (CONTRIBUTING.md).

The places of an op: its definition (worker/program/ops, its line in worker/program/ops.h, and what its kernels are
given in kernels/core), its kernel on the host, its kernel on CUDA, its test. So no file of worker/ names an op that is
not its definition, a model's builder or a pass that rewrites that op: what else is done with ops follows from
definitions. Exit 1 with one line a fault.
"""
import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Files and folders of worker/ that may name ops, and why.
REWRITERS = {
    "worker/program/op_builder.cpp": "emits ops",
    "worker/program/draft_passes.cpp": "emits those of a draft model's step",
    "worker/program/step_ends.cpp": "emits those that begin and end a step",
    "worker/program/passes/fuse.cpp": "rewrites",
    "worker/program/passes/select_early.cpp": "moves select_rows",
    "worker/program/passes/shard.cpp": "rewrites",
    "worker/program/passes/best_tokens.cpp": "finds the best where the logits are",
    "worker/program/passes/attention_plans.cpp": "gives attention its plan",
    "worker/program/passes/few_rows.cpp": "rewrites",
    "worker/program/passes/send_sums.cpp": "rewrites",
    "worker/program/passes/key_shares.cpp": "shares keys out for attention",
    "worker/program/passes/lora.cpp": "puts adapters behind linears",
    "worker/program/passes/score_prompts.cpp": "rewrites",
    "worker/program/passes/fold_norms.cpp": "looks at what stands behind norms",
    "worker/program/passes/publish_layers.cpp": "puts flags behind layers",
    "worker/bench/": "measures single kernels",
}
# The ends of a step are where host and device meet: the host fills and reads their operands.
ENDS = {"PrepareInputsOp", "SampleOp", "AcceptDraftsOp", "PoolOp"}
END_USERS = ("worker/program/program.h", "worker/program/program.cpp", "worker/program/op_builder.h",
             "worker/program/step_ends.h", "worker/program/draft_passes.h", "worker/graph/", "worker/runner/")
# Kernels that one device alone has; a pass makes the ops for it.
CUDA_ALONE = {"fused_linear": "lower_few_rows", "rope_attention": "lower_few_rows", "lora_linear": "lower_lora_rows",
              "share_keys": "add_key_shares"}

DEFINITION = re.compile(r"struct Definition<(\w+)>(?: : (\w+)<\w+>)? \{(.*?)\n\};", re.S)
BASE = re.compile(r"struct (\w+Definition) \{(.*?)\n\};", re.S)
COMMENT = re.compile(r"//[^\n]*")


def definitions(root):
    """op type -> (file, body of its definition with its base's)"""
    files = sorted((root / "worker/program/ops").glob("*.h"))
    bases = {base: body for path in files for base, body in BASE.findall(path.read_text())}
    found = {}
    for path in files:
        for op, base, body in DEFINITION.findall(path.read_text()):
            found[op] = (path.relative_to(root).as_posix(), body + bases.get(base, ""))
    return found


def may_name(file, op):
    if file.startswith("worker/program/ops/") or file == "worker/program/ops.h":
        return True
    if any(file == place or (place.endswith("/") and file.startswith(place)) for place in REWRITERS):
        return True
    return op in ENDS and file.startswith(END_USERS)


def check_places(root, ops):
    faults = []
    for path in sorted((root / "worker").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        file, text = path.relative_to(root).as_posix(), COMMENT.sub("", path.read_text())
        faults += [f"{file}: names {op}; what it does must follow from the definition in {place}"
                   for op, (place, _) in ops.items() if not may_name(file, op) and re.search(rf"\b{op}\b", text)]
    return faults


def tests_of(root):
    return "".join(path.read_text() for folder in ("tests/ops", "tests/gpu/ops")
                   for path in sorted((root / folder).glob("*.cpp")))


def check_kernels(root, ops):
    listed = (root / "worker/program/ops.h").read_text()
    table = (root / "kernels/core/kernel_table.h").read_text()
    host = (root / "kernels/host/ops/table.h").read_text()
    cuda = (root / "kernels/cuda/kernel_table.cpp").read_text()
    tests, faults = tests_of(root), []
    for op, (file, body) in ops.items():
        if not re.search(rf"\b{op}\b", listed):
            faults.append(f"{file}: {op} is not in worker/program/ops.h")
        slot = re.search(r"table\.(\w+) != nullptr", body)
        if slot is None:  # the communicator's, or a form that a pass rewrites
            continue
        kernel = slot.group(1)
        places = [("kernels/core/kernel_table.h", rf"\b{kernel} = nullptr", table),
                  ("kernels/cuda/kernel_table.cpp", rf"\.{kernel} =", cuda),
                  ("tests/ops or tests/gpu/ops", rf"\b{kernel}\b", tests)]
        if kernel not in CUDA_ALONE:
            places.append(("kernels/host/ops/table.h", rf"table\.{kernel} =", host))
        faults += [f"{file}: {kernel} of {op} is not in {place}"
                   for place, pattern, text in places if not re.search(pattern, text)]
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    root = parser.parse_args().root
    ops = definitions(root)
    if not ops:
        print(f"{root}: no definition of an op in worker/program/ops")
        return 1
    faults = check_places(root, ops) + check_kernels(root, ops)
    for fault in faults:
        print(fault)
    print(f"ops: {len(ops)} definitions, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
