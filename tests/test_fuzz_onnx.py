"""Damaged ONNX models end in a named error or a program; what the fuzzer found before, as small models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import luminal
from luminal.core import target as targets
from luminal.core.errors import DTypeError, LuminalError, ModelError, ShapeError, UnsupportedError
from luminal.core.pipeline import compile_graph
from tests import onnx_models
from tests.fuzz_onnx import case, runner
from tests.onnx_models import declared

X = np.ones((2, 3), np.float32)


def test_damaged_models() -> None:
    """A slice of ``python -m tests.fuzz_onnx``, which runs 20,000."""
    found = list(runner.outcomes(seed=1, numbers=range(1000)))
    faults = [f"case {outcome.number}: {outcome.fault}" for outcome in found if outcome.fault]
    assert not faults, "\n".join(faults)
    assert len(found) == 1000
    assert sum(outcome.kind == case.PROGRAM for outcome in found) > 150


def test_the_runner_finds_faults() -> None:
    """What crashes, hangs or writes is reported, and the next case runs."""
    numbers = [case.CRASHES, 1, case.HANGS, 2, case.WRITES, 3]
    faults = {outcome.number: outcome.fault for outcome in runner.outcomes(case.SELF_TEST, numbers, seconds=1.0)}
    assert list(faults) == numbers
    assert "ended with" in faults[case.CRASHES]
    assert "more than" in faults[case.HANGS]
    assert "to write" in faults[case.WRITES]


# ---- what was found --------------------------------------------------------------------------------------------------


def model(op: str, *inputs: Any, opset: int = 18, outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    """One operator of ``x`` and of constants; None leaves an input out."""
    names = ["x" if value is X else "" if value is None else f"c{k}" for k, value in enumerate(inputs)]
    constants = {n: np.asarray(v) for n, v in zip(names, inputs, strict=True) if n and n != "x"}
    node = helper.make_node(op, names, [f"y{k}" for k in range(outputs)], name="node", **attributes)
    return onnx_models.model([node], [declared("x", X)], ["y0"], initializers=constants, opset=opset)


def sums() -> onnx.ModelProto:
    """A number that a sum over a terabyte gives: left to the run."""
    nodes = [
        helper.make_node("Expand", ["one", "sizes"], ["wide"]),
        helper.make_node("Sin", ["wide"], ["sines"]),
        helper.make_node("ReduceSum", ["sines"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    constants = {"one": np.ones((1, 1), np.float32), "sizes": np.array([1 << 20, 1 << 20])}
    return onnx_models.model(nodes, [declared("x", X)], ["y"], initializers=constants)


def shape_of_a_sum() -> onnx.ModelProto:
    """A shape that hangs on such a number."""
    nodes = [
        helper.make_node("Range", ["zero", "many", "one"], ["range"]),
        helper.make_node("Mod", ["range", "many"], ["rest"]),
        helper.make_node("ReduceSum", ["rest"], ["sum"], keepdims=1),
        helper.make_node("Expand", ["x", "sum"], ["y"]),
    ]
    constants = {"zero": np.array(0), "many": np.array(1 << 40), "one": np.array(1)}
    return onnx_models.model(nodes, [declared("x", X)], ["y"], initializers=constants)


def calls(depth: int, last: str) -> onnx.ModelProto:
    """Functions each of which calls the next twice; the last calls ``last``."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for k in range(depth):
        called = f"F{k + 1}" if k + 1 < depth else last
        domain = "own" if called.startswith("F") else ""
        body = [helper.make_node(called, [a], [b], domain=domain) for a, b in (("a", "m"), ("m", "b"))]
        functions.append(helper.make_function("own", f"F{k}", ["a"], ["b"], body, imports))
    node = helper.make_node("F0", ["x"], ["y"], domain="own")
    return onnx_models.model([node], [declared("x", X)], ["y"], functions=functions, domains={"own": 1})


def two_functions_of_one_name() -> onnx.ModelProto:
    proto = calls(1, "Neg")
    proto.functions.append(proto.functions[0])
    return proto


def sparse(dims: list[int], index_type: Any = np.int64) -> onnx.ModelProto:
    proto = onnx_models.model([helper.make_node("Add", ["x", "s"], ["y"])], [declared("x", X)], ["y"])
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = onnx.numpy_helper.from_array(np.zeros(1, index_type), "where")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))
    return proto


