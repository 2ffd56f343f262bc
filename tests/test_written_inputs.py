"""Inputs that a PyTorch model writes into: after a call they hold what they hold after a call of the module itself."""

from __future__ import annotations

import copy
import importlib
import inspect
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import luminal
from luminal.core import interp
from luminal.core.errors import InputError, ModelError, UnsupportedError
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import to_numpy
from luminal.module import Module
from tests.fx_support import Call, integers
from tests.runtime_example import run as execute

Array = np.ndarray[Any, Any]


pytestmark = pytest.mark.usefixtures("passing_cache")


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    """Halves, of which sums and products are exact."""
    return integers(-20, 20, *shape, seed=seed) / 2


def whole(x: torch.Tensor) -> None:
    x.add_(1)


def column(x: torch.Tensor) -> torch.Tensor:
    x[:, 0] = 0
    return x.view(-1)


def rows(x: torch.Tensor, at: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    before = x.sum()
    x[at] = row
    x.index_put_((at,), row, accumulate=True)
    return before


def copied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """An input whose values nobody reads, as the argument out of a function."""
    x.copy_(y * 2)
    return y + 1


def several(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y.mul_(x.sum(0))
    z.masked_fill_(x > 0, 3)
    return y - 1, x * 2


def returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x.sub_(2).abs_()
    return x, x.clone(), x[1:]


def through_views(x: torch.Tensor) -> torch.Tensor:
    y = x.t()
    y[0] += 1
    y[:, 1:].neg_()
    return y


def nothing_new(x: torch.Tensor) -> torch.Tensor:
    x.copy_(x)
    return x


def kinds(given: dict[str, Any]) -> torch.Tensor:
    """Of every type, nested."""
    given["flag"].logical_not_()
    for integer in given["integers"]:
        integer.mul_(3)
    for number in given["numbers"]:
        number[..., 1:].add_(0.1)
    given["numbers"][0].copy_(given["integers"][0])
    return given["integers"][0].sum()


def complex_numbers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    y[0].copy_(x[0])
    return x.real


class Caches(nn.Module):
    """Named arguments, of which a buffer counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, *, caches: list[tuple[torch.Tensor, torch.Tensor]], at: torch.Tensor) -> Any:
        self.count += 1
        for keys, values in caches:
            keys.index_copy_(0, at, x)
            values[at] = x * self.count
        return sum(keys.sum(0) for keys, _ in caches)


TYPES = {
    "flag": torch.tensor([[True], [False]]),
    "integers": [integers(0, 5, 3, dtype=kind) for kind in (torch.uint8, torch.int8, torch.int32, torch.int64)],
    "numbers": (*(some(3).to(kind) for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64)),),
}
COMPLEX = torch.complex(some(2, 3), some(2, 3, seed=1)), torch.complex(some(2, 3, seed=2), some(2, 3))
MODELS: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {
    name: (model if isinstance(model, nn.Module) else Call(model), given, named)
    for name, model, given, named in (
        ("whole", whole, (some(3),), {}),
        ("scalar", whole, (torch.tensor(2.0),), {}),
        ("empty", whole, (torch.zeros(0, 3),), {}),
        ("column", column, (some(3, 2),), {}),
        ("rows", rows, (some(5, 2), torch.tensor([3, 0]), some(2, 2)), {}),
        ("copied", copied, (some(3, 2), some(3, 2, seed=1)), {}),
        ("several", several, (some(3, 2), some(2), some(3, 2, seed=2)), {}),
        ("returned", returned, (some(3, 2),), {}),
        ("views", through_views, (some(3, 2),), {}),
        ("nothing", nothing_new, (some(3),), {}),
        ("kinds", kinds, (TYPES,), {}),
        ("complex", complex_numbers, COMPLEX, {}),
        ("caches", Caches(), (some(1, 3),),
         {"caches": [(some(4, 3, seed=k), some(4, 3, seed=-k)) for k in (1, 2)], "at": torch.tensor([2])}),
    )
}  # fmt: skip


def clones(value: Any, change: Callable[[torch.Tensor], Any] = torch.clone) -> Any:
    return pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def eager(name: str, *given: Any, **named: Any) -> tuple[Any, tuple[Any, Any]]:
    """What the module returns, and its arguments afterwards."""
    model = copy.deepcopy(MODELS[name][0])
    left = clones((given, named))
    with torch.no_grad():
        return model(*left[0], **left[1]), left


def same(found: Any, expected: Any) -> None:
    """Bit for bit; ``found`` may be of numpy."""
    (a, a_tree), (b, b_tree) = pytree.tree_flatten(found), pytree.tree_flatten(expected)
    assert a_tree == b_tree
    for x, y in zip(a, b, strict=True):
        if not isinstance(y, torch.Tensor):
            assert x == y
        elif isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype and torch.equal(x, y), (x, y)
        else:
            y = y.resolve_conj().numpy() if y.is_complex() else to_numpy(y)
            np.testing.assert_array_equal(x, y, strict=True)


# ---- graphs --------------------------------------------------------------------------------------------------------


def bound(name: str) -> inspect.BoundArguments:
    model, given, named = MODELS[name]
    return inspect.signature(model.forward).bind(*clones(given), **clones(named))


def arrays(*arguments: Any) -> list[Array]:
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return [to_numpy(torch.view_as_real(leaf) if leaf.is_complex() else leaf) for leaf in leaves]


@pytest.mark.parametrize("name", MODELS)
def test_what_is_left_in_inputs_are_outputs_of_the_graph(name: str) -> None:
    model, given, named = MODELS[name]
    graph = importer.load(copy.deepcopy(model), bound(name))
    names = [node.attr.name for node in graph.given]
    before = dict(zip(names, arrays(given, named), strict=True))
    results, left = eager(name, *given, **named)
    found = dict(zip([n for n, _ in graph.outputs], interp.run(graph, before).outputs, strict=True))
    returned = arrays(results)
    for value, expected in zip(list(found.values())[: len(returned)], returned, strict=True):
        np.testing.assert_array_equal(value, expected, strict=True)
    for k, (input_, expected) in enumerate(zip(names, arrays(left), strict=True)):
        np.testing.assert_array_equal(found.get(f"{input_}.next", before[names[k]]), expected, strict=True)
    assert any(f"{input_}.next" in found for input_ in names)


def test_states_come_after_what_is_left_in_inputs() -> None:
    graph = importer.load(copy.deepcopy(MODELS["caches"][0]), bound("caches"))
    written = [f"caches_{k}_{part}.next" for k in (0, 1) for part in (0, 1)]
    assert [name for name, _ in graph.outputs] == ["output", *written, "count.next"]
    assert [name for name, _ in graph.returned] == ["output", *written]


def test_what_cannot_be_written_into_is_refused_when_compiling() -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.mul_(2)

    with pytest.raises(UnsupportedError, match="updates the parameter 'weight'"):
        importer.load(Trained(), (some(3),))
    with pytest.raises(ModelError, match="constants fixes args_0, which the model writes into"):
        importer.load(Call(whole), (some(3),), constants={"args_0": np.ones(3, np.float32)})

    def inside(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return torch.cond(p, lambda x: x.add_(1).clone(), lambda x: x.clone(), (x,))

    for function, given, message in (
        (inside, (some(3), torch.tensor(True)), r"write into nothing that they are given.*\n.*x.copy_\(torch.cond"),
        (lambda x: x.t_() + 1, (some(3, 2),), r"not their sizes, strides and storage.*\n.*x.t\(\), not x.t_\(\)"),
    ):
        with pytest.raises(ModelError, match=message):
            importer.load(Call(function), given)


# ---- calls ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Module:
    models = {name: copy.deepcopy(model) for name, (model, _, _) in MODELS.items()}
    module = luminal.compile(models, {name: bound(name) for name in MODELS}, name="written", target="host")
    assert isinstance(module, Module)
    return module


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values, in every other element of a larger tensor that begins elsewhere, axes the other way round."""
    around = torch.zeros([2 * size + 1 for size in reversed(x.shape)], dtype=x.dtype)
    return around[(..., *(slice(1, None, 2) for _ in x.shape))].permute([*reversed(range(x.ndim))]).copy_(x)


@pytest.mark.parametrize("change", [torch.clone, strided], ids=["contiguous", "strided"])
@pytest.mark.parametrize("name", MODELS)
def test_arguments_hold_what_they_hold_after_a_call_of_the_module(
    library: Module, name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    _, given, named = MODELS[name]
    library.reset()
    mine = clones((given, named), change)
    results, left = eager(name, *given, **named)
    same(library[name](*mine[0], **mine[1]), results)
    same(mine, left)
    for leaf in pytree.tree_leaves(mine):
        if leaf._base is not None:  # what lies between its elements is as it was
            leaf.zero_()
            assert not leaf._base.any()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "kinds"])
def test_arrays_of_numpy_are_written_into(library: Module, name: str) -> None:
    _, given, named = MODELS[name]
    library.reset()
    for change in (np.array, lambda x: np.asfortranarray(x)[::-1] if x.ndim else np.array(x)):
        library.reset()
        mine = clones((given, named), lambda x, change=change: change(x.numpy()))
        start = pytree.tree_map(lambda x: torch.from_numpy(np.array(x, order="C")), mine)
        results, left = eager(name, *start[0], **start[1])
        same(library[name](*mine[0], **mine[1]), results)
        same(mine, left)


def test_each_argument_is_written_as_what_it_is(library: Module) -> None:
    """Of numpy and of PyTorch in one call; conjugates that PyTorch has not resolved."""
    x, y, z = some(3, 2), some(2), some(3, 2, seed=2)
    mine = x.numpy().copy(), y.clone(), z.numpy().copy()
    results, (left, _) = eager("several", x, y, z)
    same(library["several"](*mine), results)
    same(mine, left)
    conjugates = tuple(x.clone().conj() for x in COMPLEX)
    library["complex"](*conjugates)
    same(conjugates, eager("complex", *(x.conj() for x in COMPLEX))[1][0])


def test_a_call_goes_on_from_what_the_last_one_left(library: Module) -> None:
    _, given, named = MODELS["caches"]
    library.reset()
    model, mine, theirs = copy.deepcopy(MODELS["caches"][0]), clones((given, named)), clones((given, named))
    for k in range(3):
        for arguments in (mine, theirs):
            arguments[1]["at"] = torch.tensor([k])
        same(library["caches"](*mine[0], **mine[1]), model(*theirs[0], **theirs[1]))
    same(mine, theirs)


def test_results_have_memory_of_their_own(library: Module) -> None:
    x = some(3, 2)
    found = library["returned"](x)
    kept = clones(found)
    x.zero_()
    found[0].add_(1)
    same((found[0] - 1, *found[1:]), kept)
    assert not x.any()


def test_named_arrays_are_left_as_they_are(library: Module) -> None:
    x = some(3, 2).numpy()
    before = x.copy()
    found = library["column"].run({"args_0": x})
    assert np.array_equal(x, before) and np.array_equal(found["args_0.next"], before * [0, 1])


def test_what_cannot_be_written_into_is_refused_before_the_call(library: Module) -> None:
    shared = some(4, 2)
    frozen = np.broadcast_to(np.float32(1), 2)
    x, y, z = some(3, 2), some(2), some(3, 2)
    with torch.inference_mode():
        inference = some(2)
    for given, message in (
        ((x, frozen, z), "args.1: the model writes into it, and the array is read-only: pass a copy"),
        ((x, [1.0, 2.0], z), "args.1: the model writes into it, and it is no PyTorch tensor or numpy array, but list"),
        ((x, some(2).requires_grad_(), z), r"args.1: .* requires a gradient.*torch.no_grad\(\)"),
        ((x, inference, z), r"args.1: .* made under torch.inference_mode\(\)"),
        ((x, torch.zeros(1).expand(2), z), r"args.1: .* several of its elements are one in memory"),
        ((shared[:3], y, shared[1:]), "args.0 and args.2 share memory, and the model writes into one of them"),
        ((x, x[1], z), "args.0 and args.1 share memory"),
        ((shared.numpy()[:3], shared[3], shared[1:].numpy()), "args.0 and args.2 share memory"),
    ):
        before = [np.array(torch.as_tensor(value).tolist()) for value in given if value is not frozen]
        with pytest.raises(InputError, match=message):
            library["several"](*given)
        after = [np.array(torch.as_tensor(value).tolist()) for value in given if value is not frozen]
        assert all(map(np.array_equal, before, after))
    with torch.no_grad():
        required = y.clone().requires_grad_()
        library["several"](x, required, z)
        same(required.detach(), eager("several", x, y, z)[1][0][1])
    library["several"](x, some(2), some(3, 2).requires_grad_().detach())


def test_parts_of_one_tensor_that_do_not_overlap_are_no_matter(library: Module) -> None:
    """Rows, and columns of which each lies between those of another."""
    mine, theirs = some(3, 6), some(3, 6)
    parts = [(t[:, 0:4:2], t[1, 4:], t[:, 1:4:2]) for t in (mine, theirs)]
    same(library["several"](*parts[0]), several(*parts[1]))
    same(mine, theirs)


def test_a_run_that_fails_leaves_arguments_as_they_were(library: Module) -> None:
    _, (x, _, row), _ = MODELS["rows"]
    mine = x.clone()
    with pytest.raises(IndexError):
        library["rows"](mine, torch.tensor([0, 9]), row)
    same(mine, x)


@pytest.mark.parametrize("declared", [True, False])
def test_sizes_that_vary(declared: bool) -> None:
    module = Call(several)
    options: dict[str, Any] = {"dims": {"args_0": {0: "n"}, "args_2": {0: "n"}, "n": (1, 9)}} if declared else {}
    compiled = luminal.compile(module, name="varying", **options)
    for n in (4, 1, 9):
        x, y, z = (some(n, 2), some(2), some(n, 2, seed=n))
        mine, theirs = clones((x, y, z)), clones((x, y, z))
        same(compiled(*mine), module(*theirs))
        same(mine, theirs)
    assert len(compiled.modules) == (1 if declared else 3)


def test_a_module_is_compiled_for_tensors_wherever_they_are() -> None:
    compiled = luminal.compile(Call(kinds), name="nested")
    mine = clones(TYPES)
    result, (left, _) = eager("kinds", TYPES)
    same(compiled(mine), result)
    same((mine,), left)


# ---- programs, libraries and comparisons ---------------------------------------------------------------------------


CPP = """
#include "written.hpp"
int main() {
    written::Library library;
    written::Context context(library);
    const float x[] = {1, 2, 3, 4};
    const auto results = context.main({x, {2, 2}});
    return x[0] == 1 && results.x_next[0] == 0 && results.x_next[3] == 4 && results.output[1] == 2 ? 0 : 1;
}
"""


class Column(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return column(x)


def test_a_saved_program_and_an_exported_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(Column(), (some(2, 2),))
    torch.export.save(program, tmp_path / "column.pt2")
    assert not luminal.check(tmp_path / "column.pt2")
    module = luminal.compile(tmp_path / "column.pt2", name="written")
    assert isinstance(module, Module)
    folder = module.export(tmp_path / "out")
    again = luminal.load(folder)
    assert again.output_names == ["output", "x.next"]
    mine, theirs = some(2, 2), some(2, 2)
    same(again(mine), column(theirs))
    same(mine, theirs)
    (tmp_path / "main.cpp").write_text(CPP)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{folder}", str(tmp_path / "main.cpp")]
    execute(["g++", *flags, f"-L{folder}", "-lwritten", f"-Wl,-rpath,{folder}", "-o", str(tmp_path / "main")])
    subprocess.run([tmp_path / "main"], check=True)
    monkeypatch.syspath_prepend(str(folder))
    x = np.ones((2, 2), np.float32)
    found = importlib.import_module("written").Model()(x=x)
    np.testing.assert_array_equal(found["x.next"], x * [0, 1])


def test_diff_compares_what_is_left_in_inputs() -> None:
    for name, names in (("several", {"args_1.next", "args_2.next"}), ("complex", {"args_0.next", "args_1.next"})):
        model, given, _ = MODELS[name]
        mine = clones(given)
        report = luminal.diff(model, mine)
        assert report.ok and names < {row.output for row in report.trials[0].rows}
        assert len(report.trials) == 2
        same(mine, given)


def test_diff_finds_a_wrong_value_in_an_input() -> None:
    """The module leaves something else there than the program that was exported of it."""

    class Changing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1 if torch.compiler.is_exporting() else 2)
            return torch.zeros(3)

    report = luminal.diff(Changing(), (some(3),))
    assert not report.ok and [row.ok for row in report.trials[0].rows] == [True, False]
