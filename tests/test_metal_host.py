"""The host code of libraries for Metal, whole, on a stand-in for the Objective-C runtime and Metal."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from luminal.codegen import build, platform, toolchain
from luminal.core.errors import BuildError
from luminal.runtime import loader
from tests import metal_support, weights_support
from tests.abi_support import LM_FLOAT32, LM_INT64, LM_METAL, Value, value_at
from tests.mach_o import MachO
from tests.metal_support import FakeMetal, MetalExample

IDS = np.array([3, 0, 15, 3, 9], dtype=np.int64)
SCALE = np.array(-1.5, dtype=np.float32)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeMetal:
    return FakeMetal(metal_support.build_fake(tmp_path_factory.mktemp("fake")))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return metal_support.build_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> MetalExample:
    return metal_support.build_example(tmp_path_factory.mktemp("example"))


@pytest.fixture(autouse=True)
def metal(fake: FakeMetal, image: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test has the stand-in, breaks none of its rules, and leaves no object behind."""
    monkeypatch.setenv("LUMINAL_METAL_RUNTIME", str(fake.path))
    monkeypatch.setenv("LUMINAL_METAL_IMAGE", str(image))
    before = fake.objects()
    yield
    if fake.objects() != before:  # collecting takes longer than most of these tests
        gc.collect()
    assert fake.faults() == []
    assert fake.objects() == before


# ---- what it computes ------------------------------------------------------------------------------------------------


def test_two_kernels_compute_with_weights_arena_and_symbolic_dims(example: MetalExample) -> None:
    library = loader.load(example.library)
    for rows in (5, 1, 64, 2):
        ids = np.random.default_rng(rows).integers(0, 16, rows)
        (found,) = library.run([ids, SCALE])
        np.testing.assert_array_equal(found, example.expected(ids, SCALE))
    (none,) = library.run([np.zeros(0, dtype=np.int64), SCALE])
    assert none.shape == (0, 32)


def test_contexts_of_several_threads_run_at_once(example: MetalExample) -> None:
    library = loader.load(example.library)

    def runs(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(20):
            ids = generator.integers(0, 16, generator.integers(1, 65))
            np.testing.assert_array_equal(library.run([ids, SCALE])[0], example.expected(ids, SCALE))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(runs, range(4)))


def test_a_profile_runs_each_step_by_itself(example: MetalExample) -> None:
    library = loader.load(example.library, profile=True)
    (found,), times = library.profile([IDS, SCALE])
    np.testing.assert_array_equal(found, example.expected(IDS, SCALE))
    assert [time.step for time in times] == [0, 1]


def test_a_system_without_math_mode_is_told_by_its_older_switch(fake: FakeMetal, example: MetalExample) -> None:
    with fake.being(math_mode=0):
        (found,) = loader.load(example.library).run([IDS, SCALE])
    np.testing.assert_array_equal(found, example.expected(IDS, SCALE))


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_step_that_raises_is_named_and_the_next_run_is_clean(example: MetalExample) -> None:
    library = loader.load(example.library)
    with pytest.raises(IndexError, match=r"index is out of range in step 0 .*Gather '/table/Gather' \(example.py:3\)"):
        library.run([np.array([1, 16]), SCALE])
    (found,) = library.run([IDS, SCALE])
    np.testing.assert_array_equal(found, example.expected(IDS, SCALE))


def test_without_metal_the_library_loads_and_says_so(example: MetalExample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUMINAL_METAL_RUNTIME")
    with pytest.raises(RuntimeError, match=r"this system has no Metal.*: /usr/lib/libobjc.A.dylib"):
        loader.load(example.library)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"device": 0}, RuntimeError, "this machine has no GPU that Metal can use"),
        ({"apple7": 0}, RuntimeError, 'the GPU "Emulated GPU" is none of Apple\'s M1 or later'),
        ({"max_threads": 16}, RuntimeError, 'kernel "gather0" needs 32 threads .* "Emulated GPU" has registers for 16'),
        ({"simd_width": 16}, RuntimeError, 'SIMD group of the GPU "Emulated GPU" has 16 threads, .* for 32'),
        ({"memory": 1000}, MemoryError, "no memory on the GPU for the weights: 2176 bytes"),
    ],
)
def test_a_gpu_that_does_not_suffice_is_refused(
    fake: FakeMetal, example: MetalExample, settings: dict[str, int], error: type[Exception], message: str
) -> None:
    with fake.being(**settings), pytest.raises(error, match=message):
        loader.load(example.library)