def tensor(**fields: Any) -> onnx.ModelProto:
    """A constant in place of the second operand of an addition."""
    proto = onnx_models.model([helper.make_node("Add", ["x", "c"], ["y"])], [declared("x", X)], ["y"])
    proto.graph.initializer.append(TensorProto(name="c", **fields))
    return proto


def version(number: int, op: str = "Neg", domain: str = "") -> onnx.ModelProto:
    proto = model(op, X)
    proto.graph.node[0].domain = proto.opset_import[0].domain = domain
    proto.opset_import[0].version = number
    return proto


def outputs_of_one_name() -> onnx.ModelProto:
    proto = model("Neg", X)
    proto.graph.output.append(proto.graph.output[0])
    return proto


def vectors() -> onnx.ModelProto:
    """A sequence of numbers where boxes, scores or a condition were expected."""
    return model("NonMaxSuppression", np.ones(4, np.float32), np.ones((1, 1, 1), np.float32))


def scan_of_a_number() -> onnx.ModelProto:
    values = [onnx.ValueInfoProto(name=name) for name in ("s", "e", "t")]
    body = helper.make_graph([helper.make_node("Add", ["s", "e"], ["t"])], "body", values[:2], values[2:])
    node = helper.make_node("Scan", ["", "s", "x"], ["y"], num_scan_inputs=1, body=body)
    return onnx_models.model([node], [declared("x", X)], ["y"], initializers={"s": np.array(0, np.float32)}, opset=8)


def grams(low: int, high: int, skips: int = 0, places: tuple[int, ...] = (0, 1)) -> onnx.ModelProto:
    node = helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], mode="TF", min_gram_length=low, max_gram_length=high,
        max_skip_count=skips, ngram_counts=[0], ngram_indexes=places, pool_int64s=[2, 3],
    )  # fmt: skip
    return onnx_models.model([node], [declared("x", np.ones((1, 5), np.int64))], ["y"])


REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], type[LuminalError], str]] = {
    "pad": (lambda: model("Pad", X, [0, 1 << 61, 0, 1 << 61]), ShapeError, "bytes"),
    "pad below nothing": (lambda: model("Pad", X, [0, -9, 0, 0]), ShapeError, "extents of 0 or more"),
    "axes": (lambda: model("Unsqueeze", X, list(range(40))), ShapeError, "at most 24 axes"),
    "shape": (shape_of_a_sum, ShapeError, "must be known when compiling"),
    "function of itself": (lambda: calls(3, "F0"), ModelError, "calls itself"),
    "function of functions": (lambda: calls(60, "Neg"), ModelError, "so often"),
    "functions of one name": (two_functions_of_one_name, ModelError, "two of one name"),
    "sparse": (lambda: sparse([1 << 20, 1 << 20]), ShapeError, "to be computed when compiling"),
    "sparse, negative": (lambda: sparse([-1, 3]), ShapeError, "extents of 0 or more"),
    "sparse, by floats": (lambda: sparse([3], np.float32), ModelError, "indices of int64"),
    "tensor of axes": (lambda: tensor(data_type=1, dims=[1] * 70, float_data=[1.0]), ShapeError, "axes"),
    "tensor, empty": (lambda: tensor(data_type=1, dims=[0, 1 << 62, 1 << 62]), ShapeError, "bytes"),
    "tensor, half complex": (lambda: tensor(data_type=14, dims=[1], float_data=[1.0] * 3), ModelError, "pairs"),
    "opset below 1": (lambda: version(-1), ModelError, "version"),
    "opset beyond numbers": (lambda: version(1 << 62, "Gelu", "com.microsoft"), ModelError, "version"),
    "outputs of one name": (outputs_of_one_name, ModelError, "different names"),
    "integers": (lambda: model("Erf", np.arange(3)), DTypeError, "expected a float type"),
    "unknown mode": (lambda: model("Gelu", X, opset=20, approximate="much"), LuminalError, "approximate"),
    "too few axes": (lambda: model("Trilu", np.ones(3, np.float32)), ShapeError, "at least 2 axes"),
    "parts of other axes": (lambda: model("Concat", X, np.ones(3, np.float32), axis=1), ShapeError, "as many axes"),
    "matrix of one axis": (lambda: model("Gemm", np.ones(3, np.float32), X, transA=1), ShapeError, "no axes"),
    "coordinates": (lambda: model("GatherND", X, np.zeros((1, 7), np.int64)), ShapeError, "at least 7 axes"),
    "scattered coordinates": (
        lambda: model("ScatterND", X, np.zeros((1, 1 << 16), np.int64), np.ones(1, np.float32)),
        ShapeError,
        "at least 65536 axes",
    ),
    "lengths": (lambda: model("ReverseSequence", X, np.ones(7, np.int64)), ModelError, "a length for each"),
    "parts": (lambda: model("Split", X, outputs=2, num_outputs=1 << 40), ModelError, "num_outputs"),
    "endless scales": (
        lambda: model("Resize", X, None, np.array([1, np.inf], np.float32)), ModelError, "positive scales",
    ),
    "scales": (lambda: model("Resize", X, None, np.ones(2, np.complex64)), ModelError, "scales of a float type"),
    "transform": (
        lambda: model("DFT", np.ones((1, 4, 1), np.float32), np.array(1 << 40), axis=1), ShapeError, "dft",
    ),
    "boxes": (vectors, ShapeError, "expected boxes"),
    "boxes of any size": (
        lambda: onnx_models.model(
            [helper.make_node("NonMaxSuppression", ["b", "s"], ["y"])],
            [declared("b", X, [1, 6, "n"]), declared("s", X, [1, 1, 6])],
            ["y"],
        ),
        ShapeError,
        "boxes of four numbers",
    ),
    "scan of a number": (scan_of_a_number, ShapeError, "without axes"),
    "condition of many axes": (
        lambda: onnx_models.model(
            [helper.make_node("Compress", ["x", "c"], ["y"])], [declared("x", X), declared("c", X > 0)], ["y"]
        ),
        ShapeError,
        "a condition of one axis",
    ),
    "integers drawn": (lambda: model("RandomNormalLike", X, dtype=TensorProto.INT64), DTypeError, "of a float type"),
    "n-grams of no length": (lambda: grams(3, 2), ModelError, "at least one element"),
    "n-grams before the first": (lambda: grams(1, 1, places=(0, -1)), ModelError, "at least one element"),
    "n-grams far away": (lambda: grams(1, 1, places=(0, 1 << 40)), ShapeError, "positions of n-grams"),
    "filters": (
        lambda: model("MelWeightMatrix", 1 << 40, 1 << 40, 8000, np.float32(0), np.float32(4000)), ShapeError, "Mel",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        luminal.read(make())


def unknown_beside_half_a_branch() -> onnx.ModelProto:
    """An operator that nobody knows, and a branch without its other one: onnx's shape inference ends the process."""
    proto = model("Perhaps", X)
    condition = onnx.numpy_helper.from_array(np.array(True), "condition")
    proto.graph.initializer.append(condition)
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "g", [], [onnx.ValueInfoProto(name="r")])
    node = helper.make_node("If", ["condition"], ["z"], then_branch=branch, else_branch=onnx.GraphProto())
    proto.graph.node.append(node)
    return proto


def test_unknown_operators_are_listed_whatever_else_is_wrong() -> None:
    with pytest.raises(UnsupportedError, match="Perhaps"):
        luminal.read(unknown_beside_half_a_branch())


def chain(op: str, length: int) -> onnx.ModelProto:
    nodes = [helper.make_node(op, [f"v{k}" if k else "x"], [f"v{k + 1}"]) for k in range(length)]
    return onnx_models.model(nodes, [declared("x", X)], [f"v{length}"])


def gathered() -> onnx.ModelProto:
    """A position out of range, known when compiling: the run reports it."""
    nodes = [helper.make_node("Gather", ["c", "k"], ["g"]), helper.make_node("Add", ["x", "g"], ["y"])]
    constants = {"c": np.ones((4, 3), np.float32), "k": np.array(9)}
    return onnx_models.model(nodes, [declared("x", X)], ["y"], initializers=constants)


def product() -> onnx.ModelProto:
    """A product of many numbers that repeat, which formulas of positions would be multiplied for."""
    nodes = [
        helper.make_node("Tile", ["few", "many"], ["wide"]),
        helper.make_node("ReduceProd", ["wide"], ["all"]),
        helper.make_node("Cast", ["all"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "float"], ["y"]),
    ]
    return onnx_models.model(
        nodes, [declared("x", X)], ["y"], initializers={"few": np.arange(3), "many": np.array([1 << 20])}
    )


def unread() -> onnx.ModelProto:
    """An operator that gives nothing."""
    proto = model("NonZero", X)
    proto.graph.node.insert(0, helper.make_node("NonZero", ["x"], [""]))
    return proto


def named(length: int) -> onnx.ModelProto:
    """Very long names, joined for each call in a call."""
    proto = calls(10, "Neg")
    for node in (node for function in proto.functions for node in function.node):
        node.name = "x" * length
    return proto


def inside(depth: int) -> onnx.ModelProto:
    """Branches in branches, each of which is taken or not."""
    outputs = [onnx.ValueInfoProto(name="r")]
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["r"])], "other", [], outputs)
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "then", [], outputs)
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["r"], then_branch=graph, else_branch=other)
        graph = helper.make_graph([node], "then", [], outputs)
    return onnx_models.model(list(graph.node), [declared("x", X), declared("c", np.array(True))], ["r"])


