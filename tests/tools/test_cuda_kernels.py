"""What programmatic dependent launch asks of the kernels' text (kernels/cuda/device.cuh): no GPU is needed to read it.

Attention reads lengths and block tables before its predecessor has ended, lora_linear adapters. That is safe as long as every kernel waits for
its own predecessor, and a linear lets its successor start only after that wait; program validation holds the rest (a
linear between prepare_inputs and attention).
"""
import re
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "cuda"
WAIT, START = "wait_for_predecessor()", "let_successor_start()"


def kernels_of(text):
    """name -> body of every __global__ function."""
    found = {}
    pattern = r"__global__\s+(?:void\s+)?(?:__launch_bounds__\([^)]*\)\s*)?(?:void\s+)?(\w+)\s*\([^;{]*\)\s*\{"
    for match in re.finditer(pattern, text):
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        found[match.group(1)] = text[match.end():end]
    return found


def with_headers(file):
    """The file's text and that of the kernels' headers that it includes itself."""
    text = (KERNELS / file).read_text()
    headers = re.findall(r'#include "kernels/cuda/(\w+\.cuh)"', text)
    return text + "".join((KERNELS / header).read_text() for header in headers)


def helpers_that_wait(text):
    """Names of device functions that wait for the kernel that calls them."""
    found = set()
    for match in re.finditer(r"__device__[\w\s&*<>:]*?\b(\w+)\s*\([^;{]*\)\s*(?:const\s*)?\{", text):
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if WAIT in text[match.end():end]:
            found.add(match.group(1))
    return found


def all_kernels():
    return [(path.name, name, body) for path in sorted(KERNELS.glob("*.cu*"))
            for name, body in kernels_of(path.read_text()).items()]


def test_the_kernels_are_found():
    names = {name for _, name, _ in all_kernels()}
    assert {"fused_gemv_kernel", "linear_cluster_kernel", "linear_simple_kernel", "decode_kernel"} <= names and len(names) > 10, names


@pytest.mark.parametrize("file, name, body", all_kernels(), ids=lambda value: value if len(value) < 40 else "")
def test_every_kernel_waits_for_its_predecessor(file, name, body):
    waits = WAIT in body or any(
        re.search(rf"\b{helper}(<\w+>)?\(", body) for helper in helpers_that_wait(with_headers(file)))
    assert waits, f"{file}: {name} never waits; the end of a kernel must mean the end of all before it"


def test_the_prefill_kernel_of_flashinfer_waits_where_every_block_begins_or_beside_another_where_the_last_one_ends():
    text = (KERNELS / "attention_flashinfer.cu").read_text()
    begin = text.index("get_initial_work(")
    assert f"if (!params.beside) {WAIT}" in text[begin:text.index("return", begin)]
    end = text.index("return {};")
    assert f"if (params.beside && blockIdx.x + 1 == gridDim.x) {WAIT}" in text[text.rindex("before +=", 0, end):end]


def test_flashinfers_kernel_over_a_shared_prefix_waits_where_every_block_begins():
    text = (KERNELS / "attention_prefix.cu").read_text()
    begin = text.index("get_initial_work(")
    assert WAIT in text[begin:text.index("return", begin)]


@pytest.mark.parametrize("file, name", [("attention_stream.cuh", "run"), ("attention_decode.cuh", "decode_kernel")])
def test_a_kernel_that_another_runs_beside_lets_it_start_after_its_own_wait_alone(file, name):
    """What runs beside it reads, without a wait, what the kernel before both has written."""
    body = re.search(rf"\b{name}\([^;{{]*\bbool beside\) {{", (KERNELS / file).read_text())
    text = body.string[body.end():body.string.index("\n}" if name == "decode_kernel" else "\n  }\n", body.end())]
    before = text.split(START)[:-1]   # of each start, from the one before it on
    late = [part for part in before if part.rstrip().endswith(("if (beside)", "if (!early)"))]
    assert late and all(WAIT in part for part in late)
    assert all(part.rstrip().endswith("if (early)") for part in before if part not in late)
    assert name == "run" or "const bool early = !beside && " in text
    stream = (KERNELS / "attention_stream.cu").read_text()
    assert stream.count(START) == stream.count(f"if (!beside) {START}")


def test_lora_rows_starts_its_successor_when_it_has_ended():
    body = kernels_of((KERNELS / "lora_rows.cu").read_text())["rows_kernel"]
    assert START not in body, "ops of adapters read the rows' adapters and groups before their waits and rely on this"


@pytest.mark.parametrize("file", ["linear_cluster.cu", "fused_linear.cu", "prepare_inputs.cu"])
def test_linears_and_prepare_inputs_start_their_successor_after_the_wait(file):
    for name, body in kernels_of((KERNELS / file).read_text()).items():
        assert START not in body or body.index(WAIT) < body.index(START), (
            f"{file}: {name} starts its successor before its own predecessor has ended; attention reads lengths early "
            "and relies on this order")
