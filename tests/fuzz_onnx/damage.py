"""Kinds of damage: to the bytes of a file, to the fields of a model, and models that grow as they are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from luminal.frontends.onnx import operators

Random: TypeAlias = np.random.Generator
Damage: TypeAlias = Callable[[Random, onnx.ModelProto, Path], None]
Node: TypeAlias = onnx.NodeProto
T = TypeVar("T")

DAMAGES: list[Damage] = []

INTEGERS = (
    0, 1, -1, 2, 3, -2, 5, 7, 64, 127, 128, 255, 256, 1 << 16, -(1 << 16), (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 32,
    1 << 40, (1 << 53) + 1, 1 << 61, 1 << 62, (1 << 63) - 1, -(1 << 63), 3037000500,
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e30, -1e30, 3.4e38, float("inf"), float("-inf"), float("nan"), 1e9)
TEXTS = (
    "", "x", "y", "i0", "nowhere", "main", "int", "a b", "../x", "\0", "é", "x" * 5000, "%s%n{0}", "1", "-1", "a+b",
    "batch", "linear", "constant", "SAME_UPPER", "VALID", "NOTSET", "round_prefer_floor", "align_corners", "ij,jk->ik",
    "...i->...", "->", "ii->", "a,b,c,d->", "(a", "a{,3}", "(){1000000000}", r"(?i)\S{50}", "((a{99}){99}){99}", r"\1",
)  # fmt: skip
SIZES = (
    "n", "i0", "n+1", "n*n", "n-5", "n//2", "n//0", "n//-1", "n%3", "0", "-1", "1<<99", "9**9**9", "n*m",
    "(" * 400 + "n", "-" * 3000 + "n", "+".join("n" * 600), "n" * 5000, "", "é",
    "not", "lambda", "n if n else 1", "__import__('os')",
    "*".join(["1024"] * 40), "*".join(["n"] * 30), "n.real", "n\n", "\0", "batch*length", "float", "int", "M_PI", "x",
)  # fmt: skip


def damage(function: Damage) -> Damage:
    DAMAGES.append(function)
    return function


def pick(random: Random, values: Sequence[T]) -> T:
    return values[int(random.integers(len(values)))]


def chance(random: Random, odds: float) -> bool:
    return bool(random.random() < odds)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def truncated(random: Random, content: bytes) -> bytes:
    return content[: int(random.integers(len(content) + 1))]


def flipped(random: Random, content: bytes) -> bytes:
    found = bytearray(content)
    for place in random.integers(0, max(len(content), 1), int(random.integers(1, 9))):
        if found:
            found[place] ^= 1 << int(random.integers(8))
    return bytes(found)


def overwritten(random: Random, content: bytes) -> bytes:
    found = bytearray(content)
    if found:
        place = int(random.integers(len(found)))
        found[place : place + int(random.integers(1, 12))] = random.bytes(int(random.integers(1, 12)))
    return bytes(found)


def repeated(random: Random, content: bytes) -> bytes:
    """A part of the file once more: fields that may come once then come twice."""
    a, b = sorted(int(k) for k in random.integers(0, len(content) + 1, 2))
    place = int(random.integers(len(content) + 1))
    return content[:place] + content[a:b] + content[place:]


def without(random: Random, content: bytes) -> bytes:
    a = int(random.integers(len(content) + 1))
    return content[:a] + content[a + int(random.integers(1, 40)) :]


BYTES: tuple[Callable[[Random, bytes], bytes], ...] = (truncated, flipped, overwritten, repeated, without)


# ---- parts of a model ------------------------------------------------------------------------------------------------


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The model's graph and those inside its operators."""
    stack = [model.graph]
    while stack:
        graph = stack.pop()
        yield graph
        stack += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]


def nodes(model: onnx.ModelProto) -> list[Node]:
    return [n for graph in graphs(model) for n in graph.node] + [n for f in model.functions for n in f.node]


