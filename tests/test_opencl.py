"""Libraries for OpenCL, run by pocl where it is installed: the driver of a real maker's interface, on this CPU."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from benchmarks.gpu import subjects
from luminal.codegen import dialects, opencl, render, toolchain
from luminal.comparison.oracle import Oracle
from luminal.core import device
from luminal.core import target as targets
from luminal.core.errors import BuildError, TargetError, UnsupportedError
from luminal.core.pipeline import compile_graph
from luminal.frontends.fx import importer
from luminal.module import Module
from luminal.runtime.loader import LibraryError

TARGET = targets.GPUS["opencl"]


def missing() -> str:
    """What this machine lacks to compile and run; empty where it has all."""
    try:
        toolchain.find_clang()
    except BuildError as error:
        return str(error)
    return device.missing("opencl", ())


needs_opencl = pytest.mark.skipif(bool(missing()), reason=missing() or "has all")


class Case(NamedTuple):
    """A function, as a module, and inputs."""

    compute: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def loops(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """A loop whose end data decides."""
    return torch._higher_order_ops.while_loop(
        lambda n, y: n > 0, lambda n, y: (n - 1, torch.tanh(y) * 1.5), (count, x)
    )[1]


def windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return nn.functional.max_pool2d(nn.functional.conv2d(x, w, padding=1), 2)


CASES: Mapping[str, Case] = {
    "rows": Case(lambda x: torch.softmax(x, -1) + nn.functional.layer_norm(x, (300,)), (drawn(5, 300),)),
    "few_in_a_row": Case(lambda x: (x.sum(-1), x.amax(-1), x.cumsum(-1)), (drawn(70, 7),)),
    "functions": Case(
        lambda x: (x.exp(), x.abs().log(), (40 * x).sin(), x.abs().sqrt(), 1 / x, x % 0.7, x.tanh()), (drawn(600),)
    ),
    "products": Case(lambda a, b: (a @ b, a.bfloat16() @ b.bfloat16()), (drawn(37, 50), drawn(50, 41, seed=1))),
    "windows": Case(windows, (drawn(2, 3, 9, 9), drawn(8, 3, 3, 3))),
    "sorted": Case(lambda x: torch.topk(x, 5, -1), (drawn(3, 90),)),
    "integers": Case(lambda i: (i // 7, i % 7, i.to(torch.uint8), (i * i).sum(), i << 3), (torch.arange(-500, 500),)),
    "scattered": Case(
        lambda x, i: torch.zeros(9, 4).index_add(0, i, x), (drawn(6, 4), torch.tensor([3, 1, 3, 8, 0, 1]))
    ),
    "looked_up": Case(lambda i, t: t[i], (torch.tensor([[4, 0], [2, 4]]), drawn(5, 6))),
    "loops": Case(loops, (drawn(33), torch.tensor(4))),
    "attention": Case(
        lambda q, k, v: torch.softmax(q @ k.mT / 4, -1) @ v, tuple(drawn(2, 40, 16, seed=s) for s in range(3))
    ),
}


class Function(nn.Module):
    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.compute(*inputs)


@cache
def library() -> Module:
    """All cases in one library."""
    models = {name: Function(case.compute) for name, case in CASES.items()}
    made = luminal.compile(models, {name: case.inputs for name, case in CASES.items()}, target="opencl", name="cases")
    assert isinstance(made, Module)
    return made


@needs_opencl
def test_blocks_at_work_at_once_share_nothing() -> None:
    """As pocl's threads did, which run a block each, where an array of a block was not the block's own."""
    x = drawn(64, 300)
    made = luminal.compile(Function(lambda x: torch.softmax(x, -1)), (x,), target="opencl")
    expected = torch.softmax(x, -1)
    for _ in range(30):
        torch.testing.assert_close(made(x), expected, rtol=2e-6, atol=2e-6)


@needs_opencl
@pytest.mark.parametrize("name", CASES)
def test_a_function_agrees_with_pytorch(name: str) -> None:
    case = CASES[name]
    found, expected = library()[name](*case.inputs), case.compute(*case.inputs)
    for one, other in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected)), strict=True):
        tolerance = 2e-2 if other.dtype is torch.bfloat16 else 2e-6
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * max(1.0, float(other.abs().max())))


@needs_opencl
def test_division_and_square_roots_are_rounded_correctly() -> None:
    """As float64 rounds them, for numbers of all sizes."""
    x = torch.tensor([1e-38, 3.0, 1e38, -0.0, float("inf"), float("nan"), 7e-20]).repeat(20) * (1 + drawn(140))
    roots, quotients = library()["functions"](torch.cat([x, torch.zeros(460)]))[3:5]
    np.testing.assert_array_equal(roots[:140], x.abs().double().sqrt().float())
    np.testing.assert_array_equal(quotients[:140], (1 / x.double()).float())


@needs_opencl
def test_an_index_out_of_range_is_an_error_and_the_next_run_is_right() -> None:
    case, module = CASES["looked_up"], library()["looked_up"]
    with pytest.raises(IndexError):
        module(torch.tensor([[4, 0], [2, 5]]), case.inputs[1])
    torch.testing.assert_close(module(*case.inputs), case.compute(*case.inputs))


@needs_opencl
@pytest.mark.parametrize("batch", [1, 2])
def test_a_decoder_of_any_size_agrees_with_float64(batch: int) -> None:
    module, graph = decoder()
    inputs = dict(zip(module.input_names, (np.ones((batch, 3 + batch), np.int64),) * 2, strict=True))
    oracle, found = Oracle(graph, inputs), module.run(inputs)
    for key, node in graph.outputs:
        assert not oracle.refutes(node, found[key])


@cache
def decoder() -> tuple[Module, Any]:
    made = subjects.decoder()
    dims = {name: {0: "batch", 1: "seq"} for name in ("input_ids", "attention_mask")}
    graph = importer.load(made.module, made.inputs, dims={**dims, "batch": (1, 4), "seq": (1, 16)})
    module = luminal.compile(graph, target="opencl")
    assert isinstance(module, Module)
    return module, graph


@needs_opencl
def test_states_are_kept_read_and_reset(tmp_path: Path) -> None:
    """In an exported folder that is loaded again; the first value of the second buffer lies among the weights."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.register_buffer("scale", torch.full((3,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            self.scale.mul_(2)
            return self.total * self.scale

    x = torch.ones(3)
    made = luminal.compile(Counter().eval(), (x,), target="opencl", name="counter")
    assert isinstance(made, Module) and made.manifest["device"] == "opencl"
    again = luminal.load(made.export(tmp_path / "exported", python_module=False))
    assert [float(again(x)[0]) for _ in range(3)] == [4.0, 16.0, 48.0]
    assert all(np.ptp(value) == 0 for value in again.state.values())
    again.load_state({name: np.full(3, 1.0, np.float32) for name in again.state})
    assert float(again(x)[0]) == 4.0
    again.reset()
    assert float(again(x)[0]) == 4.0


