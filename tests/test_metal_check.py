"""The check of Metal's kernels finds planted errors, and passes what is right."""

from __future__ import annotations

import pytest

from tests import metal_check
from tests.runtime_example import NATIVE

pytest.importorskip("ziglang")

EXAMPLE = (NATIVE / "metal_example.metal").read_text()
SCALE_PASSED = ("device const float*", "device const float*", "device const float*", "device float*",
                "constant int64_t*")  # fmt: skip

KERNEL = """#include <metal_stdlib>
using namespace metal;

float first(threadgroup const float* values) { return values[0]; }

kernel void copy0(device const float* x0 [[buffer(0)]], device float* x1 [[buffer(1)]],
                  constant int64_t* dims [[buffer(2)]], uint block [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float stage0[32];
    stage0[thread_index] = x0[block * 32 + thread_index];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < dims[0]) x1[block * 32 + thread_index] = first(stage0);
}
"""


def test_right_text_passes() -> None:
    assert metal_check.errors(KERNEL) == []
    assert metal_check.errors(EXAMPLE) == []


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("first(threadgroup const float*", "first(const float*", "no matching function for call to 'first'"),
        ("first(threadgroup const float*", "first(device const float*", "no matching function for call to 'first'"),
        ("x1[block", "x0[block", "read-only variable is not assignable"),
        ("[thread_index] = x0", "[thread_index] = dims[0] = x0", "read-only variable is not assignable"),
        ("uint thread_index", "uint thread", "undeclared identifier 'thread_index'"),
        ("first(stage0);", "double(first(stage0));", "poisoned"),
        ("kernel void", "double twice(double x) { return x; }\n\nkernel void", "poisoned"),
        ("first(stage0);", "first(stage0, 1);", "no matching function"),
        ("first(stage0);", "unknown(stage0);", "undeclared identifier 'unknown'"),
        ("first(stage0);", "*reinterpret_cast<device float*>(stage0);", "reinterpret_cast from"),
    ],
)
def test_a_planted_error_is_found(right: str, wrong: str, message: str) -> None:
    text = KERNEL.replace(right, wrong, 1)
    assert text != KERNEL
    found = metal_check.errors(text)
    assert any(message in error for error in found), found


def test_right_bindings_pass() -> None:
    assert metal_check.binding_errors(EXAMPLE, "scale1", SCALE_PASSED) == []


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("x1 [[buffer(1)]]", "x1 [[buffer(0)]]", "binds buffer(0), buffer(0), buffer(2), "),
        ("x3 [[buffer(3)]]", "x3 [[buffer(5)]]", "buffer(5), buffer(4): not 0, 1, ... in order"),
        ("device const float* x2", "device const int32_t* x2", "x2 is device const int32_t*, the host passes"),
        ("device const float* x2", "constant const float* x2", "x2 is constant const float*, the host passes"),
        ("thread_index_in_threadgroup", "thread_position_in_grid", "does not take the numbers of its block and thread"),
    ],
)
def test_a_wrong_binding_is_found(right: str, wrong: str, message: str) -> None:
    at = EXAMPLE.index("kernel void scale1")
    text = EXAMPLE[:at] + EXAMPLE[at:].replace(right, wrong, 1)
    assert text != EXAMPLE
    found = metal_check.binding_errors(text, "scale1", SCALE_PASSED)
    assert any(message in error for error in found), found


def test_a_number_of_buffers_that_differs_is_found() -> None:
    assert metal_check.binding_errors(EXAMPLE, "scale1", SCALE_PASSED[:-1]) == [
        "scale1 has 5 buffers, the host passes 4"
    ]
