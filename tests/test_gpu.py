"""Models compiled for GPUs, as users do it: emulated here, and run on a GPU where there is one."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal import api
from luminal.codegen import build, cuda, emulation, render, toolchain, weights
from luminal.codegen.render import SourceBundle
from luminal.core import device
from luminal.core import target as targets
from luminal.core.errors import BuildError, InputError, TargetError, UnsupportedError
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.grid.stream import StreamStaged
from luminal.core.schedule.grid.thread_tiles import Warps
from luminal.core.schedule.program.ir import Program
from luminal.core.types import bf16
from luminal.module import Module
from luminal.runtime import loader
from tests import device_support
from tests.codegen_programs import COLUMNS, scaled_rows
from tests.cuda_support import Array, ArrayLibrary, Caller, FakeDriver
from tests.runtime_example import run

GPUS = ("cuda:sm_90", "metal")
NO_GPU = device.missing("cuda", ("sm_80",))
needs_gpu = pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU)
needs_none = pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")


# ---- models ----------------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(20, 33)
        self.down = nn.Linear(33, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.down(torch.relu(self.up(x))), dim=-1)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 4, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).mean(dim=(2, 3))


class Products(nn.Module):
    """The two products of attention, and what stands between them."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1) @ v


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) * 2


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...], ...]
    dims: dict[str, Any] | None = None

    def made(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        torch.manual_seed(0)
        return self.model().eval(), tuple(torch.randn(shape) for shape in self.inputs)


CASES = {
    "classifier": Case(Classifier, ((5, 20),)),
    "classifier_of_any_batch": Case(Classifier, ((5, 20),), {"batch": (1, 9), "x": {0: "batch"}}),
    "convolutions": Case(Convolutions, ((2, 3, 9, 11),)),
    "products": Case(Products, ((2, 3, 12, 16),) * 3),
}


def compiled(target: str, case: Case, **options: Any) -> tuple[Module, nn.Module, tuple[torch.Tensor, ...]]:
    model, inputs = case.made()
    module = luminal.compile(model, inputs, target=target, dims=case.dims, **options)
    assert isinstance(module, Module)
    return module, model, inputs


def assert_computes(module: Module, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        torch.testing.assert_close(module(*inputs), model(*inputs), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module", params=GPUS)
def module(request: pytest.FixtureRequest) -> Module:
    """An emulated library."""
    return compiled(request.param, CASES["classifier_of_any_batch"], emulate=True)[0]


# ---- emulated --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", GPUS)
def test_an_emulated_model_agrees_with_pytorch(target: str, name: str) -> None:
    case = CASES[name]
    module, model, inputs = compiled(target, case, emulate=True)
    assert_computes(module, model, inputs)
    if case.dims:
        for batch in (1, 9, 4):
            assert_computes(module, model, tuple(torch.randn(batch, *x.shape[1:]) for x in inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", GPUS)
def test_an_emulated_gpu_takes_maxima_of_bits(target: str, dtype: torch.dtype) -> None:
    """Of windows of what is never below zero; bits of bfloat16 lie in memory, and are not made of what it widens to."""
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    x = torch.randn(1, 3, 9, 11).to(dtype)
    module = luminal.compile(model, (x,), target=target, emulate=True)
    assert isinstance(module, Module)
    texts = [path.read_text() for path in (module.folder / "kernels").rglob("*.*")]
    assert any("bits_of" in text for text in texts) == (dtype is torch.bfloat16)
    torch.testing.assert_close(module(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("target", GPUS)
def test_an_emulated_gpu_attends_by_products_of_bytes(target: str) -> None:
    """So many of which are staged at once as a block of scores has columns, or fewer."""

    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.softmax(q.float() @ k.float().T / 64, dim=-1) @ v

    q, k = (torch.randint(-9, 9, (18, 4), dtype=torch.int8) for _ in range(2))
    inputs = q, k, torch.randn(18, 8)
    module = luminal.compile(Attention(), inputs, target=target, emulate=True)
    assert_computes(module, Attention(), inputs)


class SelfAttention(nn.Module):
    """Queries, keys and values computed, of heads whose scale is no power of two."""

    def __init__(self, heads: int = 2, width: int = 32) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.parts = nn.ModuleList([nn.Linear(heads * width, heads * width) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, self.width)).transpose(1, 2) for part in self.parts)
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("target", GPUS)
def test_scores_of_computed_16_bit_queries_are_products_of_16_bits(target: str) -> None:
    """The scale is not multiplied into queries, which would make float32 of them, that no fragment takes."""
    torch.manual_seed(0)
    model, x = SelfAttention().bfloat16().eval(), torch.randn(1, 72, 64).bfloat16()
    goal = targets.parse(target)
    made = compile_graph(api.read(model, (x,)), goal)
    schedules = [kernel.scheduled.schedule for kernel in made.kernels]
    (chain,) = [s for schedule in schedules for s in schedule if isinstance(s, StreamStaged)]
    assert isinstance(chain.first, Warps) == (goal.fragment(bf16, bf16) is not None)
    module = luminal.compile(model, (x,), target=target, emulate=True)
    with torch.no_grad():
        torch.testing.assert_close(module(x), model(x), rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize("target", GPUS)
def test_an_emulated_gpu_computes_single_elements(target: str) -> None:
    """Kernels without a loop, one of which reads what it has written."""

    class Single(nn.Module):
        def forward(self, x: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, ...]:
            one = x[:1].relu()
            return torch.cat([one, one]), torch.stack([x.sum(), x.sum()]), x.index_add(0, place, one)

    inputs = torch.randn(5), torch.tensor([3])
    module = luminal.compile(Single(), inputs, target=target, emulate=True)
    for found, expected in zip(module(*inputs), Single()(*inputs), strict=True):
        torch.testing.assert_close(found, expected)


def test_threads_may_call_an_emulated_library_at_once(module: Module) -> None:
    model, _ = CASES["classifier"].made()

    def calls(seed: int) -> None:
        for batch in range(1, 6):
            assert_computes(module, model, (torch.randn(batch, 20, generator=torch.Generator().manual_seed(seed)),))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(calls, range(3)))


def test_the_manifest_names_the_device(module: Module) -> None:
    manifest = module.manifest
    assert manifest["device"] == manifest["target"]["name"].partition(":")[0]
    assert manifest["emulated"] is True and manifest["target"]["architecture"] == targets.architecture()


def test_an_emulated_library_stands_on_its_own(module: Module, tmp_path: Path) -> None:
    folder = module.export(tmp_path / "exported", python_module=False)
    assert {emulation.DRIVER, emulation.KERNELS} <= {path.name for path in folder.iterdir()}
    x = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    (expected,) = module.run({"x": x}).values()
    (found,) = luminal.load(shutil.move(folder, tmp_path / "moved")).run({"x": x}).values()
    np.testing.assert_array_equal(found, expected)


def test_the_sources_are_those_of_the_library_for_the_gpu() -> None:
    for target in GPUS:
        bundle = render.render(scaled_rows(threads=32), targets.GPUS[target])
        assert emulation.emulated(bundle).files == bundle.files


@pytest.mark.parametrize("target", GPUS)
def test_an_index_out_of_range_is_named(target: str) -> None:
    torch.manual_seed(0)
    model = Lookup().eval()
    ids = torch.tensor([[3, 11], [0, 3]])
    module = luminal.compile(model, (ids,), target=target, emulate=True)
    assert isinstance(module, Module)
    assert_computes(module, model, (ids,))
    with pytest.raises(IndexError, match=r"index is out of range in step 0 .*embedding"):
        module(ids + 5)


# ---- arrays on the GPU -----------------------------------------------------------------------------------------------


class CudaTensor(torch.Tensor):
    """A tensor of PyTorch in the memory of the stand-in for the driver, which is memory of the host."""

    array: Array

    @staticmethod
    def of(array: Array) -> CudaTensor:
        size = int(np.prod(array.shape)) * array.dtype.itemsize
        memory = (ctypes.c_char * size).from_address(array.place + array.tensor.byte_offset)
        tensor = torch.frombuffer(memory, dtype=getattr(torch, array.dtype.name)).reshape(array.shape)
        made = tensor.as_subclass(CudaTensor)
        made.array = array
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def detach(self) -> CudaTensor:
        return self

    def contiguous(self) -> CudaTensor:  # type: ignore[override]
        return self if self.is_contiguous() else self.clone()

    def clone(self) -> CudaTensor:  # type: ignore[override]
        values = self.as_subclass(torch.Tensor)
        return CudaTensor.of(self.array.library.asarray(np.ascontiguousarray(values.numpy())))

    def __dlpack_device__(self) -> tuple[int, int]:  # type: ignore[override]
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__(stream=stream)


@pytest.mark.parametrize("target", [name for name in targets.GPUS if name.startswith("cuda:")])
def test_the_emulated_gpu_is_one_that_the_library_is_for(target: str) -> None:
    model = torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)
    module = luminal.compile(model, (x,), target=target, emulate=True)
    torch.testing.assert_close(module(x), model(x))


@pytest.fixture
def arrays() -> Iterator[ArrayLibrary]:
    """Memory of the GPU that the emulated ``classifier_of_any_batch`` runs on."""
    module, _, _ = compiled("cuda:sm_90", CASES["classifier_of_any_batch"], emulate=True)
    caller = Caller(FakeDriver(module.folder / emulation.DRIVER))
    yield ArrayLibrary(caller)
    caller.close()


def test_arrays_on_the_gpu_give_arrays_on_the_gpu(
    arrays: ArrayLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, model, (x, *_) = compiled("cuda:sm_90", CASES["classifier_of_any_batch"], emulate=True)
    on_gpu = arrays.asarray(x.numpy())
    assert module.accepts(on_gpu) and not module.accepts(arrays.asarray(x[:, 1:].numpy()))
    monkeypatch.syspath_prepend(str(module.export(tmp_path)))
    monkeypatch.setenv("LUMINAL_CUDA_DRIVER", str(module.folder / emulation.DRIVER))  # for both: one GPU
    exported = importlib.import_module(module.interface.name)
    with torch.no_grad():
        expected = model(x)
    for found in (module(on_gpu), *module.run({"x": on_gpu}).values(), *exported.run(on_gpu).values()):
        assert isinstance(found, Array)
        torch.testing.assert_close(torch.from_numpy(found.numpy()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [0, 4])
def test_tensors_on_the_gpu_are_used_on_the_stream_of_pytorch(
    offset: int, arrays: ArrayLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, model, (x, *_) = compiled("cuda:sm_90", CASES["classifier_of_any_batch"], emulate=True)
    with torch.no_grad():
        expected = model(x)
    stream = arrays.caller.stream()

    def empty(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> CudaTensor:
        assert device == torch.device("cuda", 0)
        return CudaTensor.of(arrays.empty(shape, dtype=np.dtype(str(dtype).removeprefix("torch.")), device="CUDA"))

    given = CudaTensor.of(arrays.asarray(x.numpy(), offset))
    assert given.data_ptr() % 16 == offset
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=stream))
        assert module.accepts(given)
        found = module(given)
    assert isinstance(found, CudaTensor) and set(arrays.streams) == {stream}
    assert (found.array.numpy() == -1).all()  # the call did not wait
    arrays.caller.synchronize(stream)
    torch.testing.assert_close(torch.from_numpy(found.array.numpy()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["host", "metal"])
def test_arrays_on_a_gpu_are_refused_where_the_library_is_for_none_of_those(target: str) -> None:
    module, _, (x, *_) = compiled(target, CASES["classifier"], emulate=target != "host")
    tensor = x.as_subclass(CudaTensor)
    lone = type("Lone", (), {"__dlpack_device__": lambda self: (2, 0)})
    with pytest.raises(InputError, match="x: expected a tensor in host memory, found one on cuda:0"):
        module(tensor)
    with pytest.raises(InputError, match="x: expected an array in host memory, found one on CUDA device 0"):
        module(lone())


# ---- faults ----------------------------------------------------------------------------------------------------------


def planted(target: str, folder: Path, program: Program, right: str, wrong: str) -> loader.Library:
    """The emulated library of ``program`` with a mistake in its first kernel."""
    bundle = emulation.emulated(render.render(program, targets.GPUS[target]))
    path, *_ = bundle.kernels
    assert right in bundle.files[path], bundle.files[path]
    files = {**bundle.files, path: bundle.files[path].replace(right, wrong)}
    library = build.build(replace(bundle, files=MappingProxyType(files)), folder).library
    return loader.load(with_weights(library, bundle, program))


def with_weights(library: Path, bundle: SourceBundle, program: Program) -> Path:
    arrays = [program.constants[name] for name in bundle.plan.offsets]
    weights.write(
        library.with_name(f"{bundle.name}.weights"), bundle.source_hash, bundle.plan, arrays, bundle.content_id
    )
    return library


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (
            "out[n0 + tid + 24] =",
            "out-of-bounds: kernel square, block 31, thread 0: a write of 4 bytes at byte 3072 "
            r"of out \(value 'squared'\), whose memory ends at byte 3072",
        ),
        ("out[n0] =", r"race: kernel square, block 0, thread 1: byte 0 of out \(value 'squared'\), which thread 0"),
        ("out[n0 + tid] = x[n0 + tid + 24] +", r"block 31, thread 0: .*byte 3072 of x \(input 'x'\)"),
    ],
)
@pytest.mark.parametrize("target", GPUS)
def test_a_fault_of_a_kernel_is_the_error_of_the_run(target: str, wrong: str, fault: str, tmp_path: Path) -> None:
    program = scaled_rows(threads=32)
    library = planted(target, tmp_path, program, "out[n0 + tid] =", wrong)
    x = np.ones((32, COLUMNS), np.float32)
    with pytest.raises(RuntimeError, match=fault):
        library.run([x])
    # The next run is a new one: this entry has no mistake.
    np.testing.assert_array_equal(library.run([x], entry="weigh_only")[0], x * program.constants["weight"])


# ---- for the GPU -----------------------------------------------------------------------------------------------------


@device_support.needs_nvcc
def test_a_library_holds_machine_code_and_says_what_its_kernels_take(tmp_path: Path) -> None:
    module, _, _ = compiled("cuda:sm_90", CASES["classifier"])
    assert module.manifest["device"] == "cuda" and module.manifest["emulated"] is False
    for kernel in module.manifest["kernels"]:
        assert set(kernel["resources"]) == {"sm_90a"}
        uses = kernel["resources"]["sm_90a"]
        assert 8 <= uses["registers"] <= 255 and uses["spilled"] == 0 and uses["shared"] < 48 << 10
    folder = module.export(tmp_path, python_module=False)
    library = (folder / module.manifest["library"]).read_bytes()
    assert library.count(bytes.fromhex("50ed55ba")) >= len(module.manifest["kernels"])  # where fat binaries begin
    assert not [path for path in folder.iterdir() if path.name.startswith("emulated")]


@device_support.needs_nvcc
def test_the_exported_project_builds(tmp_path: Path) -> None:
    cmake, ninja = pytest.importorskip("cmake"), pytest.importorskip("ninja")
    module, _, _ = compiled("cuda:sm_90", CASES["classifier"])
    project = module.export(tmp_path / "project", python_module=False)
    found = {path.relative_to(project / "include/luminal") for path in project.rglob("include/luminal/**/*.*")}
    assert {Path("cuda/plan.hpp"), Path("device/kernel.hpp"), Path("abi.h"), Path("python.hpp")} <= found
    assert not [path for path in found if path.parts[0] in ("metal", "pool.hpp", "tile.hpp", "library.hpp")]
    path = f"{cmake.CMAKE_BIN_DIR}:{ninja.BIN_DIR}:{Path(str(device_support.NVCC)).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    run(["cmake", "-G", "Ninja", "-S", project, "-B", tmp_path / "build"], environment)
    run(["cmake", "--build", tmp_path / "build"], environment)
    assert bytes.fromhex("50ed55ba") in (tmp_path / "build" / module.manifest["library"]).read_bytes()


def test_what_the_assembler_says_is_read() -> None:
    said = (
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function 'row0' for 'sm_90'\n"
        "ptxas info    : Function properties for row0\n"
        "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem\n"
        "ptxas info    : Compiling entry function 'row0' for 'sm_100'\n"
        "ptxas info    : Function properties for row0\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 38 registers, used 0 barriers, 400 bytes cmem[0]\n"
    )
    assert cuda.resources(said) == {
        "sm_90": {"registers": 40, "spilled": 12, "shared": 2048},
        "sm_100": {"registers": 38, "spilled": 0, "shared": 0},
    }
    assert cuda.resources("") == {}


@needs_gpu
@device_support.needs_nvcc
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_agrees_with_pytorch(name: str) -> None:
    case = CASES[name]
    module, model, inputs = compiled("cuda:sm_80", case)
    assert_computes(module, model, inputs)
    if case.dims:
        for batch in (1, 9, 4):
            assert_computes(module, model, tuple(torch.randn(batch, *x.shape[1:]) for x in inputs))


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_unknown_targets_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown target 'cuda:sm_20': expected host, .*cuda:sm_90, .*metal"):
        compiled("cuda:sm_20", CASES["classifier"])


def test_only_gpus_are_emulated() -> None:
    with pytest.raises(InputError, match="emulate: expected a GPU as the target, found 'host'"):
        compiled("host", CASES["classifier"], emulate=True)


def test_metal_has_no_float64() -> None:
    model, (x,) = CASES["classifier"].made()
    with pytest.raises(UnsupportedError, match=r"Metal has no float64, in which aten.linear.default 'linear' at .*"):
        luminal.compile(model.double(), (x.double(),), target="metal", emulate=True)


def test_without_nvcc_the_user_learns_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))
    monkeypatch.setattr(toolchain, "_which", lambda name: shutil.which(name) if name != "nvcc" else None)
    monkeypatch.setattr(toolchain, "_NVCC_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(toolchain, "_package_folders", list)
    with pytest.raises(BuildError, match=r"found no nvcc .*: install the CUDA toolkit, or .*nvidia-cuda-nvcc"):
        compiled("cuda:sm_90", CASES["classifier"])


@needs_none
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        pytest.param("cuda:sm_90", r"no CUDA driver \(libcuda.so.1", marks=device_support.needs_nvcc),
        ("metal", "no Metal: it runs Linux"),
    ],
)
def test_without_a_device_a_module_says_so_when_it_is_called(target: str, reason: str, tmp_path: Path) -> None:
    if target == "metal":
        pytest.importorskip("ziglang")
    module, _, inputs = compiled(target, CASES["classifier"])
    assert module.input_names == ["x"] and module.accepts(*inputs)
    folder = module.export(tmp_path)
    for call in (lambda: module(*inputs), lambda: module.library, lambda: luminal.load(folder)):
        with pytest.raises(TargetError, match=reason) as caught:
            call()
        assert "; load its exported folder on such a machine; here, compile the model for the" in str(caught.value)
        assert str(caught.value).endswith("target 'host', or emulate the GPU (emulate=True, --emulate)")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["emulated"] is False and (folder / manifest["library"]).is_file()


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    bundle = emulation.emulated(render.render(scaled_rows(threads=32), targets.GPUS["cuda:sm_90"]))
    return FakeDriver(build.build(bundle, tmp_path_factory.mktemp("driver")).library.with_name(emulation.DRIVER))


@pytest.mark.parametrize(
    ("settings", "needed", "reason"),
    [
        ({}, "sm_90", ""),
        ({}, "sm_100", "it is for GPUs of sm_100 or later, and this machine's is sm_90"),
        ({"devices": 0}, "sm_90", "this machine has a CUDA driver, but no GPU that it can use"),
        ({"devices": 2}, "sm_100", "it is for GPUs of sm_100 or later, and those of this machine are sm_90, sm_90"),
        ({"devices": 2, "first_capability": 100}, "sm_100", ""),
        (
            {"devices": 3, "first_capability": 75},
            "sm_80",
            "it is for GPUs of sm_80 or later, and GPU 0 of this machine, which is the one that is used, is sm_75: set "
            "CUDA_VISIBLE_DEVICES so that GPU 1 or GPU 2 comes first",
        ),
    ],
)
def test_the_first_gpu_must_suffice(
    fake_driver: FakeDriver, settings: dict[str, int], needed: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUMINAL_CUDA_DRIVER", str(fake_driver.path))
    with fake_driver.being(**settings):
        assert targets.obstacle(targets.GPUS[f"cuda:{needed}"]) == reason


@pytest.mark.parametrize("function", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute"])
def test_a_driver_that_fails_is_told(fake_driver: FakeDriver, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_CUDA_DRIVER", str(fake_driver.path))
    with fake_driver.failing(function):
        found = targets.obstacle(targets.GPUS["cuda:sm_90"])
    assert found == f"this machine has a CUDA driver that fails: {function} gives error 999"


def test_a_library_that_is_no_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_CUDA_DRIVER", "libc.so.6")
    found = targets.obstacle(targets.GPUS["cuda:sm_90"])
    assert found == "this machine has a CUDA driver that fails: it has no cuInit"


@pytest.mark.parametrize(
    ("system", "machine", "reason"),
    [
        ("Darwin", "arm64", ""),
        ("Darwin", "x86_64", "it is for Macs with Apple's processors, and this one's is x86_64"),
        ("Linux", "aarch64", "this machine has no Metal: it runs Linux"),
    ],
)
def test_metal_is_that_of_macs_with_processors_of_their_own(
    system: str, machine: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LUMINAL_METAL_RUNTIME", raising=False)
    monkeypatch.setattr(device.platform, "system", lambda: system)
    monkeypatch.setattr(device.platform, "machine", lambda: machine)
    assert targets.obstacle(targets.GPUS["metal"]) == reason
