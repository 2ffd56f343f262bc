"""Outputs that are maps: what converters of classifiers write, against onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import luminal
from luminal import structure
from luminal.comparison.references import OnnxRuntime
from luminal.core.errors import LuminalError, UnsupportedError
from luminal.frontends.onnx import importer
from tests import onnx_models as models
from tests.onnx_models import Array, declared, floats, node

ML = {"ai.onnx.ml": 3}
NUMBERS, WORDS = {"classlabels_int64s": [7, -3, 40]}, {"classlabels_strings": ["red", "b", "rosé"]}


def zip_map(source: str, result: str, **keys: Any) -> onnx.NodeProto:
    return node("ZipMap", source, result, domain="ai.onnx.ml", **keys)


def classifier(**keys: Any) -> tuple[onnx.ModelProto, Array]:
    """A linear classifier with the labels of its samples, and maps to their probabilities."""
    attributes = {"classlabels_ints" if name.endswith("int64s") else name: value for name, value in keys.items()}
    linear = node(
        "LinearClassifier", "x", "label scores", domain="ai.onnx.ml", post_transform="SOFTMAX",
        coefficients=floats(12, seed=1).tolist(), intercepts=floats(3, seed=2).tolist(), **attributes,
    )  # fmt: skip
    x = floats(5, 4)
    nodes = [linear, zip_map("scores", "maps", **keys)]
    return models.model(nodes, [declared("x", x, ["n", 4])], ["label", "maps"], domains=ML), x


def assert_maps(found: list[dict[Any, float]], wanted: list[dict[Any, float]]) -> None:
    """As many maps, with the same keys and values as near as floats are."""
    assert [{*row} for row in found] == [{*row} for row in wanted]
    for row, other in zip(found, wanted, strict=True):
        assert row == pytest.approx(other, rel=1e-6)
        assert all(type(value) is float for value in row.values())


@pytest.mark.parametrize("keys", [NUMBERS, WORDS])
def test_a_call_gives_the_maps_that_onnxruntime_gives(keys: dict[str, Any], tmp_path: Path) -> None:
    proto, x = classifier(**keys)
    module = luminal.compile(proto, dims={"n": (0, 9)}, name="maps")
    labels, wanted = models.by_onnxruntime(proto, {"x": x})
    for loaded in (module, luminal.load(module.export(tmp_path, python_module=False))):
        label, maps = loaded(x)
        assert label.tolist() == labels.tolist()
        assert_maps(maps, wanted)
        assert loaded(x[:0])[1] == []
    table = module.run({"x": x})["maps"]
    order = next(iter(keys.values()))
    assert table.dtype == np.float32
    np.testing.assert_allclose(table, [[row[key] for key in order] for row in wanted], rtol=1e-6)
    (entry,) = module.manifest["entries"]
    assert entry["structure"]["outputs"] == {"tuple": [{"leaf": 0}, {"leaf": 1, "maps": order}]}
    assert [output["name"] for output in entry["outputs"]] == ["label", "maps"]


@pytest.mark.parametrize("keys", [NUMBERS, WORDS])
def test_maps_are_compared_with_those_of_onnxruntime(keys: dict[str, Any], tmp_path: Path) -> None:
    proto, _ = classifier(**keys)
    report = luminal.diff(proto, save=tmp_path)
    assert report.ok and report.reference == "onnxruntime"
    # Columns under other keys are another result.
    wrong, _ = classifier(**keys)
    labels = wrong.graph.node[1].attribute[0]
    for values in (labels.ints, labels.strings):
        values[:] = list(values)[::-1]
    graph = importer.load(wrong)
    given = {"x": floats(5, 4)}
    reference = OnnxRuntime(proto, keys=structure.keys(graph.structure, ["label", "maps"]))
    found, straight = reference.run(given)["maps"], OnnxRuntime(proto, keys={"maps": next(iter(keys.values()))})
    np.testing.assert_array_equal(found, straight.run(given)["maps"][:, ::-1])


def test_one_vector_and_several_outputs_are_maps() -> None:
    x, y = floats(3), floats(2, 3, seed=1)
    nodes = [zip_map("x", "one", **NUMBERS), zip_map("y", "two", **WORDS), node("Identity", "two", "three")]
    proto = models.model(nodes, [declared("x", x), declared("y", y)], ["one", "two", "three"], domains=ML)
    found = luminal.compile(proto)(x, y)
    rows = [dict(zip(WORDS["classlabels_strings"], row, strict=True)) for row in y.tolist()]
    assert found == ([dict(zip(NUMBERS["classlabels_int64s"], x.tolist(), strict=True))], rows, rows)
    alone = models.model(nodes[:1], [declared("x", x)], ["one"], domains=ML)
    assert luminal.compile(alone)(x) == found[0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "in one of classlabels_int64s and classlabels_strings"),
        ({**NUMBERS, **WORDS}, "in one of classlabels_int64s and classlabels_strings"),
        ({"classlabels_int64s": [1, 2, 1]}, "expected keys of maps that differ"),
        ({"classlabels_strings": ["a", "b"]}, r"a column for each of 2 keys of maps, found \[2, 3\]"),
    ],
)
def test_maps_that_are_refused(keys: dict[str, Any], message: str) -> None:
    x = floats(2, 3)
    proto = models.model([zip_map("x", "y", **keys)], [declared("x", x)], ["y"], domains=ML)
    with pytest.raises(LuminalError, match=message):
        importer.load(proto)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("SequenceLength", {}),
        ("Relu", {}),
        ("CastMap", {"domain": "ai.onnx.ml"}),
        ("DictVectorizer", {"domain": "ai.onnx.ml", "int64_vocabulary": [1]}),
    ],
)
def test_operators_do_not_read_maps(op: str, attributes: dict[str, Any]) -> None:
    x = floats(2, 3)
    nodes = [zip_map("x", "maps", **NUMBERS), node(op, "maps", "y", **attributes)]
    with pytest.raises(UnsupportedError, match="maps are supported as outputs of a model"):
        importer.load(models.model(nodes, [declared("x", x)], ["y"], domains=ML))


def test_an_input_that_is_a_map_is_refused() -> None:
    kind = helper.make_map_type_proto(
        onnx.TensorProto.STRING, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    vectorize = node("DictVectorizer", "x", "y", domain="ai.onnx.ml", string_vocabulary=["a", "b"])
    proto = models.model([vectorize], [helper.make_value_info("x", kind)], ["y"], domains=ML)
    with pytest.raises(UnsupportedError, match=r"declared as map_type.*a column for each key"):
        importer.load(proto)


def test_maps_of_branches() -> None:
    x = floats(2, 3)

    def choosing(*keys: dict[str, Any], **known: Array) -> onnx.ModelProto:
        branches = [
            helper.make_graph([zip_map(source, name, **k)], name, [], [onnx.ValueInfoProto(name=name)])
            for source, name, k in zip("xw", ("yes", "no"), keys, strict=True)
        ]
        choose = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
        inputs = [declared("x", x), declared("w", x), declared("c", np.array(True))]
        return models.model([choose], inputs[: 3 - len(known)], ["y"], initializers=known, domains=ML)

    graph = importer.load(choosing(NUMBERS, NUMBERS))
    assert graph.structure["outputs"] == {"leaf": 0, "maps": NUMBERS["classlabels_int64s"]}
    for condition, wanted in ((True, x), (False, -x)):
        (found,) = models.run(graph, {"x": x, "w": -x, "c": np.array(condition)})
        np.testing.assert_array_equal(found, wanted)
    known = importer.load(choosing(NUMBERS, WORDS, c=np.array(False)))
    assert known.structure["outputs"] == {"leaf": 0, "maps": WORDS["classlabels_strings"]}
    with pytest.raises(LuminalError, match="input 0 decides"):
        importer.load(choosing(NUMBERS, WORDS))
