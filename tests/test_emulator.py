"""The emulator of GPU kernels: right results, and every fault found and named."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.gpu_emulation import Image, aligned

THREADS = 64

# A sum of each 64 elements, by halves in shared memory; of each 32 by the lanes of a warp; a copy in the background;
# each 64 turned around in global memory.
CUDA = """
#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

extern "C" __global__ void __launch_bounds__(64) total(const float* __restrict__ x, float* __restrict__ y) {
    alignas(16) __shared__ float part[64];
    const int tid = threadIdx.x;
    const int task = blockIdx.x;
    part[tid] = x[64*task + tid];
    barrier();
    for (int half = 32; half > 0; half /= 2) {
        if (tid < half) part[tid] = add(part[tid], part[tid + half]);
        barrier();
    }
    if (tid == 0) y[task] = part[0];
}

extern "C" __global__ void __launch_bounds__(64) warps(const float* __restrict__ x, float* __restrict__ y) {
    const int tid = threadIdx.x;
    const int task = blockIdx.x;
    const float sum = warp_reduce_add(x[64*task + tid]);
    if (tid % 32 == 0) y[2*task + tid / 32] = sum;
}

extern "C" __global__ void __launch_bounds__(64) copied(const float* __restrict__ x, float* __restrict__ y) {
    alignas(16) __shared__ float stage[68];
    const int tid = threadIdx.x;
    const int task = blockIdx.x;
    if (tid < 17) copy_async<16>(stage + 4*tid, x + 64*task + 4*tid, tid < 16);
    copy_commit();
    copy_wait<0>();
    barrier();
    y[64*task + tid] = stage[67 - tid];
}

extern "C" __global__ void __launch_bounds__(64) turned(const float* __restrict__ x, float* __restrict__ y) {
    const int tid = threadIdx.x;
    const int task = blockIdx.x;
    y[64*task + tid] = x[64*task + tid];
    barrier_of_all_memory();
    const float other = y[64*task + 63 - tid];
    barrier_of_all_memory();
    y[64*task + tid] = other;
}

}  // namespace LM_NAMESPACE
}  // namespace lm
"""

METAL = """
#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

kernel void total(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
        uint task [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    alignas(16) threadgroup float part[64];
    part[tid] = x[64*task + tid];
    barrier();
    for (uint half_of = 32; half_of > 0; half_of /= 2) {
        if (tid < half_of) part[tid] = add(part[tid], part[tid + half_of]);
        barrier();
    }
    if (tid == 0) y[task] = part[0];
}

kernel void turned(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
        uint task [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    y[64*task + tid] = x[64*task + tid];
    barrier_of_all_memory();
    const float other = y[64*task + 63 - tid];
    barrier_of_all_memory();
    y[64*task + tid] = other;
}

}  // namespace LM_NAMESPACE
}  // namespace lm
"""

TABLE = """
#include "luminal/device/kernel.hpp"

#include "emulator.h"

namespace lm {
inline namespace LM_NAMESPACE {
%s
}  // namespace LM_NAMESPACE
}  // namespace lm