@needs_opencl
def test_an_image_holds_both_forms_where_both_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "k.cl").write_text("__kernel void k(__global float* x) { x[get_global_id(0)] += 1; }")
    clang, translator = toolchain.find_clang(), toolchain.find_translator()
    for chosen in {translator, None}:
        assert opencl.make_image(clang, chosen, (), "k.cl", tmp_path / "k.image", tmp_path).returncode == 0
        data = (tmp_path / "k.image").read_bytes()
        portable, own = struct.unpack_from("<QQ", data)
        assert len(data) == 16 + portable + own and data[16 + portable :][:2] == b"BC"
        assert (data[16:20] == struct.pack("<I", 0x07230203)) == (chosen is not None) == (portable > 0)
    (tmp_path / "k.cl").write_text("int broken = ;")
    assert "error" in opencl.make_image(clang, translator, (), "k.cl", tmp_path / "k.image", tmp_path).stderr


# ---- without a driver ------------------------------------------------------------------------------------------------


def test_a_warp_is_one_thread_and_a_parameter_a_buffer_and_an_offset() -> None:
    program = compile_graph(importer.load(Function(CASES["rows"].compute), CASES["rows"].inputs), TARGET)
    bundle = render.render(program, TARGET)
    (text,) = (bundle.files[path] for path in bundle.image_sources)
    assert "__global uchar* x0_buffer_, ulong x0_offset_" in text
    assert "__local uchar* shared_" in text and "block_reduce_add<128>" in text
    assert "__local float* const scratch = (__local float*)(shared_ + " in text
    assert dialects.ALL["opencl"].block.warp == TARGET.grid.warp == 1  # type: ignore[union-attr]


def test_float64_is_refused_with_the_operators_that_need_it() -> None:
    graph = importer.load(Function(lambda x: x.double().sin()), (drawn(3),))
    with pytest.raises(UnsupportedError, match=r"OpenCL, as luminal uses it, has no float64, in which .*sin"):
        render.render(compile_graph(graph, TARGET), TARGET)


def test_it_is_not_emulated() -> None:
    assert not targets.needs_emulation(TARGET)
    with pytest.raises(BuildError, match="opencl is not emulated: install a driver for CPUs"):
        luminal.compile(Function(lambda x: x + 1), (drawn(3),), target="opencl", emulate=True)


def test_a_machine_without_opencl_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_OPENCL_DRIVER", "/nowhere/libOpenCL.so")
    assert "this machine has no OpenCL (/nowhere/libOpenCL.so" in targets.obstacle(TARGET)
    with pytest.raises(TargetError, match="pocl-opencl-icd is a driver for CPUs"):
        targets.check_supported(TARGET)


@needs_opencl
def test_a_library_says_what_its_machine_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = shutil.copytree(library().folder, tmp_path / "moved")
    monkeypatch.setenv("LUMINAL_OPENCL_DRIVER", "/nowhere/libOpenCL.so")
    with pytest.raises(LibraryError, match="this system has no OpenCL, which the library was compiled for"):
        luminal.runtime.loader.load(folder)
    monkeypatch.setenv("LUMINAL_OPENCL_DRIVER", "libc.so.6")
    with pytest.raises(LibraryError, match="the OpenCL of this system is older than"):
        luminal.runtime.loader.load(folder)
