"""The device headers compile as CUDA without warnings, and as Metal's shading language as far as clang checks it."""

import importlib.util
from pathlib import Path

import pytest

from tests import device_support, metal_check
from tests.vector_support import NATIVE

needs_clang = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="needs clang of the package index: pip install ziglang"
)


@device_support.needs_nvcc
@pytest.mark.parametrize("compute", ["sm_80", "sm_90", "sm_90a", "sm_100"])
def test_every_function_compiles_as_cuda(compute: str, tmp_path: Path) -> None:
    said, binary = device_support.compile_cuda(NATIVE / "device_every.cu", compute, tmp_path)
    assert "warning" not in said and binary.stat().st_size > 0


@needs_clang
def test_every_function_is_well_typed_in_metal() -> None:
    text = (NATIVE / "device_every.metal").read_text()
    assert metal_check.errors(text.replace('"device_every.hpp"', f'"{NATIVE / "device_every.hpp"}"')) == []


KERNEL = """
#include "luminal/device/kernel.hpp"

namespace lm {{
inline namespace LM_NAMESPACE {{

kernel void test(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                 device Status* status [[buffer(2)]], constant int64_t* dims [[buffer(3)]],
                 uint index [[thread_index_in_threadgroup]]) {{
    threadgroup float stage[256];
    float sum[16] = {{}};
    {statement}
    y[index] = sum[0] + stage[0] + dims[0] + x[index];
    raise(status, LM_OPERATOR_FAILED);
}}

}}
}}
"""

RIGHT = [
    "device const float* p = x + 1; stage[index] = p[index];",
    "threadgroup float* p = stage; store(p, load<1>(x));",
    "thread float* p = sum; tile_step<4, 4>(p, stage, 1, stage, 1);",
]
WRONG = {
    "no address space": "const float* p = x + 1; stage[index] = p[index];",
    "device for threadgroup": "device float* p = stage; store(p, load<1>(x));",
    "threadgroup for device": "threadgroup const float* p = x; sum[0] = p[index];",
    "constant for device": "constant float* p = x; sum[0] = p[index];",
    "a store to constants": "dims[0] = 3;",
    "a store to an input": "store(x, 1.0f);",
    "fragments of constants": "warp_tile_step<simdgroup8x8<float>, 1, 1>(sum, dims, 8, 1, stage, 8, 1, index % 32);",
    "an atomic on floats": "atomic_add(y, 1.0f);",
    "shared memory as a status": "raise(stage, LM_INDEX_OUT_OF_RANGE);",
    "a variable called as an address space": "int device = 3; sum[0] = device;",
    "a word of the language as a name": "int thread = 3; sum[0] = thread;",
    "a function that is not there": "sum[0] = expf(sum[0]);",
}


@needs_clang
@pytest.mark.parametrize("statement", RIGHT)
def test_pointers_of_the_right_address_space_are_taken(statement: str) -> None:
    assert metal_check.errors(KERNEL.format(statement=statement)) == []


@needs_clang
@pytest.mark.parametrize("statement", WRONG.values(), ids=WRONG.keys())
def test_planted_errors_of_types_are_found(statement: str) -> None:
    assert metal_check.errors(KERNEL.format(statement=statement))
