"""The host code of libraries for NVIDIA's GPUs, whole, on a stand-in for the driver; and their building by nvcc."""

from __future__ import annotations

import ctypes
import gc
import platform
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from luminal.codegen import build, cuda, emulation, toolchain
from luminal.codegen.build import ImageCompiler
from luminal.core import types
from luminal.core.errors import BuildError
from luminal.runtime import loader
from tests import cuda_support, device_support, weights_support
from tests.conftest import Golden
from tests.cuda_support import (
    FOR_GROUPS,
    FOR_RANKS,
    PROGRAM,
    Abi,
    Array,
    ArrayLibrary,
    Caller,
    FakeDriver,
    inputs,
    main,
    mirror_only,
    on_device,
    on_host,
)
from tests.runtime_example import INCLUDE, run


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cuda_support.build_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def fake(path: Path) -> FakeDriver:
    return FakeDriver(path.with_name(emulation.DRIVER))


@pytest.fixture(autouse=True)
def driver(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test has the stand-in, breaks none of its rules, and leaves nothing behind."""
    monkeypatch.setenv("LUMINAL_CUDA_DRIVER", str(fake.path))
    before = fake.objects()
    yield
    if fake.objects() != before:  # collecting takes longer than most of these tests
        gc.collect()
    assert fake.faults() == []
    assert fake.objects() == before


@pytest.fixture
def caller(fake: FakeDriver, driver: None) -> Iterator[Caller]:
    made = Caller(fake)
    yield made
    made.close()


@pytest.fixture
def abi(path: Path, driver: None) -> Iterator[Abi]:
    made = Abi(path)
    assert made.opened == 0, made.error()
    yield made
    made.close()


# ---- what it computes ------------------------------------------------------------------------------------------------


def test_kernels_compute_with_weights_arena_and_symbolic_dims(path: Path) -> None:
    library = loader.load(path)
    assert library.metadata["target"]["name"] == "cuda:sm_80"
    for rows in (5, 1, 64, 2, 5):
        ids, x = inputs(rows, rows)
        np.testing.assert_array_equal(library.run([ids, x])[0], main(ids, x))
        np.testing.assert_array_equal(library.run([x], entry="mirror_only")[0], mirror_only(x))


def test_contexts_of_several_threads_run_at_once(path: Path) -> None:
    library = loader.load(path)

    def runs(seed: int) -> None:
        for turn in range(20):
            ids, x = inputs(1 + (seed * 7 + turn) % 64, seed)
            np.testing.assert_array_equal(library.run([ids, x])[0], main(ids, x))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(runs, range(4)))


def test_a_profile_runs_each_step_by_itself(fake: FakeDriver, path: Path) -> None:
    library = loader.load(path, profile=True)
    ids, x = inputs(6)
    launches = fake.calls("cuLaunchKernel")
    outputs, times = library.profile([ids, x])
    np.testing.assert_array_equal(outputs[0], main(ids, x))
    assert [time.step for time in times] == [0, 1]
    assert fake.calls("cuLaunchKernel") == launches + 2


def test_a_step_that_raises_is_named_and_the_next_run_is_clean(path: Path) -> None:
    library = loader.load(path)
    ids, x = inputs(4)
    for profile in (False, True):
        library = loader.load(path, profile=profile)
        with pytest.raises(IndexError, match=r"index is out of range in step 0 .*Gather 'rows' \(model.py:3\)"):
            library.run([np.array([0, 16, 3, 3]), x])
        np.testing.assert_array_equal(library.run([ids, x])[0], main(ids, x))


# ---- graphs ----------------------------------------------------------------------------------------------------------


def test_one_graph_serves_an_entry_at_its_dims(fake: FakeDriver, path: Path) -> None:
    library = loader.load(path)
    functions = ("cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch", "cuLaunchKernel")

    def counts() -> list[int]:
        return [fake.calls(name) for name in functions]

    before = counts()
    for rows in (3, 7, 3, 7, 3):
        ids, x = inputs(rows, rows)
        library.run([ids, x])
    made, updated, launched, single = (now - then for now, then in zip(counts(), before, strict=True))
    # One update: values of the host took more room at 7 rows than at 3, and so another place.
    assert (made, updated, launched, single) == (2, 2, 5, 0)


def test_graphs_that_were_not_used_for_long_are_given_back(fake: FakeDriver, path: Path) -> None:
    library = loader.load(path)
    sizes = [*range(1, 65), *range(64, 0, -1)]
    for rows in sizes:
        ids, x = inputs(rows, rows)
        np.testing.assert_array_equal(library.run([ids, x])[0], main(ids, x))
    # A graph, what it is launched by and its dims for each of 32 plans; modules, context, memory, stream and event.
    assert fake.objects() <= 32 * 3 + 12


# ---- values on the GPU -----------------------------------------------------------------------------------------------


def test_values_on_the_gpu_are_used_where_they_lie_on_the_callers_stream(abi: Abi, caller: Caller) -> None:
    _, context = abi.context()
    _, x = inputs(5)
    stream = caller.stream()
    place = caller.upload(x)
    outs = [caller.upload(np.zeros_like(x)) for _ in range(2)]
    for out in (*outs, outs[0]):
        assert abi.run(context, 1, [on_device(place, x.shape)], [on_device(out, x.shape)], stream) == 0
    assert not caller.floats(outs[0], x.shape).any()  # the call does not wait: no step can raise a status
    caller.synchronize(stream)
    for out in outs:
        np.testing.assert_array_equal(caller.floats(out, x.shape), mirror_only(x))


def test_a_run_with_statuses_or_values_of_the_host_waits(abi: Abi, caller: Caller) -> None:
    _, context = abi.context()
    ids, x = inputs(5)
    stream = caller.stream()
    x_place, ids_place, out = caller.upload(x), caller.upload(ids), caller.upload(np.zeros_like(x))
    given = [on_device(ids_place, ids.shape, np.int64), on_device(x_place, x.shape)]
    assert abi.run(context, 0, given, [on_device(out, x.shape)], stream) == 0
    np.testing.assert_array_equal(caller.floats(out, x.shape), main(ids, x))
    bad = caller.upload(np.array([0, 1, 2, -1, 4]))
    given[0] = on_device(bad, ids.shape, np.int64)
    assert abi.run(context, 0, given, [on_device(out, x.shape)], stream) == 2
    assert "index is out of range in step 0" in abi.error(context)
    found = np.zeros_like(x)
    assert abi.run(context, 1, [on_device(x_place, x.shape)], [on_host(found)], stream) == 0
    np.testing.assert_array_equal(found, mirror_only(x))
    assert abi.run(context, 1, [on_host(2 * x)], [on_device(out, x.shape)], stream) == 0
    np.testing.assert_array_equal(caller.floats(out, x.shape), mirror_only(2 * x))


def test_without_a_stream_the_call_waits(abi: Abi, caller: Caller) -> None:
    _, context = abi.context()
    _, x = inputs(5)
    place, out = caller.upload(x), caller.upload(np.zeros_like(x))
    assert abi.run(context, 1, [on_device(place, x.shape)], [on_device(out, x.shape)]) == 0
    np.testing.assert_array_equal(caller.floats(out, x.shape), mirror_only(x))


def test_runs_of_one_context_follow_each_other_on_any_streams(abi: Abi, caller: Caller) -> None:
    _, context = abi.context()
    _, x = inputs(5)
    first, second = caller.stream(), caller.stream()
    place, middle, out = caller.upload(x), caller.upload(np.zeros_like(x)), caller.upload(np.zeros_like(x))
    assert abi.run(context, 1, [on_device(place, x.shape)], [on_device(middle, x.shape)], first) == 0
    assert abi.run(context, 1, [on_device(middle, x.shape)], [on_device(out, x.shape)], second) == 0
    caller.synchronize(second)
    np.testing.assert_array_equal(caller.floats(out, x.shape), mirror_only(mirror_only(x)))


def test_weights_are_replaced_once_runs_have_ended(abi: Abi, caller: Caller, path: Path) -> None:
    _, context = abi.context()
    _, x = inputs(5)
    stream = caller.stream()
    place, out = caller.upload(x), caller.upload(np.zeros_like(x))
    file = path.with_name("mirrored.weights").read_bytes()
    doubled = weights_support.of(file, (np.frombuffer(file[4096:], dtype=np.float32) * 2).tobytes())
    bias = PROGRAM.constants["bias"]
    assert abi.run(context, 1, [on_device(place, x.shape)], [on_device(out, x.shape)], stream) == 0
    assert abi.set_weights(doubled) == 0
    np.testing.assert_array_equal(caller.floats(out, x.shape), x[::-1] + bias)
    found = np.zeros_like(x)
    assert abi.run(context, 1, [on_host(x)], [on_host(found)]) == 0
    np.testing.assert_array_equal(found, x[::-1] + bias * 2)
    assert abi.set_weights(file[:4000]) == 5
    assert abi.run(context, 1, [on_host(x)], [on_host(found)]) == 0
    np.testing.assert_array_equal(found, x[::-1] + bias * 2)


def test_without_weights_runs_are_refused_until_there_are_some(path: Path) -> None:
    abi = Abi(path, weights_path=b"")
    _, context = abi.context()
    _, x = inputs(3)
    found = np.zeros_like(x)
    assert abi.run(context, 1, [on_host(x)], [on_host(found)]) == 5
    assert "has no weights yet: call mirrored_set_weights first" in abi.error(context)
    assert abi.set_weights(path.with_name("mirrored.weights").read_bytes()) == 0
    assert abi.run(context, 1, [on_host(x)], [on_host(found)]) == 0
    np.testing.assert_array_equal(found, mirror_only(x))
    abi.close()


def test_values_that_kernels_cannot_use_are_refused(abi: Abi, caller: Caller) -> None:
    _, context = abi.context()
    _, x = inputs(5)
    place, out = caller.upload(x), [on_device(caller.upload(x), x.shape)]
    assert abi.run(context, 1, [on_device(place + 4, x.shape)], out) == 1
    assert abi.error(context) == 'input "x" is misaligned: the address of its data must be a multiple of 16'
    assert abi.run(context, 1, [on_device(place, x.shape, device_id=1)], out) == 1
    assert 'input "x" lies on number 1 of CUDA, expected number 0' in abi.error(context)
    metal = on_device(place, x.shape)
    metal.device = 8
    assert abi.run(context, 1, [metal], out) == 1
    assert abi.error(context) == 'input "x" lies on device 8, expected the CPU (0) or CUDA (2)'


# ---- arrays of Python on the GPU -------------------------------------------------------------------------------------


def test_arrays_on_the_gpu_are_used_where_they_lie(path: Path, fake: FakeDriver, caller: Caller) -> None:
    library, arrays = loader.load(path), ArrayLibrary(caller)
    for rows in (3, 9, 3):
        ids, x = inputs(rows, rows)
        (found,) = library.run([arrays.asarray(ids), arrays.asarray(x)])
        assert isinstance(found, Array) and (found.shape, found.dtype) == (x.shape, x.dtype)
        np.testing.assert_array_equal(found.numpy(), main(ids, x))
        (again,) = library.run({"x": found}, entry="mirror_only")
        np.testing.assert_array_equal(again.numpy(), mirror_only(main(ids, x)))
    assert set(arrays.streams) == {1}  # the default stream of the driver, as DLPack numbers it
    # One array on the GPU is enough, and those of the host are copied.
    (found,) = library.run([ids, arrays.asarray(x)])
    np.testing.assert_array_equal(found.numpy(), main(ids, x))
    (found,) = library.run([ids, x])
    np.testing.assert_array_equal(found, main(ids, x))


def test_values_of_arrays_on_the_gpu_never_pass_through_the_host(path: Path, fake: FakeDriver, caller: Caller) -> None:
    library, arrays = loader.load(path), ArrayLibrary(caller)
    _, x = inputs(4)
    on_gpu = arrays.asarray(x)
    library.run({"x": on_gpu}, entry="mirror_only")
    functions = ("cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuGraphLaunch")
    before = [fake.calls(name) for name in functions]
    library.run({"x": on_gpu}, entry="mirror_only")
    assert [fake.calls(name) - then for name, then in zip(functions, before, strict=True)] == [0, 0, 1]


def test_a_status_is_raised_with_arrays_on_the_gpu(path: Path, caller: Caller) -> None:
    library, arrays = loader.load(path), ArrayLibrary(caller)
    _, x = inputs(4)
    with pytest.raises(IndexError, match="index is out of range in step 0"):
        library.run([arrays.asarray(np.array([0, 16, 3, 3])), arrays.asarray(x)])


def test_arrays_that_kernels_cannot_use_are_refused(path: Path, caller: Caller) -> None:
    library, arrays = loader.load(path), ArrayLibrary(caller)
    _, x = inputs(4)

    def refused(array: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            library.run({"x": array}, entry="mirror_only")

    refused(arrays.asarray(x, 4), ValueError, 'input "x" is misaligned: .* must be a multiple of 16')
    refused(arrays.asarray(x.astype(np.int64)), ValueError, 'input "x" has element type int64, expected float32')
    for name in ("bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"):
        narrow = x.astype(types.ALL[name].numpy)
        refused(arrays.asarray(narrow), ValueError, rf'input "x" has element type {name}, expected float32')
    elsewhere, strided, lone = arrays.asarray(x), arrays.asarray(x), arrays.asarray(x)
    elsewhere.number = 1
    refused(elsewhere, ValueError, 'input "x" lies on number 1 of CUDA, expected number 0')
    strided.tensor.strides = (ctypes.c_int64 * 2)(1, 4)
    refused(strided, ValueError, 'input "x" is not contiguous')
    of_no_library = type("Lone", (), {n: getattr(lone, n) for n in ("__dlpack__", "__dlpack_device__")})
    refused(of_no_library(), TypeError, "must be PyTorch's or follow the array API standard, found Lone")


# ---- what is missing -------------------------------------------------------------------------------------------------


def test_without_a_driver_the_library_loads_and_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    message = r"this machine has no CUDA driver, which the library needs: /nowhere/libcuda.so.1: cannot open"
    with pytest.raises(RuntimeError, match=message):
        loader.load(path)


def test_a_driver_that_lacks_a_function_is_too_old(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    run(["gcc", "-shared", "-fPIC", tmp_path / "old.c", "-o", tmp_path / "old.so"])
    monkeypatch.setenv("LUMINAL_CUDA_DRIVER", str(tmp_path / "old.so"))
    with pytest.raises(RuntimeError, match="CUDA driver of this machine is too old: it has no cuGetErrorName; install"):
        loader.load(path)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"devices": 0}, RuntimeError, "cannot start the CUDA driver: cuInit says no CUDA-capable device is detected"),
        ({"capability": 75}, RuntimeError, "compute capability 8.0 or later; GPU 0, Emulated GPU, has 7.5"),
        ({"memory": 1000}, MemoryError, r"cannot allocate 1664 bytes on the GPU for the weights: cuMemAlloc_v2"),
    ],
)
def test_a_gpu_that_does_not_suffice_is_refused(
    fake: FakeDriver, path: Path, settings: dict[str, int], error: type[Exception], message: str
) -> None:
    with fake.being(**settings), pytest.raises(error, match=message):
        loader.load(path)


def test_the_gpu_is_the_one_that_the_options_name(fake: FakeDriver, path: Path) -> None:
    abi = Abi(path, device_id=1)
    assert abi.opened == 1 and abi.error() == "lm_options.device_id is 1, but this machine has 1 GPU"
    abi.close()
    with fake.being(devices=2):
        abi = Abi(path, device_id=1)
        assert abi.opened == 0
        abi.close()


def test_memory_that_is_missing_later_is_named(fake: FakeDriver, path: Path) -> None:
    library = loader.load(path)
    ids, x = inputs(5)
    with fake.being(memory=4000), pytest.raises(MemoryError, match="6144 bytes on the GPU for the arena of a context"):
        library.run([ids, x])
    with fake.being(memory=1664 + 6144 + 12 + 8), pytest.raises(MemoryError, match="on the GPU for inputs and outputs"):
        library.run([ids, x])
    np.testing.assert_array_equal(library.run([ids, x])[0], main(ids, x))


def test_an_image_that_is_none_for_this_gpu_is_refused(tmp_path: Path) -> None:
    def make(source: str, image: Path, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["cp", source, str(image)], cwd=folder, capture_output=True, text=True, check=False)

    path = cuda_support.build_library(tmp_path, ImageCompiler(make, "copies", "cp"))
    with pytest.raises(RuntimeError, match='cannot load kernel "lookup": cuModuleLoadData says no kernel image'):
        loader.load(path)


# ---- every call of the driver may fail -------------------------------------------------------------------------------

RELEASING = (
    "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2", "cuEventDestroy_v2", "cuGraphDestroy", "cuGraphExecDestroy",
    "cuMemFreeHost", "cuMemFree_v2", "cuModuleUnload", "cuStreamDestroy_v2",
)  # fmt: skip
FUNCTIONS = sorted(set(re.findall(r'"(cu[A-Z]\w+)"', (INCLUDE / "luminal" / "cuda" / "driver.hpp").read_text())))


def use(abi: Abi, path: Path) -> str:
    """Uses everything of a library, up to the first error: its message, or nothing."""
    if abi.opened != 0:
        return f"{abi.opened} {abi.error()}"
    status, context = abi.context()
    if status != 0:
        return f"{status} {abi.error()}"
    for rows in (2, 9, 2):
        ids, x = inputs(rows, rows)
        found = np.zeros_like(x)
        status = abi.run(context, 0, [on_host(ids), on_host(x)], [on_host(found)])
        if status != 0:
            return f"{status} {abi.error(context)}"
        np.testing.assert_array_equal(found, main(ids, x))
    status = abi.set_weights(path.with_name("mirrored.weights").read_bytes())
    return "" if status == 0 else f"{status} {abi.error()}"


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f not in RELEASING and "Error" not in f])
def test_a_call_that_fails_is_reported_and_leaves_nothing(fake: FakeDriver, path: Path, function: str) -> None:
    before = fake.objects()
    failed = 0
    while True:
        with fake.failing(function, failed + 1):
            abi = Abi(path)
            message = use(abi, path)
        abi.close()
        if not message:
            break
        failed += 1
        assert re.fullmatch(rf"7 cannot .+: {function} says an error \(CUDA_ERROR_UNKNOWN, 999\)", message), message
        assert fake.objects() == before, f"call {failed} of {function}"
        assert fake.faults() == []
    # Everything that the host code calls is called here, but for launches one by one, waits that nobody looks at, first
    # values of states, what products of groups of warps ask for (tests/test_groups.py), and what ranks of a mesh do
    # (tests/test_mesh_gpus.py).
    elsewhere = ("cuLaunchKernel", "cuEventSynchronize", "cuMemcpyDtoDAsync_v2", *FOR_GROUPS, *FOR_RANKS)
    assert failed > 0 or function in elsewhere


def test_a_launch_that_fails_under_a_profile_is_reported(fake: FakeDriver, path: Path) -> None:
    library = loader.load(path, profile=True)
    ids, x = inputs(3)
    with fake.failing("cuLaunchKernel", 2), pytest.raises(RuntimeError, match='cannot launch kernel "mirror"'):
        library.run([ids, x])
    np.testing.assert_array_equal(library.run([ids, x])[0], main(ids, x))


@pytest.mark.parametrize("function", RELEASING)
def test_what_cannot_be_given_back_without_an_error_is_given_back(fake: FakeDriver, path: Path, function: str) -> None:
    before = fake.objects()
    calls = fake.calls(function)
    with fake.failing(function):
        abi = Abi(path)
        assert use(abi, path) == ""
        abi.close()
    assert fake.calls(function) > calls
    assert fake.objects() == before


def test_a_run_that_failed_leaves_the_context_usable(fake: FakeDriver, abi: Abi) -> None:
    _, context = abi.context()
    ids, x = inputs(6)
    found = np.zeros_like(x)
    for function in ("cuGraphAddKernelNode_v2", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"):
        with fake.failing(function, 2 if function == "cuGraphAddKernelNode_v2" else 1):
            assert abi.run(context, 0, [on_host(ids), on_host(x)], [on_host(found)]) == 7
        assert abi.run(context, 0, [on_host(ids), on_host(x)], [on_host(found)]) == 0
        np.testing.assert_array_equal(found, main(ids, x))


# ---- what is generated and built -------------------------------------------------------------------------------------


def test_golden_library(golden: Golden) -> None:
    text = cuda_support.bundle().files["library.cpp"]
    golden.check("library_cuda.cpp", text[: text.index("LM_DESCRIPTION constexpr char metadata")])


def test_an_image_is_made_for_each_architecture_and_for_later_ones() -> None:
    target = replace(cuda_support.TARGET, features=("sm_100", "sm_90"), flags=("-O3",))
    assert cuda.image_flags(target) == (
        "-fatbin", "-O3", "-gencode=arch=compute_100,code=sm_100", "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_90,code=compute_90",
    )  # fmt: skip
    assert "constexpr cuda::Code model_code = {90, kernels_table};" in cuda_support.bundle(target).files["library.cpp"]


@pytest.mark.parametrize(("architectures", "oldest"), [(("sm_80", "sm_90"), "12.0"), (("sm_100", "sm_90"), "12.8")])
def test_the_project_asks_for_a_compiler_that_knows_the_gpus(
    architectures: tuple[str, ...], oldest: str, tmp_path: Path
) -> None:
    cmake, ninja = pytest.importorskip("cmake"), pytest.importorskip("ninja")
    target = replace(cuda_support.TARGET, features=architectures, architecture=platform.machine())
    for name, text in cuda_support.bundle(target).files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {"PATH": f"{cmake.CMAKE_BIN_DIR}:{ninja.BIN_DIR}:/usr/bin:/bin"}
    configure = ["cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-DNVCC={tmp_path / 'nvcc'}"]

    def configured(release: str) -> str:
        (tmp_path / "nvcc").write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.99'\n")
        (tmp_path / "nvcc").chmod(0o755)
        return run(configure, environment)

    assert "Configuring done" in configured(oldest) and "Configuring done" in configured("13.0")
    too_old = "11.8" if oldest == "12.0" else "12.6"
    with pytest.raises(AssertionError) as caught:
        configured(too_old)
    said = " ".join(str(caught.value).split())
    assert f"needs nvcc of CUDA {oldest} or later for {', '.join(architectures)}:" in said
    assert f"nvcc is of {too_old}" in said


def test_the_library_exports_its_abi_and_needs_nothing_of_cuda(path: Path) -> None:
    symbols = run(["nm", "-D", path]).splitlines()
    exported = {line.split()[-1] for line in symbols if " T " in line}
    assert exported and all(name.startswith("mirrored_") for name in exported)
    assert not [line for line in symbols if re.search(r" U (cu[A-Z]|_Z|__cxa_pure)", line)]


def test_objects_and_images_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))
    bundle = cuda_support.bundle()
    seen: list[tuple[str, int, int]] = []
    first = build.build(bundle, progress=lambda *step: seen.append(step), images=build.named_images())
    assert [step[1:] for step in seen] == [(k, 6) for k in range(1, 7)]
    assert len(list(tmp_path.rglob("*.fatbin"))) == 2
    files = {**bundle.files, "kernels/mirror.cu": bundle.files["kernels/mirror.cu"] + "// changed\n"}
    changed = replace(bundle, files=MappingProxyType(files))
    second = build.build(changed, images=build.named_images())
    assert second != first
    assert len(list(tmp_path.rglob("*.fatbin"))) == 3  # one more image, and what holds them
    assert len(list(tmp_path.rglob("*.o"))) == 4


def test_a_missing_nvcc_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC", str(tmp_path / "no-such-nvcc"))
    with pytest.raises(BuildError, match=r"NVCC names .* does not exist: install the CUDA toolkit, or its compiler"):
        build.build(cuda_support.bundle(), tmp_path)
    monkeypatch.delenv("NVCC")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(toolchain, "_NVCC_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(toolchain, "_package_folders", list)
    with pytest.raises(BuildError, match="found no nvcc on PATH or in"):
        toolchain.find_nvcc()


def test_the_nvcc_of_the_package_index_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'release 13.5'\n")
    program.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "_FOLDERS", ("/usr/bin",))
    monkeypatch.setattr(toolchain, "_NVCC_FOLDERS", (str(tmp_path),))
    found = toolchain.find_nvcc()
    assert found.command[0] == str(program) and found.version == "release 13.5"


@device_support.needs_nvcc
def test_nvcc_compiles_the_kernels_into_the_library(path: Path, tmp_path: Path) -> None:
    real = cuda_support.build_library(tmp_path, made=cuda_support.bundle())
    data = real.read_bytes()
    assert data.count(bytes.fromhex("50ed55ba")) >= 2  # the first word of a fat binary, little-endian
    with pytest.raises(RuntimeError, match='cannot load kernel "lookup": cuModuleLoadData says no kernel image'):
        loader.load(real)


@device_support.needs_nvcc
def test_a_kernel_that_nvcc_rejects_is_named_with_its_operators(tmp_path: Path) -> None:
    bundle = cuda_support.bundle()
    files = {**bundle.files, "kernels/lookup.cu": "int broken = ;\n"}
    with pytest.raises(BuildError, match=r"nvcc rejected kernel lookup, made for Gather 'rows' \(model.py:3\)"):
        build.build(replace(bundle, files=MappingProxyType(files)), tmp_path)


@device_support.needs_nvcc
def test_the_declarations_of_the_driver_are_those_of_its_header(tmp_path: Path) -> None:
    folder = device_support.cuda_include()
    if folder is None:
        pytest.skip("needs cuda.h: install the CUDA toolkit")
    text = (INCLUDE / "luminal" / "cuda" / "driver.hpp").read_text()
    members = re.findall(r"Call<[^;]*?>\s*(\w+)\{\s*\*this, \"(\w+)\"\};", text)
    assert len(members) == len(FUNCTIONS)
    checks = "".join(
        f"    same(driver.{member}, static_cast<decltype(&::{re.sub('_v2$', '', name)})>(nullptr));\n"
        for member, name in members
    )
    (tmp_path / "check.cpp").write_text(CHECK.replace("CHECKS", checks))
    run(["g++", "-std=c++17", "-fsyntax-only", "-DLM_NAMESPACE=test", f"-I{INCLUDE}", f"-I{folder}",
         tmp_path / "check.cpp"])  # fmt: skip


# Types are the same where they are passed alike: integers and enumerations of one size, and pointers.
CHECK = """
#include <cuda.h>
#include "luminal/cuda/driver.hpp"
#include <type_traits>

template <class Ours, class Theirs>
constexpr bool alike = sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
                       std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;

template <class... Ours, class... Theirs>
void same(const lm::cuda::Call<Ours...>&, CUresult (*)(Theirs...)) {
    static_assert(sizeof...(Ours) == sizeof...(Theirs) && (alike<Ours, Theirs> && ...));
}

void check(const lm::cuda::Driver& driver) {
CHECKS}

static_assert(sizeof(lm::cuda::KernelNode) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
static_assert(offsetof(lm::cuda::KernelNode, threads) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, blockDimX));
static_assert(offsetof(lm::cuda::KernelNode, shared_bytes) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes));
static_assert(offsetof(lm::cuda::KernelNode, arguments) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kernelParams));
static_assert(offsetof(lm::cuda::KernelNode, context) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, ctx));
static_assert(sizeof(lm::cuda::TensorMap) == sizeof(CUtensorMap));
static_assert(alignof(lm::cuda::TensorMap) % alignof(CUtensorMap) == 0);  // 64 in CUDA 12, 128 later
static_assert(lm::cuda::UINT16 == CU_TENSOR_MAP_DATA_TYPE_UINT16);
static_assert(lm::cuda::NOT_INTERLEAVED == CU_TENSOR_MAP_INTERLEAVE_NONE);
static_assert(lm::cuda::SWIZZLED_BY_128 == CU_TENSOR_MAP_SWIZZLE_128B);
static_assert(lm::cuda::IN_L2_BY_256 == CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
static_assert(lm::cuda::ZEROS_OUTSIDE == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
static_assert(lm::cuda::MOST_REQUESTED == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(lm::cuda::REQUESTED == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(lm::cuda::OUT_OF_MEMORY == CUDA_ERROR_OUT_OF_MEMORY && lm::cuda::NO_DEVICE == CUDA_ERROR_NO_DEVICE);
static_assert(lm::cuda::INVALID_IMAGE == CUDA_ERROR_INVALID_IMAGE);
static_assert(lm::cuda::NO_BINARY_FOR_GPU == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(lm::cuda::UNSUPPORTED_PTX == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(lm::cuda::CAPABILITY_MAJOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(lm::cuda::CAPABILITY_MINOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(lm::cuda::EVENT_WITHOUT_TIME == CU_EVENT_DISABLE_TIMING);
"""