def test_memory_that_is_missing_later_is_named(fake: FakeMetal, example: MetalExample) -> None:
    library = loader.load(example.library)
    with fake.being(memory=4000), pytest.raises(MemoryError, match="on the GPU for the arena of a context: 8256 bytes"):
        library.run([IDS, SCALE])
    with (
        fake.being(memory=2176 + 8256 + 8 + 8 + 8 + 40 + 4),
        pytest.raises(MemoryError, match='no memory on the GPU for output "scaled": 640 bytes'),
    ):
        library.run([IDS, SCALE])
    (found,) = library.run([IDS, SCALE])
    np.testing.assert_array_equal(found, example.expected(IDS, SCALE))


def test_a_run_that_the_gpu_gives_up_fails_with_its_reason(fake: FakeMetal, example: MetalExample) -> None:
    library = loader.load(example.library)
    with fake.being(fail_run=1), pytest.raises(RuntimeError, match="could not carry out the run: Caused GPU Hang"):
        library.run([IDS, SCALE])
    (found,) = library.run([IDS, SCALE])
    np.testing.assert_array_equal(found, example.expected(IDS, SCALE))


def test_the_log_of_the_shader_compiler_is_shown(tmp_path: Path) -> None:
    shaders = metal_support.SHADERS.replace("kernel void scale1", "#error no such type\nkernel void scale1")
    example = metal_support.build_example(tmp_path, shaders)
    line = shaders[: shaders.index("#error")].count("\n") + 1
    with pytest.raises(RuntimeError, match=f"cannot compile the kernels: program_source:{line}:2: error: no such type"):
        loader.load(example.library)


def test_a_kernel_that_is_missing_is_named(tmp_path: Path) -> None:
    example = metal_support.build_example(tmp_path, metal_support.SHADERS.replace("scale1", "scale2"))
    with pytest.raises(RuntimeError, match='the compiled kernels lack "scale1"'):
        loader.load(example.library)


# ---- the stand-in notices --------------------------------------------------------------------------------------------


def test_the_stand_in_notices_a_wrong_number_of_threads(fake: FakeMetal, tmp_path: Path) -> None:
    example = metal_support.build_example(tmp_path, threads=16)
    loader.load(example.library).run([IDS, SCALE])
    assert fake.faults() == ["kernel scale1 is dispatched with 16 threads, compiled for 32"]


def test_the_stand_in_notices_an_argument_that_is_not_bound(fake: FakeMetal, tmp_path: Path) -> None:
    example = metal_support.build_example(tmp_path, metal_support.SHADERS.replace("[[buffer(3)]]", "[[buffer(9)]]"))
    loader.load(example.library).run([IDS, SCALE])
    assert sorted(fake.faults()) == [f"argument 9 of kernel {name} is not bound" for name in ("gather0", "scale1")]


def test_the_stand_in_notices_objects_that_are_gone_and_unknown_messages(fake: FakeMetal) -> None:
    device = fake.default_device()
    assert fake.send(device, "newBufferWithLength:options:", 0, 0) == 0
    fake.send(device, "retainCount")
    fake.send(device, "release")
    fake.send(device, "newCommandQueue")
    assert fake.send(0, "newCommandQueue") == 0
    assert fake.faults() == [
        "a buffer of no bytes is asked for",
        'an object of class MTLDevice does not understand "retainCount"',
        '"newCommandQueue" is sent to an object of class MTLDevice that is gone',
    ]


# ---- buffers and queues of the caller --------------------------------------------------------------------------------


def bytes_of(fake: FakeMetal, buffer: int, count: int) -> NDArray[np.float32]:
    contents = fake.send(buffer, "contents")
    return np.frombuffer(ctypes.string_at(contents, count * 4), dtype=np.float32)


def test_values_in_buffers_of_metal_are_used_where_they_lie(fake: FakeMetal, example: MetalExample) -> None:
    abi = ctypes.CDLL(str(example.library))
    library, context = ctypes.c_void_p(), ctypes.c_void_p()
    assert abi.metal_example_open(None, ctypes.byref(library)) == 0
    assert abi.metal_example_context_create(library, ctypes.byref(context)) == 0
    device = fake.default_device()
    queue = fake.send(device, "newCommandQueue")
    ids, scaled = (fake.send(device, "newBufferWithLength:options:", size, 0) for size in (40, 640))
    ctypes.memmove(fake.send(ids, "contents"), IDS.tobytes(), 40)
    inputs = (Value * 2)(value_at(ids, LM_INT64, (5,), LM_METAL), value_at(SCALE.ctypes.data, LM_FLOAT32, ()))
    outputs = (Value * 1)(value_at(scaled, LM_FLOAT32, (5, 32), LM_METAL))
    for stream in (None, ctypes.c_void_p(queue)):
        ctypes.memset(fake.send(scaled, "contents"), 0, 640)
        assert abi.metal_example_run(context, 0, inputs, outputs, stream) == 0
        np.testing.assert_array_equal(bytes_of(fake, scaled, 160).reshape(5, 32), example.expected(IDS, SCALE))
    inputs[0] = value_at(ids, LM_INT64, (6,), LM_METAL)
    outputs[0] = value_at(scaled, LM_FLOAT32, (6, 32), LM_METAL)
    assert abi.metal_example_run(context, 0, inputs, outputs, None) == 1
    text = ctypes.create_string_buffer(1024)
    abi.metal_example_last_error(library, context, text, ctypes.c_size_t(1024))
    assert text.value == b'input "ids" lies in a buffer of 40 bytes, expected 48'
    abi.metal_example_context_destroy(context)
    assert abi.metal_example_close(library) == 0
    for owned in (ids, scaled, queue, device):
        fake.send(owned, "release")