def rounds(count: int) -> onnx.ModelProto:
    """A running sum of constants in rounds that would take minutes while compiling."""
    values = [onnx.ValueInfoProto(name=name) for name in ("s", "e", "t", "f")]
    nodes = [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["f"])]
    body = helper.make_graph(nodes, "body", values[:2], values[2:])
    nodes = [
        helper.make_node("Expand", ["one", "count"], ["ones"]),
        helper.make_node("Scan", ["zero", "ones"], ["last", "sums"], num_scan_inputs=1, body=body),
        helper.make_node("Add", ["x", "last"], ["y"]),
    ]
    constants = {"one": np.float32([1]), "count": np.array([count]), "zero": np.array(0, np.float32)}
    return onnx_models.model(nodes, [declared("x", X)], ["y"], initializers=constants)


def long_size() -> onnx.ModelProto:
    return onnx_models.model(
        [helper.make_node("Neg", ["x"], ["y"])], [declared("x", X, ["-" * 3000 + "n", "(" * 400 + "n"])], ["y"]
    )


@pytest.mark.parametrize(
    "make",
    [
        *(sums, gathered, long_size, product, unread),
        lambda: chain("Sin", 10_000),
        lambda: calls(10, "Neg"),
        lambda: named(1_000_000),
        lambda: inside(25),
        lambda: rounds(1 << 20),
        lambda: grams(1, 2, skips=1 << 60),
    ],
    ids=[
        *("sums", "gathered", "size", "product", "unread"),
        *("chain", "calls", "names", "inside", "rounds", "gaps"),
    ],
)
def test_compiled(make: Callable[[], onnx.ModelProto]) -> None:
    compile_graph(luminal.read(make()), targets.parse("avx2"))


def test_a_constant_that_many_operators_share_names_few_of_them() -> None:
    graph = luminal.read(calls(11, "Neg"))  # each negation is a product with one constant
    assert max(map(len, graph.origins.values())) <= 100


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Callable[[str, dict[str, str]], Path]]:
    """Writes a model whose constant lies in a file of a given name."""
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(12))
    (folder / "data.bin").write_bytes(bytes(12))
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "link").symlink_to(tmp_path / "secret.bin")
    os.mkfifo(folder / "pipe")

    def write(location: str, entries: dict[str, str]) -> Path:
        proto = tensor(data_type=1, dims=[3], data_location=TensorProto.EXTERNAL)
        for key, text in {"location": location, **entries}.items():
            proto.graph.initializer[0].external_data.add(key=key, value=text)
        path = folder / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    yield write


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("loop", {}, "names no file"),
        ("data.bin\0", {}, "names no file"),
        ("x" * 5000, {}, "data of 'c'"),
        ("pipe", {}, "to be a file"),
        (".", {}, "to be a file"),
        ("link", {}, "leaves the model's folder"),
        ("../secret.bin", {}, "leaves the model's folder"),
        ("/dev/zero", {}, "leaves the model's folder"),
        ("data.bin", {"length": "9" * 5000}, "number of bytes"),
        ("data.bin", {"offset": "²"}, "number of bytes"),
        ("data.bin", {"offset": str(1 << 62)}, "truncated"),
    ],
)
def test_external_data(stored: Callable[..., Path], location: str, entries: dict[str, str], message: str) -> None:
    luminal.read(stored("data.bin", {}))
    with pytest.raises(ModelError, match=message):
        luminal.read(stored(location, entries))