def tensors(model: onnx.ModelProto) -> list[TensorProto]:
    """Initializers, and the tensors of attributes."""
    found = [t for graph in graphs(model) for t in graph.initializer]
    found += [t for graph in graphs(model) for s in graph.sparse_initializer for t in (s.values, s.indices)]
    return found + [a.t for n in nodes(model) for a in n.attribute if a.HasField("t")]


def names(model: onnx.ModelProto) -> list[str]:
    """Of values: those of the graph itself."""
    graph = model.graph
    found = [v.name for v in graph.input] + [t.name for t in graph.initializer]
    return found + [name for n in graph.node for name in n.output] or ["x"]


def values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [v for graph in graphs(model) for v in (*graph.input, *graph.input, *graph.output, *graph.value_info)]


def value(tensor: TensorProto) -> np.ndarray[Any, Any] | None:
    """The numbers of a tensor that is stored soundly, to be changed; None where other damage was there before."""
    dtype = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}.get(tensor.data_type)
    if dtype is None or min(tensor.dims, default=0) < 0 or not tensor.HasField("raw_data"):
        return None
    if len(tensor.dims) > 8 or len(tensor.raw_data) != math.prod(tensor.dims) * np.dtype(dtype).itemsize:
        return None
    return np.frombuffer(tensor.raw_data, dtype).reshape(tensor.dims).copy()


# ---- tensors ---------------------------------------------------------------------------------------------------------