static const char* const names[] = {"x", "y"};
extern "C" const lm_emulated_kernel lm_emulated_kernels[] = {
%s
    {nullptr, nullptr, 0, 0, nullptr},
};
"""
CALL = """
%svoid %s(const float* x, float* y%s);
static void call_%s(void* const* arguments, uint32_t block, uint32_t thread_index) {
    (void)block, (void)thread_index;
    %s(static_cast<const float*>(arguments[0]), static_cast<float*>(arguments[1])%s);
}
"""


def table(language: str, names: tuple[str, ...]) -> str:
    of_cuda, of_metal = ('extern "C" ', "", ""), ("", ", uint, uint", ", block, thread_index")
    linkage, types, values = of_cuda if language == "cuda" else of_metal
    calls = "".join(CALL % (linkage, name, types, name, name, values) for name in names)
    rows = "\n".join(f'    {{"{name}", lm::call_{name}, {THREADS}, 2, names}},' for name in names)
    return TABLE % (calls, rows)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator")


@cache
def image(text: str, language: str, folder: Path) -> Image:
    names = ("total", "warps", "copied", "turned") if language == "cuda" else ("total", "turned")
    return Image({"kernels": text}, table(language, names), language, folder / f"{language}{abs(hash(text))}")


def arrays(per_block: int) -> tuple[np.ndarray, np.ndarray]:
    """Elements for three blocks, and room for ``per_block`` results of each."""
    x = np.random.default_rng(0).integers(-99, 99, 3 * THREADS).astype(np.float32)
    return aligned(x), aligned(np.zeros(3 * per_block, np.float32))


@pytest.mark.parametrize("language", ["cuda", "metal"])
def test_threads_meet_in_shared_memory(language: str, folder: Path) -> None:
    x, y = arrays(1)
    assert image(CUDA if language == "cuda" else METAL, language, folder).run("total", 3, (x, y), unwritten=(1,)) == ""
    np.testing.assert_array_equal(y, x.reshape(3, THREADS).sum(axis=1))


def test_lanes_of_a_warp_meet(folder: Path) -> None:
    x, y = arrays(2)
    assert image(CUDA, "cuda", folder).run("warps", 3, (x, y), unwritten=(1,)) == ""
    np.testing.assert_array_equal(y, x.reshape(6, 32).sum(axis=1))


def test_copies_in_the_background_arrive(folder: Path) -> None:
    x, y = arrays(THREADS)
    assert image(CUDA, "cuda", folder).run("copied", 3, (x, y), unwritten=(1,)) == ""
    stage = np.concatenate([x.reshape(3, THREADS), np.zeros((3, 4), np.float32)], axis=1)
    np.testing.assert_array_equal(y.reshape(3, THREADS), stage[:, :3:-1])


@pytest.mark.parametrize(("language", "orders"), [("cuda", True), ("metal", False)])
def test_threads_meet_in_global_memory(language: str, orders: bool, folder: Path) -> None:
    """Barriers of shared memory do not order it on Metal; those of CUDA order both."""
    text = CUDA if language == "cuda" else METAL
    x, y = arrays(THREADS)
    assert image(text, language, folder).run("turned", 3, (x, y), unwritten=(1,)) == ""
    np.testing.assert_array_equal(y.reshape(3, THREADS), x.reshape(3, THREADS)[:, ::-1])
    narrow = text.replace("barrier_of_all_memory()", "barrier()")
    found = image(narrow, language, folder).run("turned", 3, (x, y), unwritten=(1,))
    assert ("race: kernel turned, block 0, thread 0: byte 252 of y, which thread 63" in found) != orders, found


LOADED = "= x[64*task + tid];"


@pytest.mark.parametrize(
    ("kernel", "right", "wrong", "fault"),
    [
        ("total", "y[task] = part[0]", "y[0] = part[0]", "race: kernel total, block 1, thread 0: byte 0 of y,"),
        ("total", f"{LOADED}\n    barrier();", LOADED, "race: kernel total, block 0, thread 32: byte 128 of part"),
        ("total", "+ half]);\n        barrier();", "+ half]);", "race: kernel total, block 0"),
        ("total", "y[task] =", "y[task + (1 << 24)] =", "out-of-bounds: kernel total, block 0, thread 0: a write"),
        ("total", "part[tid] = x", "part[tid + 1] = x", "out-of-bounds: kernel total, block 0, thread 63: a write"),
        ("total", "task + tid];", "task + tid - 1];", "out-of-bounds: kernel total, block 0, thread 0: a read"),
        ("total", f"{LOADED}\n    barrier();", f"{LOADED}\n    if (tid < 32) barrier();", "divergent barrier"),
        ("total", "part[tid] = x", "if (tid != 40) part[tid] = x", "unwritten read: kernel total, block 0, thread 8:"),
        ("warps", "warp_reduce_add(x[64*task + tid])", "tid < 40 ? warp_reduce_add(x[tid]) : 0", "missing lanes"),
        ("copied", "    copy_wait<0>();\n", "", "unwritten read: kernel copied, block 0, thread 0: byte 268 of stage"),
        ("copied", "copy_wait<0>();\n    barrier();", "copy_wait<0>();", "of stage"),
        ("copied", "stage + 4*tid, x + 64", "stage + 4*tid, x + 1 + 64", "misaligned access: kernel copied"),
    ],
)
def test_a_planted_fault_is_named(kernel: str, right: str, wrong: str, fault: str, folder: Path) -> None:
    assert right in CUDA
    x, y = arrays(THREADS)
    found = image(CUDA.replace(right, wrong), "cuda", folder).run(kernel, 3, (x, y), unwritten=(1,))
    assert fault in found, found


def test_results_that_nothing_wrote_are_not_read(folder: Path) -> None:
    x, y = arrays(1)
    found = image(CUDA, "cuda", folder).run("total", 3, (x, y), unwritten=(0, 1))
    assert found.startswith("unwritten read: kernel total, block 0, thread 0: byte 0 of x\n")
