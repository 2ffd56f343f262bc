"""The ONNX importer: reading files, symbolic sizes, constants, functions, origins, and what it refuses."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.errors import DTypeError, InputError, ModelError, ShapeError, UnsupportedError
from luminal.core.types import f32
from luminal.frontends.onnx import importer
from tests import onnx_models as models
from tests.onnx_models import floats, node

Array = np.ndarray[Any, Any]
F = np.zeros((0,), np.float32)


def relu(shape: list[int | str]) -> onnx.ModelProto:
    return models.model([node("Relu", "x", "y")], [models.declared("x", F, shape)], ["y"])


# ---- symbolic sizes --------------------------------------------------------------------------------------------------


def test_named_sizes_become_bounded_symbols() -> None:
    graph = importer.load(relu(["batch", 3, "width"]), dims={"batch": (1, 32)})
    assert [(v.name, v.lo, v.hi) for v in graph.dims] == [("batch", 1, 32), ("width", 1, 1024)]
    assert [str(d) for d in graph.inputs[0].shape] == ["batch", "3", "width"]
    (result,) = models.run(graph, {"x": floats(2, 3, 4)})
    assert result.shape == (2, 3, 4)


def test_an_int_fixes_a_size() -> None:
    graph = importer.load(relu(["batch", 3]), dims={"batch": 8})
    assert graph.inputs[0].shape == (8, 3)
    assert graph.dims == ()


def test_an_unnamed_size_is_called_by_its_input_and_axis() -> None:
    proto = relu([2, 3])
    proto.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    graph = importer.load(proto, dims={"x_1": (0, 5)})
    assert [(v.name, v.lo, v.hi) for v in graph.dims] == [("x_1", 0, 5)]


def test_sizes_are_identifiers_apart_from_axes_and_from_each_other() -> None:
    graph = importer.load(relu(["batch size", "batch_size", "i0", "7"]))
    assert [v.name for v in graph.dims] == ["batch_size", "batch_size_", "dim_i0", "dim_7"]


def test_a_size_may_be_an_expression_over_others() -> None:
    proto = models.model(
        [node("Concat", "past x", "y", axis=0)],
        [models.declared("past", F, ["past"]), models.declared("x", F, ["n"]), models.declared("m", F, ["past + 2*n"])],
        ["y"],
    )
    graph = importer.load(proto)
    past, n = (sym.var(v.name, v.lo, v.hi) for v in graph.dims)
    assert graph.inputs[2].shape == (past + 2 * n,)


@pytest.mark.parametrize("dims", [{"batch": (3, 2)}, {"batch": (-1, 4)}, {"other": (1, 2)}])
def test_dims_that_do_not_fit_are_refused(dims: dict[str, tuple[int, int]]) -> None:
    with pytest.raises(InputError, match="dims"):
        importer.load(relu(["batch"]), dims=dims)


def test_shape_arithmetic_folds_away() -> None:
    """An exporter's way to flatten all but the first axis, and to split heads."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "batch"),
        node("Unsqueeze", "batch axes", "batch1"),
        node("Gather", "shape one", "length"),
        node("Div", "length two", "half"),
        node("Mul", "half two", "even"),
        node("Unsqueeze", "even axes", "even1"),
        node("Concat", "batch1 even1 rest", "target", axis=0),
        node("Cast", "target", "target32", to=onnx.TensorProto.INT32),
        node("Cast", "target32", "target64", to=onnx.TensorProto.INT64),
        node("Reshape", "x target64", "y"),
        node("Equal", "target minus", "unknown"),
        node("Where", "unknown ones target", "expanded"),
        node("Expand", "scalar expanded", "z"),
    ]
    constants = {
        "zero": np.array(0),
        "one": np.array(1),
        "two": np.array(2),
        "minus": np.array(-1),
        "axes": np.array([0]),
        "rest": np.array([2, 4]),
        "ones": np.array([1, 1, 1, 1]),
        "scalar": np.array(1.5, np.float32),
    }
    proto = models.model(nodes, [models.declared("x", F, ["batch", 6, 8])], ["y", "z"], initializers=constants)
    graph = importer.load(proto)
    y, z = graph.results
    assert y.op is ops.VIEW and y.inputs == graph.inputs
    assert [str(d) for d in z.shape] == ["batch", "6", "2", "4"]
    assert z.inputs[0].op is ops.CONSTANT