def test_weights_are_replaced_between_runs(fake: FakeMetal, example: MetalExample) -> None:
    abi = ctypes.CDLL(str(example.library))
    library, context = ctypes.c_void_p(), ctypes.c_void_p()
    assert abi.metal_example_open(None, ctypes.byref(library)) == 0
    assert abi.metal_example_context_create(library, ctypes.byref(context)) == 0
    file = example.library.with_name("metal_example.weights").read_bytes()
    memory = ctypes.create_string_buffer(len(file) + 64)
    start = -ctypes.addressof(memory) % 64
    doubled = np.frombuffer(file[4096:], dtype=np.float32) * 2
    memory[start : start + len(file)] = weights_support.of(file, doubled.tobytes())
    image = ctypes.c_void_p(ctypes.addressof(memory) + start)
    assert abi.metal_example_set_weights(library, image, ctypes.c_size_t(len(file))) == 0
    memory[start : start + len(file)] = bytes(len(file))  # the library has its own copy
    found = np.zeros((5, 32), dtype=np.float32)
    inputs = (Value * 2)(value_at(IDS.ctypes.data, LM_INT64, (5,)), value_at(SCALE.ctypes.data, LM_FLOAT32, ()))
    outputs = (Value * 1)(value_at(found.ctypes.data, LM_FLOAT32, (5, 32)))
    assert abi.metal_example_run(context, 0, inputs, outputs, None) == 0
    expected = MetalExample(example.library, example.table * 2, example.bias * 2).expected(IDS, SCALE)
    np.testing.assert_array_equal(found, expected)
    abi.metal_example_context_destroy(context)
    assert abi.metal_example_close(library) == 0


# ---- for a Mac -------------------------------------------------------------------------------------------------------

C_FUNCTIONS = (
    "abi_version", "metadata_json", "open", "close", "context_create", "context_destroy", "workspace_size",
    "output_shape", "run", "set_weights", "reset", "get_state",
    "set_state", "last_error",
)  # fmt: skip
# What ziglang's linker exports of its own from every library, and what dyld is reached by.
OF_THE_LINKER = {"___dso_handle", "__mh_dylib_header"}


@pytest.fixture(scope="module")
def dylib(tmp_path_factory: pytest.TempPathFactory) -> MachO:
    pytest.importorskip("ziglang")
    path = build.build(metal_support.example_bundle(), tmp_path_factory.mktemp("macos")).library
    assert path.name == "libmetal_example.dylib"
    return MachO(path.read_bytes())


def test_the_library_for_a_mac_is_one_for_arm64(dylib: MachO) -> None:
    assert dylib.architecture == "arm64" and dylib.oldest_system == (14, 0)
    assert dylib.install_name == "@rpath/libmetal_example.dylib"
    assert dylib.signed  # the system starts no other code for arm64
    assert f"{Path.home()}/".encode() not in dylib.data


def test_it_exports_its_abi_alone(dylib: MachO) -> None:
    assert dylib.exports - OF_THE_LINKER == {f"_metal_example_{name}" for name in C_FUNCTIONS}


def test_it_needs_the_systems_c_library_alone(dylib: MachO) -> None:
    assert dylib.libraries == ["/usr/lib/libSystem.B.dylib"]
    assert {"_dlopen", "_memcpy"} <= dylib.imports
    foreign = ("objc", "MTL", "NS", "CF", "_Z")  # the frameworks and the C++ library are opened by name, or not at all
    assert not [name for name in dylib.imports if name.removeprefix("_").startswith(foreign)]


def test_a_compiler_for_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++")
    with pytest.raises(BuildError, match=r"CXX names 'g\+\+', .* not for aarch64 with macOS: unset it and install the"):
        toolchain.find("aarch64", platform.MACOS)


def test_a_library_for_a_mac_is_refused_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    path = build.build(metal_support.example_bundle(), tmp_path).library
    with pytest.raises(OSError, match="compiled for macOS, and this machine runs Linux"):
        loader.load(path)
