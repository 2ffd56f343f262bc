"""Values of constants: equal by content; large ones that can be made again are not held."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import luminal
from luminal import artifact
from luminal.codegen import build
from luminal.core import data, interp, ir, movement, ops, traverse
from luminal.core import target as targets
from luminal.core.data import Arrays, Data
from luminal.core.errors import ModelError
from luminal.core.pipeline import compile_graph
from luminal.progress import Stages
from tests import onnx_models

MANY = data.LARGE // 4


class Source:
    """Makes one array again and again, and counts how often, and which of them are held."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.made: list[weakref.ref[Any]] = []

    def __call__(self) -> np.ndarray[Any, Any]:
        array = np.arange(self.count, dtype=np.float32)
        self.made.append(weakref.ref(array))
        return array

    @property
    def held(self) -> int:
        return sum(reference() is not None for reference in self.made)


def test_a_large_value_is_made_again_when_nobody_holds_it() -> None:
    source = Source(MANY)
    value = Data(make=source)
    assert source.held == 0
    array = value.array
    assert value.array is array and len(source.made) == 2
    del array
    assert source.held == 0
    assert value.array[3] == 3 and len(source.made) == 3
    assert value.is_finite and value.is_finite and len(source.made) == 4


def test_a_value_is_printed_without_being_made() -> None:
    source = Source(MANY)
    value = Data(make=source)
    assert repr(value) == f"#{value.digest.hex()[:8]}" and len(source.made) == 1
    assert repr(Data(np.array([[2.5]]))) == "2.5"


@pytest.mark.parametrize(("count", "depth"), [(MANY - 1, 0), (MANY, data.DEPTH + 1)])
def test_what_is_small_or_costs_much_is_held(count: int, depth: int) -> None:
    source = Source(count)
    value = Data(make=source, depth=depth)
    assert value.array is value.array and len(source.made) == 1 and value.depth == 0


def test_values_are_equal_by_content() -> None:
    array = Source(MANY)()
    assert ir.lazy_constant(Source(MANY)) is ir.constant(array)
    assert ir.lazy_constant(Source(MANY)) is not ir.constant(array.view(np.int32))
    assert ir.lazy_constant(Source(MANY)) is not ir.constant(array.reshape(2, -1))
    assert ir.lazy_constant(Source(MANY)) is not ir.lazy_constant(Source(MANY + 1))


def test_folded_values_are_not_held_unless_they_cost_more_than_to_be_read() -> None:
    source = Source(MANY)
    given = movement.reshape(ir.lazy_constant(source), (2, MANY // 2))
    moved = interp.folded(ir.unary(ops.CONTIGUOUS, movement.permute(given, (1, 0))))
    summed = interp.folded(ir.reduce(ops.SUM_REDUCE, movement.reshape(given, (1, MANY)), [0]))
    assert source.held == 0 and moved.attr.depth == 1 and summed.attr.depth == 0
    np.testing.assert_array_equal(moved.attr.array, source().reshape(2, -1).T)
    assert summed.attr.array is summed.attr.array


def test_arrays_have_their_axes_in_an_order_of_their_own() -> None:
    array = np.arange(6).reshape(2, 3)
    arrays = Arrays({"plain": (Data(array), (0, 1)), "turned": (Data(array), (1, 0))})
    assert list(arrays) == ["plain", "turned"] and len(arrays) == 2
    np.testing.assert_array_equal(arrays["plain"], array)
    np.testing.assert_array_equal(arrays["turned"], array.T)


def store(tmp_path: Path, many: int) -> Path:
    """A model whose constant, of two rows, lies in ``data.bin``, at no multiple of a page."""
    content = np.arange(2 * many, dtype=np.float32)
    (tmp_path / "data.bin").write_bytes(bytes(100) + content.tobytes())
    proto = onnx_models.model(
        [helper.make_node("Add", ["x", "c"], ["y"])], [onnx_models.declared("x", np.ones(1, np.float32))], ["y"]
    )
    tensor = proto.graph.initializer.add(name="c", data_type=1, dims=[2, many], data_location=1)
    for key, text in {"location": "data.bin", "offset": "100", "length": str(content.nbytes)}.items():
        tensor.external_data.add(key=key, value=text)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    return path


def mapped(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(name)


def test_small_values_keep_no_file_mapped(tmp_path: Path) -> None:
    graph = luminal.read(store(tmp_path, 3))
    assert mapped(str(tmp_path / "data.bin")) == 0
    np.testing.assert_array_equal(interp.run(graph, {"x": np.ones(1, np.float32)}).outputs[0], [[1, 2, 3], [4, 5, 6]])


def test_files_are_mapped_while_they_are_read_and_may_be_gone_by_then(tmp_path: Path) -> None:
    stored = store(tmp_path, MANY)
    graph = luminal.read(stored)
    (constant,) = (node for node in traverse.topological(graph.roots) if node.op is ops.CONSTANT)
    file = str(stored.with_name("data.bin"))
    assert mapped(file) == 0
    array = constant.attr.array
    assert mapped(file) == 1
    del array
    assert mapped(file) == 0
    (stored.with_name("data.bin")).unlink()
    assert constant.attr.array[1, 5] == MANY + 5
    opened = {path for path in Path("/proc/self/fd").iterdir() if file in str(path.resolve())}
    del graph, constant
    gc.collect()
    assert opened and not any(path.exists() and file in str(path.resolve()) for path in opened)


def test_a_file_that_shrinks_while_it_is_compiled(tmp_path: Path) -> None:
    stored = store(tmp_path, MANY)
    graph = luminal.read(stored)
    stored.with_name("data.bin").write_bytes(bytes(10))
    with pytest.raises(ModelError, match="cannot map"):
        interp.run(graph, {"x": np.ones(1, np.float32)})


def test_a_file_that_changes_while_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that differ from what the model was compiled for are not written."""
    stored = store(tmp_path, MANY)
    target = targets.ALL["avx2"]
    program = compile_graph(luminal.read(stored), target)
    (array,) = artifact.unchanged(program)
    np.testing.assert_array_equal(array, np.arange(2 * MANY).reshape(2, MANY))
    del array
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "build", lambda *_: None)  # the library, of which the weights are no part
    with stored.with_name("data.bin").open("r+b") as file:
        file.seek(5000)
        file.write(b"x")
    with pytest.raises(ModelError, match="the constant 'c' changed while the model was compiled"):
        artifact.build(program, target, Stages())


def test_memory_of_somebody_else_may_change_between_two_models() -> None:
    lent = np.frombuffer(bytearray(np.arange(9, dtype=np.float32).tobytes()), np.float32)
    first = ir.constant(lent)
    lent += 1  # as training does to the parameters of a model that was compiled
    again = ir.constant(np.arange(9, dtype=np.float32))
    assert again is first and np.array_equal(again.attr.array, np.arange(9))