def test_ranges_and_slices_follow_symbolic_sizes() -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Squeeze", "shape", "n"),
        node("Range", "zero n one", "positions"),
        node("Cast", "positions", "weights", to=1),
        node("Mul", "x weights", "scaled"),
        node("Slice", "scaled start end axis", "y"),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "start": np.array([1]), "end": np.array([-1])}
    constants["axis"] = np.array([0])
    proto = models.model(nodes, [models.declared("x", F, ["n"])], ["y"], initializers=constants)
    graph = importer.load(proto, dims={"n": (2, 64)})
    x = floats(9)
    np.testing.assert_array_equal(models.run(graph, {"x": x})[0], (x * np.arange(9, dtype=np.float32))[1:-1])


@pytest.mark.parametrize(("start", "delta"), [(0, 1), (2, 3), (-1, 2)])
def test_a_range_of_floats_follows_a_symbolic_size(start: int, delta: int) -> None:
    """As detectors make the centres of their cells: the size becomes a float before the range."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Squeeze", "shape", "n"),
        node("Cast", "n", "limit", to=1),
        node("Range", "start limit delta", "y"),
    ]
    constants = {"start": np.array(start, np.float32), "delta": np.array(delta, np.float32)}
    proto = models.model(nodes, [models.declared("x", F, ["n"])], ["y"], initializers=constants)
    graph = importer.load(proto, dims={"n": (1, 64)})
    for n in (1, 2, 9, 64):
        (y,) = models.run(graph, {"x": floats(n)})
        np.testing.assert_array_equal(y, np.arange(start, n, delta, np.float32), strict=True)


def test_a_range_of_floats_with_a_fraction_needs_a_known_limit() -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Squeeze", "shape", "n"),
        node("Cast", "n", "limit", to=1),
        node("Range", "start limit delta", "y"),
    ]
    constants = {"start": np.array(0.5, np.float32), "delta": np.array(1, np.float32)}
    proto = models.model(nodes, [models.declared("x", F, ["n"])], ["y"], initializers=constants)
    with pytest.raises(ModelError, match="input 0 must be a whole number"):
        importer.load(proto, dims={"n": (1, 64)})


@pytest.mark.parametrize(("dims", "upper"), [({}, 511), ({"n": (1, 100)}, 100)])
def test_a_table_bounds_a_size_that_nobody_declared(dims: dict[str, tuple[int, int]], upper: int) -> None:
    """As a position embedding bounds a sequence: here rows 1 to n+1 of 512."""
    nodes = [
        node("Shape", "x", "n"),
        node("Add", "n one", "end"),
        node("Slice", "table one end zero", "rows"),
        node("Add", "x rows", "y"),
    ]
    constants = {"table": floats(512), "one": np.array([1]), "zero": np.array([0])}
    proto = models.model(nodes, [models.declared("x", F, ["n"])], ["y"], initializers=constants)
    graph = importer.load(proto, dims=dims)
    assert [(v.lo, v.hi) for v in graph.dims] == [(1, upper)]
    x = np.ones(9, np.float32)
    np.testing.assert_array_equal(models.run(graph, {"x": x})[0], x + floats(512)[1:10])


def test_declared_bounds_beyond_a_table_are_not_overruled() -> None:
    proto = models.model(
        [node("Shape", "x", "n"), node("Slice", "table zero n zero", "rows"), node("Add", "x rows", "y")],
        [models.declared("x", F, ["n"])],
        ["y"],
        initializers={"table": floats(512), "zero": np.array([0])},
    )
    with pytest.raises(ShapeError, match=r"Add 'y'.*min\(512, n\)"):
        importer.load(proto, dims={"n": (1, 513)})


# ---- constants -------------------------------------------------------------------------------------------------------


def reshape() -> onnx.ModelProto:
    shape = models.declared("shape", np.zeros(2, np.int64))
    return models.model([node("Reshape", "x shape", "y")], [models.declared("x", F, ["n", 4]), shape], ["y"])


def test_an_input_that_decides_shapes_must_be_constant() -> None:
    advice = r"constants=\{'shape': array\} or --constant shape=FILE\.npy"
    with pytest.raises(InputError, match=rf"Reshape 'y'.*depends on the data of 'shape'.*{advice}"):
        importer.load(reshape())
    graph = importer.load(reshape(), constants={"shape": np.array([2, -1])})
    assert [n.attr.name for n in graph.inputs] == ["x"]
    assert graph.structure["inputs"] == ["x"]
    assert models.run(graph, {"x": floats(3, 4)})[0].shape == (2, 6)


def test_a_constant_fixes_the_sizes_that_it_shares() -> None:
    proto = models.model(
        [node("Add", "x bias", "y")], [models.declared("x", F, ["n"]), models.declared("bias", F, ["n"])], ["y"]
    )
    assert importer.load(proto, constants={"bias": floats(5)}).inputs[0].shape == (5,)


@pytest.mark.parametrize(
    "constants",
    [
        {"shape": np.array([2, -1], np.int32)},
        {"shape": np.array([[2, -1]])},
        {"shape": np.array([2, 2, -1])},
        {"nothing": np.array([1])},
    ],
)
def test_constants_that_do_not_fit_are_refused(constants: dict[str, Array]) -> None:
    with pytest.raises(InputError, match="constants"):
        importer.load(reshape(), constants=constants)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((4, 64), "axis 1 of 'x': expected 512, found 64"),
        ((9, 512), "axis 0 of 'x': expected batch, in 1..8, found 9"),
        ((5, 512), "axis 0 of 'x': expected batch = 4, found 5"),
    ],
)
def test_constants_of_other_sizes_are_refused(shape: tuple[int, ...], message: str) -> None:
    inputs = [models.declared("first", F, ["batch", 512]), models.declared("x", F, ["batch", 512])]
    proto = models.model([node("Add", "first x", "y")], inputs, ["y"])
    constants = {"first": floats(4, 512)} if shape[0] == 5 else {}
    with pytest.raises(InputError) as caught:
        importer.load(proto, dims={"batch": (1, 8)}, constants={**constants, "x": floats(*shape)})
    assert str(caught.value) == f"constants: {message}"


# ---- names, origins, structure ---------------------------------------------------------------------------------------


def test_weights_keep_their_names_and_operators_their_origins() -> None:
    trace = (
        'File "/home/me/project/model.py", line 12, in forward\n  y = f(x)\nFile "/x/site-packages/t.py", line 3, in f'
    )
    add = node("Add", "x weight", "y", name="layer/add")
    add.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    proto = models.model(
        [add, node("Relu", "y", "z")], [models.declared("x", F, ["n"])], ["z", "y"], initializers={"weight": floats(1)}
    )
    graph = importer.load(proto, name="small")
    assert graph.name == "small"
    assert graph.structure == {"kind": "onnx", "inputs": ["x"], "outputs": ["z", "y"]}
    assert list(graph.names.values()) == ["weight"]
    assert [str(o) for o in graph.origins[graph.results[1]]] == ["Add 'layer/add' at project/model.py:12"]
    assert [str(o) for o in graph.origins[graph.results[0]]] == ["Relu 'z'"]


def test_equal_weights_are_one_constant() -> None:
    weight = floats(4)
    proto = models.model(
        [node("Add", "x a", "y"), node("Mul", "y b", "z")],
        [models.declared("x", weight)],
        ["z"],
        initializers={"a": weight, "b": weight.copy()},
    )
    graph = importer.load(proto)
    assert list(graph.names.values()) == ["a"]


# ---- functions and branches ------------------------------------------------------------------------------------------


def test_functions_of_the_model_are_inlined() -> None:
    inner = helper.make_function(
        "own", "Scale", ["v"], ["w"], [helper.make_node("Elu", ["v"], ["w"])], [helper.make_opsetid("", 17)], ["alpha"]
    )
    reference = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="alpha")
    inner.node[0].attribute.append(reference)
    outer = helper.make_function(
        "own", "Twice", ["v"], ["w"],
        [helper.make_node("Scale", ["v"], ["t"], domain="own", alpha=0.5),
         helper.make_node("Scale", ["t"], ["w"], domain="own", alpha=2.0)],
        [helper.make_opsetid("own", 1)],
    )  # fmt: skip
    call = helper.make_node("Twice", ["x"], ["y"], domain="own", name="call")
    x = floats(9)
    proto = models.model([call], [models.declared("x", x)], ["y"], functions=[inner, outer], domains={"own": 1})
    graph = importer.load(proto)
    models.assert_close(models.run(graph, {"x": x}), models.by_onnxruntime(proto, {"x": x}))
    assert {o.name for o in graph.origins[graph.results[0]]} == {"call/w/w"}


def test_a_function_that_calls_itself_is_refused() -> None:
    body = helper.make_node("F", ["v"], ["w"], domain="own")
    function = helper.make_function("own", "F", ["v"], ["w"], [body], [helper.make_opsetid("own", 1)])
    proto = models.model(
        [helper.make_node("F", ["x"], ["y"], domain="own")], [models.declared("x", floats(2))], ["y"],
        functions=[function], domains={"own": 1},
    )  # fmt: skip
    with pytest.raises(ModelError, match="calls itself"):
        importer.load(proto)


def branch(shape: list[int | str]) -> onnx.ModelProto:
    """Doubles where the first size is 3, else negates; the branches read an outer value."""
    then = helper.make_graph([node("Add", "x x", "a")], "then", [], [onnx.ValueInfoProto(name="a")])
    other = helper.make_graph([node("Neg", "x", "b")], "else", [], [onnx.ValueInfoProto(name="b")])
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "size"),
        node("Equal", "size three", "same"),
        helper.make_node("If", ["same"], ["y"], then_branch=then, else_branch=other),
    ]
    constants = {"zero": np.array(0), "three": np.array(3)}
    return models.model(nodes, [models.declared("x", F, shape)], ["y"], initializers=constants)


@pytest.mark.parametrize(("size", "factor"), [(3, 2), (4, -1)])
def test_a_branch_on_a_known_condition_is_taken(size: int, factor: int) -> None:
    x = floats(size)
    np.testing.assert_array_equal(models.imported(branch([size]), {"x": x})[0], x * np.float32(factor))


def test_a_branch_on_a_symbolic_size_is_taken_at_run_time() -> None:
    for size, factor in ((3, 2), (4, -1)):
        x = floats(size)
        np.testing.assert_array_equal(models.imported(branch(["n"]), {"x": x})[0], x * np.float32(factor))


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_everything_unsupported_is_listed_at_once() -> None:
    nodes = [
        node("ImageDecoder", "x", "a", name="first"),
        node("Relu", "x", "r"),
        node("ImageDecoder", "r", "b"),
        helper.make_node("Mystery", ["r"], ["c"], domain="com.example", name="third"),
    ]
    proto = models.model(nodes, [models.declared("x", F, ["n", 3])], ["a", "b", "c"], domains={"com.example": 1})
    with pytest.raises(UnsupportedError) as caught:
        importer.load(proto)
    places = caught.value.places
    assert [(p.op, p.node) for p in places] == [
        ("ImageDecoder", "first"),
        ("ImageDecoder", "b"),
        ("com.example.Mystery", "third"),
    ]
    assert places[0].operands == ("float32[n, 3]",)
    assert all(p.advice for p in places)
    assert "com.example.Mystery 'third'(float32[n, 3])" in str(caught.value)
    assert [(p.op, p.node) for p in importer.unsupported(proto)] == [(p.op, p.node) for p in places]


def test_unsupported_uses_are_listed_at_once() -> None:
    nodes = [
        node("LayerNormalization", "x s", "a mean", name="norm", stash_type=onnx.TensorProto.FLOAT16),
        node("Relu", "mean", "hidden"),
        node("BatchNormalization", "x s s s s", "b", spatial=0),
        node("Neg", "x", "c", invented=3),
    ]
    proto = models.model(
        nodes, [models.declared("x", F, ["n", 1, 4])], ["a", "hidden", "b", "c"], initializers={"s": floats(4)}
    )
    with pytest.raises(UnsupportedError) as caught:
        importer.load(proto)
    places = caught.value.places
    assert [p.op for p in places] == ["LayerNormalization", "BatchNormalization", "Neg"]
    assert places[0].operands == ("float32[n, 1, 4]", "float32[4]")
    assert "'invented'" not in places[0].advice and "invented" in places[2].advice
    assert importer.unsupported(relu([2])) == []


def test_an_operator_in_a_function_is_listed_once() -> None:
    function = helper.make_function(
        "own", "F", ["v"], ["w"], [helper.make_node("ImageDecoder", ["v"], ["w"])], [helper.make_opsetid("", 17)]
    )
    calls = [helper.make_node("F", ["x"], [name], domain="own") for name in "ab"]
    proto = models.model(calls, [models.declared("x", floats(2))], ["a", "b"], functions=[function], domains={"own": 1})
    with pytest.raises(UnsupportedError) as caught:
        importer.load(proto)
    assert len(caught.value.places) == 1


@pytest.mark.parametrize(
    ("nodes", "error", "message"),
    [
        ([node("Add", "x ghost", "y")], ModelError, "'ghost' is read before"),
        ([node("Add", "x", "y")], ModelError, "input 1 is required"),
        ([node("Concat", "x x", "y")], ModelError, "attribute 'axis' is required|axis 1 is out of range"),
        ([node("Transpose", "x", "y", perm=[0, 1])], ShapeError, "permutation"),
        ([node("Cast", "x", "y", to=99)], ModelError, "element type"),
        ([node("Cast", "x", "y", to="nonsense")], ModelError, "expected INT, found STRING"),
        ([node("Conv", "x x", "y")], ModelError, "rank"),
        ([node("MatMul", "x w", "y")], ShapeError, "inner sizes"),
    ],
)
def test_inconsistent_models_are_refused(nodes: list[onnx.NodeProto], error: type[Exception], message: str) -> None:
    proto = models.model(nodes, [models.declared("x", floats(3))], ["y"], initializers={"w": floats(2, 2)})
    with pytest.raises(error, match=message):
        importer.load(proto)


@pytest.mark.parametrize("opset", [4, 29])
def test_other_opsets_are_refused(opset: int) -> None:
    proto = relu([2])
    proto.opset_import[0].version = opset
    with pytest.raises(UnsupportedError, match=f"opset {opset}.*6 to 28"):
        importer.load(proto)


def test_a_number_of_classes_that_is_a_float_becomes_a_size() -> None:
    proto, given = models.one("OneHot", np.array([1, 0]), np.float32([3]), np.float32([0, 1]), fixed=[1])
    graph = importer.load(proto)
    assert [type(size) for size in graph.results[0].shape] == [int, int]
    np.testing.assert_array_equal(models.run(graph, given)[0], np.float32([[0, 1, 0], [1, 0, 0]]))
    proto, _ = models.one("OneHot", np.array([1, 0]), np.float32([2.5]), np.float32([0, 1]), fixed=[1])
    with pytest.raises(ModelError, match=r"whole number, found 2\.5"):
        importer.load(proto)


def test_an_older_opset_is_read_where_its_operators_have_not_changed() -> None:
    proto = relu([2])
    proto.graph.node[0].op_type = "Softsign"
    proto.opset_import[0].version = 5
    (found,) = models.imported(proto, {"x": np.float32([-1, 3])})
    np.testing.assert_array_equal(found, np.float32([-0.5, 0.75]))


def test_maps_and_arithmetic_of_strings_are_refused() -> None:
    proto = relu([2])
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    with pytest.raises(DTypeError, match=r"Relu 'y'.*expected numbers, found text"):
        importer.load(proto)
    values = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    kinds = helper.make_map_type_proto(onnx.TensorProto.INT64, values)
    proto.graph.input[0].CopyFrom(helper.make_value_info("x", kinds))
    with pytest.raises(UnsupportedError, match="only tensors and sequences"):
        importer.load(proto)


def test_an_input_without_rank_is_refused() -> None:
    proto = relu([2])
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="rank is unknown"):
        importer.load(proto)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_paths_bytes_and_protos_are_one_model(tmp_path: Path) -> None:
    proto = relu(["n", 4])
    path = tmp_path / "relu.onnx"
    onnx.save(proto, path)
    graphs = [importer.load(source) for source in (path, str(path), path.read_bytes(), proto)]
    assert len({graph.results for graph in graphs}) == 1
    assert [graph.name for graph in graphs] == ["relu", "relu", "test", "test"]


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x09", bytes(range(256)) * 4])
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises(ModelError, match="expected an ONNX model"):
            importer.load(source)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = weighted().SerializeToString()
    for end in range(0, len(content), 7):
        with pytest.raises((ModelError, UnsupportedError)):
            importer.load(content[:end])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        importer.load(tmp_path / "nothing.onnx")
    with pytest.raises(ModelError, match="directory"):
        importer.load(tmp_path)


def weighted() -> onnx.ModelProto:
    return models.model(
        [node("MatMul", "x w", "y"), node("Add", "y b", "z")],
        [models.declared("x", F, ["n", 64])],
        ["z"],
        initializers={"w": floats(64, 32), "b": floats(32)},
    )


def external(folder: Path, location: str = "weights.bin") -> Path:
    path = folder / "model.onnx"
    onnx.save_model(weighted(), path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def set_external(path: Path, key: str, value: str) -> None:
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        entries = {e.key: e.value for e in tensor.external_data} | {key: value}
        del tensor.external_data[:]
        for k, v in entries.items():
            tensor.external_data.add(key=k, value=v)
    onnx.save(proto, path)


def test_external_data(tmp_path: Path) -> None:
    graph = importer.load(external(tmp_path))
    weights = {name: n.attr.array for n, name in graph.names.items()}
    np.testing.assert_array_equal(weights["w"], floats(64, 32))
    x = floats(3, 64)
    models.assert_close(models.run(graph, {"x": x}), models.by_onnxruntime(weighted(), {"x": x}))


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "sub/../../weights.bin", ""])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 16))
    path = external(folder)
    set_external(path, "location", location)
    with pytest.raises(ModelError, match=r"leaves the model's folder|names no file"):
        importer.load(path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = external(folder)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match="leaves the model's folder"):
        importer.load(path)


def test_links_from_one_store_are_followed(tmp_path: Path) -> None:
    """As download caches lay a model out: every file a link to a blob beside the others."""
    store, folder = tmp_path / "blobs", tmp_path / "snapshot"
    store.mkdir()
    folder.mkdir()
    external(store)
    for name in ("model.onnx", "weights.bin"):
        (store / name).rename(store / f"blob-{name}")
        (folder / name).symlink_to(store / f"blob-{name}")
    assert len(importer.load(folder / "model.onnx").names) == 2


@pytest.mark.parametrize(
    ("key", "value"), [("offset", "1000000"), ("length", "999999"), ("length", "12"), ("offset", "-4"), ("offset", "x")]
)
def test_external_data_that_does_not_fit_is_refused(tmp_path: Path, key: str, value: str) -> None:
    path = external(tmp_path)
    set_external(path, key, value)
    with pytest.raises(ModelError, match=r"tensor|external data"):
        importer.load(path)


def test_missing_and_truncated_external_data_is_refused(tmp_path: Path) -> None:
    path = external(tmp_path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ModelError, match="truncated"):
        importer.load(path)
    data.write_bytes(b"")
    with pytest.raises(ModelError, match="truncated"):
        importer.load(path)
    data.unlink()
    with pytest.raises(ModelError, match="No such file"):
        importer.load(path)


def test_external_data_without_a_path_is_refused(tmp_path: Path) -> None:
    proto = onnx.load(external(tmp_path), load_external_data=False)
    with pytest.raises(ModelError, match="not loaded from a path"):
        importer.load(proto)


def test_initializers_that_are_also_inputs_are_weights() -> None:
    """As files before IR version 4 have them."""
    proto = weighted()
    proto.graph.input.append(models.declared("w", floats(64, 32)))
    assert [n.attr.name for n in importer.load(proto).inputs] == ["x"]


def test_outputs_may_be_inputs_and_weights() -> None:
    proto = models.model([], [models.declared("x", floats(2))], ["x", "w"], initializers={"w": floats(3)})
    graph = importer.load(proto)
    assert graph.outputs[0] == ("x", ir.input_("x", [2], f32))
    assert graph.results[1].op is ops.CONSTANT


def test_importing_luminal_does_not_import_onnx() -> None:
    code = "import sys, luminal, luminal.frontends.onnx; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