@damage
def tensor_values(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    """Numbers that no shape, axis or size should be."""
    found = tensors(model)
    if not found:
        return
    tensor = pick(random, found)
    array = value(tensor)
    if array is None or not array.size or array.dtype.kind not in "iuf":
        return
    flat = array.reshape(-1)
    for place in random.integers(0, flat.size, int(random.integers(1, 3))):
        number: Any = pick(random, INTEGERS if array.dtype.kind in "iu" else FLOATS)
        with np.errstate(all="ignore"):
            flat[place] = np.array(number).astype(array.dtype)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


@damage
def tensor_dims(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = tensors(model)
    if not found:
        return
    tensor = pick(random, found)
    dims = list(tensor.dims)
    kind = int(random.integers(4))
    if kind == 0 and dims:
        dims[int(random.integers(len(dims)))] = pick(random, INTEGERS)
    elif kind == 1:
        dims.insert(int(random.integers(len(dims) + 1)), pick(random, INTEGERS))
    elif kind == 2 and dims:
        dims.pop()
    else:  # as many elements as before, or none, in a shape of many or of large sizes
        dims = pick(random, [[*dims, *[1] * 70], [*dims, 0, 1 << 62, 1 << 62], [0, 1 << 62], [-1, -1], dims[::-1]])
    tensor.dims[:] = dims


@damage
def tensor_type(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = tensors(model)
    if found:
        tensor = pick(random, found)
        if chance(random, 0.5):  # sound, of another type
            array = value(tensor)
            if array is None:
                return
            with np.errstate(all="ignore"):
                other = array.astype(pick(random, ["f2", "f4", "f8", "i1", "i4", "i8", "u1", "?", "c8"]))
            tensor.CopyFrom(onnx.numpy_helper.from_array(other, tensor.name))
        else:
            tensor.data_type = pick(random, (*range(30), -1, 99, 1 << 30))


@damage
def tensor_storage(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = tensors(model)
    if not found:
        return
    tensor = pick(random, found)
    kind = int(random.integers(5))
    if kind == 0:
        tensor.raw_data = tensor.raw_data[: int(random.integers(len(tensor.raw_data) + 1))]
    elif kind == 1:
        tensor.ClearField("raw_data")
    elif kind == 2:
        tensor.float_data.extend([1.0] * 3)
        tensor.ClearField("raw_data")
    elif kind == 3:
        tensor.int32_data.extend([pick(random, [0, -1, 1 << 30])] * 3)
        tensor.ClearField("raw_data")
    else:
        tensor.segment.begin, tensor.segment.end = 0, 1 << 40


@damage
def tensor_gone(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    if model.graph.initializer:
        del model.graph.initializer[int(random.integers(len(model.graph.initializer)))]


@damage
def tensor_names(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = tensors(model)
    if found:
        pick(random, found).name = pick(random, [*names(model), *TEXTS])


@damage
def sparse_dims(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    if not model.graph.sparse_initializer:
        tensor = onnx.numpy_helper.from_array(np.ones(2, np.float32), pick(random, names(model)))
        where = onnx.numpy_helper.from_array(np.array([0, 1]), "where")
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, where, [2]))
    sparse_tensor = model.graph.sparse_initializer[0]
    sparse_tensor.dims[:] = [pick(random, INTEGERS) for _ in range(int(random.integers(1, 5)))]


# ---- declared values -------------------------------------------------------------------------------------------------


@damage
def declared_sizes(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = [v for v in values(model) if v.type.HasField("tensor_type")]
    if not found:
        return
    shape = pick(random, found).type.tensor_type.shape
    kind = int(random.integers(5))
    if kind <= 1 and shape.dim:
        pick(random, shape.dim).dim_value = pick(random, INTEGERS)
    elif kind == 2 and shape.dim:
        pick(random, shape.dim).dim_param = pick(random, SIZES)
    elif kind == 3:
        shape.dim.add().dim_value = pick(random, INTEGERS)
    elif shape.dim:
        pick(random, shape.dim).Clear()


@damage
def declared_types(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = values(model)
    if not found:
        return
    declared = pick(random, found).type
    kind = int(random.integers(5))
    if kind <= 1:
        declared.tensor_type.elem_type = pick(random, (*range(30), -1, 99, 1 << 30))
    elif kind == 2:
        declared.tensor_type.ClearField("shape")
    elif kind == 3:
        pick(
            random, [declared.sequence_type.elem_type, declared.optional_type.elem_type, declared.map_type.value_type]
        ).tensor_type.elem_type = 1
    else:
        declared.Clear()


@damage
def declared_names(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = values(model)
    if found:
        pick(random, found).name = pick(random, [*names(model), *TEXTS])


@damage
def declared_twice(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    graph = model.graph
    for repeated_field in (
        graph.input,
        graph.output,
        graph.initializer,
        graph.node,
        model.opset_import,
        model.functions,
    ):
        if len(repeated_field) and chance(random, 0.3):
            repeated_field.add().CopyFrom(pick(random, repeated_field))


@damage
def declared_gone(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    field: Any = pick(random, [model.graph.input, model.graph.output, model.opset_import, model.functions])
    if len(field):
        del field[int(random.integers(len(field)))]


# ---- nodes -----------------------------------------------------------------------------------------------------------


@damage
def operator(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = nodes(model)
    if found:
        node = pick(random, found)
        if chance(random, 0.9):
            node.op_type = pick(random, sorted(operators.names()))
        else:
            node.op_type = pick(random, [*TEXTS, "Loop", "If", "Scan", "StringConcat", "x" * 100_000])
            node.domain = pick(random, ["", "ai.onnx", "ai.onnx.ml", "com.microsoft", "nowhere"])


@damage
def operands(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    """Inputs that are missing, later, the node's own, or of another kind."""
    found = nodes(model)
    if not found:
        return
    node = pick(random, found)
    kind = int(random.integers(5))
    if kind <= 1 and node.input:
        node.input[int(random.integers(len(node.input)))] = pick(random, [*names(model), *names(model), "", "nowhere"])
    elif kind == 2:
        node.input.append(pick(random, names(model)))
    elif kind == 3 and node.input:
        del node.input[int(random.integers(len(node.input)))]
    elif node.input and node.output:
        node.input[0] = node.output[0]


@damage
def results(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = nodes(model)
    if not found:
        return
    node = pick(random, found)
    kind = int(random.integers(4))
    if kind == 0 and node.output:
        node.output[int(random.integers(len(node.output)))] = pick(random, [*names(model), "", "nowhere"])
    elif kind == 1:
        node.output.extend(["more", "", "most"][: int(random.integers(1, 4))])
    elif kind == 2 and node.output:
        del node.output[int(random.integers(len(node.output)))]
    else:
        model.graph.output.add().name = pick(random, names(model))


@damage
def order(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    graph = pick(random, list(graphs(model)))
    if len(graph.node) > 1:
        shuffled = [graph.node[int(k)] for k in random.permutation(len(graph.node))]
        copies = [Node.FromString(node.SerializeToString()) for node in shuffled]
        del graph.node[:]
        graph.node.extend(copies)
    elif graph.node:
        del graph.node[:]


@damage
def attributes(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    """Wrong values of the right type."""
    found = [a for n in nodes(model) for a in n.attribute]
    if not found:
        return
    attribute = pick(random, found)
    if attribute.type == AttributeProto.INT:
        attribute.i = pick(random, INTEGERS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = pick(random, FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = pick(random, [*(text.encode() for text in TEXTS), b"\xff\xfe"])
    elif attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
        numbers: Any = attribute.ints if attribute.type == AttributeProto.INTS else attribute.floats
        choices: Any = INTEGERS if attribute.type == AttributeProto.INTS else FLOATS
        kind = int(random.integers(3))
        if kind == 0 and len(numbers):
            numbers[int(random.integers(len(numbers)))] = pick(random, choices)
        elif kind == 1:
            numbers.append(pick(random, choices))
        elif len(numbers):
            numbers.pop()
    else:
        attribute.ClearField("t")


@damage
def attribute_types(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = nodes(model)
    if not found:
        return
    node = pick(random, found)
    kind = int(random.integers(5))
    if kind == 0 and node.attribute:
        pick(random, node.attribute).type = pick(random, list(AttributeProto.AttributeType.values()))
    elif kind == 1 and node.attribute:
        del node.attribute[int(random.integers(len(node.attribute)))]
    elif kind == 2 and node.attribute:
        pick(random, node.attribute).name = pick(random, ["axis", "axes", *TEXTS])
    elif kind == 3 and node.attribute:
        node.attribute.add().CopyFrom(pick(random, node.attribute))
    else:
        value: Any = pick(random, [1, -1, 0.5, "text", [1, 2], [0.5], [], 1 << 62, [1 << 62] * 9])
        name = pick(
            random, ["axis", "axes", "perm", "to", "keepdims", "kernel_shape", "pads", "strides", "dilations", "group",
                     "mode", "value", "alpha", "epsilon", "k", "num_outputs", "blocksize", "shape", "dtype"],
        )  # fmt: skip
        if value == []:
            node.attribute.append(AttributeProto(name=name, type=AttributeProto.INTS))
        else:
            node.attribute.append(helper.make_attribute(name, value))


@damage
def versions(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    if chance(random, 0.7) and model.opset_import:
        pick(random, model.opset_import).version = pick(random, (*range(-1, 30), 1 << 62, -(1 << 63)))
    elif model.opset_import:
        pick(random, model.opset_import).domain = pick(random, ["ai.onnx", "nowhere", "com.microsoft", "ai.onnx.ml"])
    else:
        model.ir_version = pick(random, INTEGERS)


@damage
def imports(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    """Several versions of one set of operators, in the model or in a function of its own."""
    places: list[Any] = [model.opset_import, *(function.opset_import for function in model.functions)]
    for _ in range(int(random.integers(1, 4))):
        entry = pick(random, places).add()
        entry.domain = pick(random, ["", "ai.onnx", "own", "com.microsoft", "ai.onnx.ml", "ai.onnx.preview.training"])
        entry.version = int(random.integers(-1, 30))


@damage
def texts(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    model.graph.name = pick(random, TEXTS)
    for node in nodes(model):
        if chance(random, 0.3):
            node.name = pick(random, [*TEXTS, "x" * 1_000_000])
    entry = model.metadata_props.add()
    entry.key, entry.value = pick(random, TEXTS), pick(random, TEXTS)


# ---- models that grow ------------------------------------------------------------------------------------------------


def number(model: onnx.ModelProto, value: Any, dtype: Any = np.int64) -> str:
    """The name of a new initializer."""
    name = f"given_{len(model.graph.initializer)}"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, dtype), name))
    return name


def add(model: onnx.ModelProto, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
    """A new node; its first output, which becomes one of the model's too."""
    name = f"made_{len(model.graph.node)}"
    found = [name, *(f"{name}_{k}" for k in range(1, outputs))]
    model.graph.node.append(helper.make_node(op, inputs, found, **attributes))
    return name


def large(random: Random) -> int:
    return pick(random, [1 << 20, 1 << 27, 1 << 31, 1 << 36, 1 << 40, 1 << 61, 1 << 62, (1 << 63) - 1])


def _expand(random: Random, model: onnx.ModelProto, x: str) -> str:
    sizes = [large(random) for _ in range(int(random.integers(1, 5)))]
    return add(model, "Expand", number(model, 1.0, np.float32), number(model, sizes))


def _twice(random: Random, model: onnx.ModelProto, x: str) -> str:
    for _ in range(int(random.integers(10, 70))):
        x = add(model, "Concat", x, x, axis=0)
    return x


def _pads(random: Random, model: onnx.ModelProto, x: str) -> str:
    x = number(model, np.ones((2, 2)), np.float32)
    return add(model, "Pad", x, number(model, [0, large(random), 0, large(random)]))


def _tile(random: Random, model: onnx.ModelProto, x: str) -> str:
    x = number(model, np.arange(3))
    for _ in range(int(random.integers(1, 6))):
        x = add(model, "Tile", x, number(model, [large(random)]))
    return x


def _range(random: Random, model: onnx.ModelProto, x: str) -> str:
    return add(model, "Range", number(model, 0), number(model, large(random)), number(model, pick(random, [1, 0, -1])))


def _filled(random: Random, model: onnx.ModelProto, x: str) -> str:
    return add(model, "ConstantOfShape", number(model, [large(random)] * int(random.integers(1, 4))))


def _resize(random: Random, model: onnx.ModelProto, x: str) -> str:
    x = number(model, np.ones((1, 1, 4, 4)), np.float32)
    if chance(random, 0.5):
        return add(model, "Resize", x, "", number(model, [1, 1, pick(random, FLOATS), 1e18], np.float32))
    return add(model, "Resize", x, "", "", number(model, [1, 1, large(random), 2]), mode="cubic")


def _one_hot(random: Random, model: onnx.ModelProto, x: str) -> str:
    depth = number(model, large(random))
    return add(model, "OneHot", number(model, [1, 2]), depth, number(model, [0, 1]))


def _pool(random: Random, model: onnx.ModelProto, x: str) -> str:
    x = number(model, np.ones((1, 1, 8, 8)), np.float32)
    op = pick(random, ["MaxPool", "AveragePool", "LpPool"])
    pads = [pick(random, INTEGERS) for _ in range(4)] if chance(random, 0.6) else [0] * 4
    return add(model, op, x, kernel_shape=[large(random), 2], pads=pads, strides=[1, large(random)])


def _convolution(random: Random, model: onnx.ModelProto, x: str) -> str:
    x, w = number(model, np.ones((1, 2, 8, 8)), np.float32), number(model, np.ones((2, 1, 3, 3)), np.float32)
    op = pick(random, ["Conv", "ConvTranspose", "ConvInteger"])
    return add(
        model, op, x, w, group=pick(random, [2, 1, 0, -1, 1 << 40]), strides=[pick(random, INTEGERS), 1],
        dilations=[pick(random, INTEGERS), 1], pads=[large(random), 1, large(random), 1],
    )  # fmt: skip


def _parts(random: Random, model: onnx.ModelProto, x: str) -> str:
    x = add(model, "Expand", number(model, 1.0, np.float32), number(model, [large(random)]))
    if chance(random, 0.5):
        x = add(model, "SplitToSequence", x, number(model, pick(random, [1, 2, 1000])), axis=0)
        return add(model, "ConcatFromSequence", x, axis=0)
    return add(model, "Split", x, num_outputs=pick(random, [2, 3, 1 << 40]), outputs=2)


def _window(random: Random, model: onnx.ModelProto, x: str) -> str:
    op = pick(random, ["BlackmanWindow", "HannWindow", "HammingWindow"])
    return add(model, op, number(model, large(random)))


def _signal(random: Random, model: onnx.ModelProto, x: str) -> str:
    signal = number(model, np.ones((1, 16, 1)), np.float32)
    if chance(random, 0.5):
        return add(model, "DFT", signal, number(model, large(random)), axis=1)
    return add(model, "STFT", signal, number(model, large(random)), "", number(model, large(random)))


def _mel(random: Random, model: onnx.ModelProto, x: str) -> str:
    sizes = [number(model, large(random)), number(model, large(random)), number(model, 8000)]
    return add(model, "MelWeightMatrix", *sizes, number(model, 0.0, np.float32), number(model, 4000.0, np.float32))


def _cumulative(random: Random, model: onnx.ModelProto, x: str) -> str:
    return add(model, "CumSum", _filled(random, model, x), number(model, 0))


def _reduced(random: Random, model: onnx.ModelProto, x: str) -> str:
    """A large value that only a small one is made of."""
    op = pick(
        random, ["ReduceSum", "ReduceMax", "ReduceProd", "ReduceLogSumExp", "ArgMax", "Softmax", "TopK", "Hardmax"]
    )
    wide = pick(random, [_filled, _range, _expand, _tile])(random, model, x)
    return add(model, op, wide, number(model, [3])) if op == "TopK" else add(model, op, wide)


def _gathered(random: Random, model: onnx.ModelProto, x: str) -> str:
    wide = pick(random, [_filled, _range, _expand, _tile])(random, model, x)
    op = pick(
        random, ["Gather", "GatherND", "Compress", "NonZero", "Unique", "ReverseSequence", "Trilu", "EyeLike", "Det"]
    )
    return add(model, op, wide, number(model, [[pick(random, INTEGERS)]])) if op[0] == "G" else add(model, op, wide)


def _product(random: Random, model: onnx.ModelProto, x: str) -> str:
    a = add(model, "Expand", number(model, 1.0, np.float32), number(model, [large(random), large(random)]))
    b = add(model, "Transpose", a)
    return add(model, "MatMul", b, a)


def _axes(random: Random, model: onnx.ModelProto, x: str) -> str:
    """Values of very many axes."""
    count = int(random.integers(10, 3000))
    if chance(random, 0.5):
        return add(model, "Unsqueeze", x, number(model, list(range(count))))
    return add(model, "Reshape", number(model, [1.0], np.float32), number(model, [1] * count))


def _outer(random: Random, model: onnx.ModelProto, x: str) -> str:
    """Sizes that are multiplied by every operator."""
    for _ in range(int(random.integers(2, 40))):
        x = add(
            model, "Add", add(model, "Unsqueeze", x, number(model, [0])), add(model, "Unsqueeze", x, number(model, [1]))
        )
    return x


def _deep(random: Random, model: onnx.ModelProto, x: str) -> str:
    """A chain of operators, longer than a recursion may be."""
    op = pick(random, ["Neg", "Sin", "Identity", "Relu", "Shape", "Unsqueeze"])
    if op == "Unsqueeze":
        axis = number(model, [0])
        for _ in range(int(random.integers(20, 300))):
            x = add(model, op, x, axis)
        return x
    for _ in range(5000 if chance(random, 0.1) else int(random.integers(300, 1500))):
        x = add(model, op, x)
    return x


def _sizes(random: Random, model: onnx.ModelProto, x: str) -> str:
    """Arithmetic on sizes that grows beyond what a size may be."""
    op = pick(random, ["Mul", "Add", "Sub", "Div", "Mod", "Pow"])
    size = add(model, "Size", x)
    for _ in range(int(random.integers(2, 80))):
        size = add(model, op, size, size)
    return add(model, "ConstantOfShape", add(model, "Unsqueeze", size, number(model, [0])))


def _body(random: Random, nodes: Sequence[Node], results: Sequence[str], values: Sequence[str]) -> onnx.GraphProto:
    """The graph of a loop: its number, its condition and ``values``; the condition, which may be asked, and results."""
    keep = pick(random, [["go"], ["go"], ["number"], [values[0]]])
    on = helper.make_node(pick(random, ["Identity", "Identity", "Not"]), keep, ["on"])
    inputs = [onnx.ValueInfoProto(name=name) for name in ("number", "go", *values)]
    return helper.make_graph(
        [on, *nodes], "body", inputs, [onnx.ValueInfoProto(name=name) for name in ("on", *results)]
    )


def _loop(random: Random, model: onnx.ModelProto, x: str) -> str:
    """A loop without an end, or loops inside each other whose values grow in each round."""
    op = pick(random, ["Sin", "Neg", "Exp", "Not", "Shape"])
    step = helper.make_node(op, ["a"], ["b"])
    if chance(random, 0.3):
        step = helper.make_node("Concat", ["a", "a"], ["b"], axis=0)
    trips = pick(random, ["", number(model, large(random)), number(model, pick(random, [3, 60, -1])), *names(model)])
    keep = pick(random, ["", number(model, True, np.bool_), number(model, False, np.bool_), *names(model)])
    body = _body(random, [step], ["b", "b"] if chance(random, 0.3) else ["b"], ["a"])
    for _ in range(int(random.integers(0, 12))):
        body = _body(random, [helper.make_node("Loop", [trips, keep, "a"], ["b"], body=body)], ["b"], ["a"])
    return add(model, "Loop", trips, keep, x, outputs=len(body.output) - 1, body=body)


def _scan(random: Random, model: onnx.ModelProto, x: str) -> str:
    """A scan along an axis of any length, of constants or not."""
    wide = add(model, "Expand", pick(random, [x, number(model, 1.0, np.float32)]), number(model, [large(random), 2, 3]))
    nodes = [helper.make_node(pick(random, ["Add", "Max", "MatMul"]), ["a", "b"], ["c"])]
    inputs, outputs = (
        [onnx.ValueInfoProto(name=name) for name in part] for part in (["a", "b"], ["c", pick(random, ["c", "b", "a"])])
    )
    body = helper.make_graph(nodes, "body", inputs, outputs)
    first = number(model, np.zeros((2, 3)), np.float32)
    return add(model, "Scan", first, wide, outputs=2, body=body, num_scan_inputs=pick(random, [1, 1, 1, 0, 2, 1 << 40]))


def _counted(random: Random, model: onnx.ModelProto, x: str) -> str:
    """Very many values of one operator."""
    count = int(random.integers(1000, 3000))
    op = pick(random, ["Concat", "Sum", "Max", "SequenceConstruct", "Split"])
    if op == "Split":
        return add(model, op, _expand(random, model, x), num_outputs=count, outputs=count)
    made = add(model, op, *[x] * count, **({"axis": 0} if op == "Concat" else {}))
    return add(model, "ConcatFromSequence", made, axis=0) if op == "SequenceConstruct" else made


def _recurrent(random: Random, model: onnx.ModelProto, x: str) -> str:
    size = large(random)
    shape = [pick(random, [size, 3]), 1, 3]
    x = add(model, "Expand", number(model, 1.0, np.float32), number(model, shape))
    w, r = number(model, np.ones((1, 8, 3)), np.float32), number(model, np.ones((1, 8, 2)), np.float32)
    hidden = pick(random, [2, 2, 0, -1, large(random)])
    return add(model, pick(random, ["LSTM", "GRU", "RNN"]), x, w, r, hidden_size=hidden, outputs=2)


def _random(random: Random, model: onnx.ModelProto, x: str) -> str:
    if chance(random, 0.5):
        return add(
            model, "RandomNormal", shape=[large(random)] * int(random.integers(1, 4)), dtype=pick(random, [1, 7])
        )
    return add(model, "Multinomial", x, sample_size=pick(random, [large(random), 0, -1]))


GROWING = (
    _expand, _twice, _pads, _tile, _range, _filled, _resize, _one_hot, _pool, _convolution, _parts, _window, _signal,
    _mel, _cumulative, _reduced, _gathered, _product, _axes, _outer, _deep, _sizes, _loop, _scan, _counted, _recurrent,
    _random,
)  # fmt: skip


@damage
def growth(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    given = model.graph.input[0].name if model.graph.input else number(model, [1.0, 2.0], np.float32)
    if len(model.graph.node) > 100:
        return
    result = pick(random, GROWING)(random, model, given)
    if chance(random, 0.3):
        result = add(model, pick(random, ["Exp", "Neg", "Shape", "ReduceMax", "Cast"]), result)
    model.graph.output.add().name = result


@damage
def functions(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    """Functions that call themselves, or so many others that what they stand for has no end."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    count = int(random.integers(1, 60))
    last = pick(random, ["F0", f"F{count}", "Neg"])
    model.opset_import.add().CopyFrom(imports[1])
    for k in range(count):
        called = f"F{k + 1}" if k + 1 < count else last
        domain = "own" if called != "Neg" else ""
        body = [
            helper.make_node(called, ["a"], ["m"], domain=domain),
            helper.make_node(called, ["m"], ["b"], domain=domain),
        ]
        model.functions.append(helper.make_function("own", f"F{k}", ["a"], ["b"], body, imports))
    given = model.graph.input[0].name if model.graph.input else "x"
    model.graph.node.append(helper.make_node("F0", [given], ["called"], domain="own"))
    model.graph.output.add().name = "called"


@damage
def branches(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    """Graphs inside graphs, deeper than any model has."""
    given = model.graph.input[0].name if model.graph.input else "x"
    output = [onnx.ValueInfoProto(name="r")]
    graph = helper.make_graph([helper.make_node("Identity", [given], ["r"])], "g", [], output)
    condition = number(model, True, np.bool_)
    # Past a hundred messages inside each other, the format itself gives up.
    for _ in range(int(random.integers(1, 28))):
        node = helper.make_node("If", [condition], ["r"], then_branch=graph, else_branch=onnx.GraphProto())
        graph = helper.make_graph([node], "g", [], output)
    node = model.graph.node.add()
    node.CopyFrom(graph.node[0])
    node.output[0] = "branched"
    model.graph.output.add().name = "branched"


# ---- external data ---------------------------------------------------------------------------------------------------

LOCATIONS = (
    "data.bin", "data.bin", "data.bin", "./data.bin", "sub/../data.bin", "../secret.bin", "sub/../../secret.bin",
    "link.bin", "loop", "linked/secret.bin", "sub", ".", "..", "", "pipe", "nowhere.bin", "/etc/hostname", "/dev/zero",
    "data.bin\0x",
    "x" * 5000, "a/" * 3000, "~/data.bin", "C:\\data.bin", "file:///etc/hostname", "*", "empty.bin", "model.onnx", "é",
)  # fmt: skip


@damage
def external(random: Random, model: onnx.ModelProto, folder: Path) -> None:
    found = tensors(model)
    if not found:
        return
    tensor = pick(random, found)
    content = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    (folder / "data.bin").write_bytes(content)
    entries = {"location": pick(random, LOCATIONS)}
    if chance(random, 0.6):
        entries["offset"] = pick(
            random, ["0", "0", "1", "-1", "4096", str(1 << 62), str(1 << 70), "x", "", "0x10", "²", " 1"]
        )
    if chance(random, 0.6):
        entries["length"] = pick(
            random, [str(len(content)), str(len(content)), "0", "-4", str(1 << 63), "9" * 5000, "1e3"]
        )
    for key, value in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
