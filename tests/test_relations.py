"""Relations between symbolic sizes: derived from the sizes that a model needs to be equal, stated, and enforced."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import luminal
from luminal.core import relations
from luminal.core import symbolic as sym
from luminal.core.errors import InputError, LuminalError, ShapeError, UnsupportedError
from luminal.core.relations import Equal, Stepped
from luminal.core.symbolic import Int, Var
from luminal.frontends.onnx import importer
from tests.onnx_models import declared, floats, node
from tests.onnx_models import model as spelled

H, W = Var("h", 1, 200), Var("w", 1, 200)
h, w = sym.expr(H), sym.expr(W)


def half(size: Int) -> Int:
    return sym.ceildiv(size, 2)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (h, w, Equal(W, h)),
        (h, 64, Equal(H, 64)),
        (2 * h, w, Equal(W, 2 * h)),
        (h + 1, w, Equal(W, h + 1)),
        (6 * h * w, 6 * w, Equal(H, 1)),
        (half(h) * 2, h, Stepped(H, 2)),
        (half(half(half(h))) * 2, half(half(h)), Stepped(H, 8)),
        (sym.floordiv(h - 3, 2) * 2 + 3, h, Stepped(H, 2, 1)),
        (sym.mod(h + 1, 4), 0, Stepped(H, 4, 3)),
        (sym.floordiv(h * w, 9) * 9, h * w, Stepped(H, 9)),
        (h, 300, None),
        (h, -1, None),
        (2 * h, 7, None),
        (h * h, w * w, None),
        (3, 4, None),
    ],
)
def test_what_makes_two_sizes_equal(a: Int, b: Int, expected: relations.Relation | None) -> None:
    assert relations.implied([(a, b)], [H, W]) == expected


def test_several_symbols_may_need_a_step() -> None:
    a, b = sym.floordiv(h, 2) * sym.floordiv(w, 3) * 6, h * w
    first = relations.implied([(a, b)], [H, W])
    assert first == Stepped(H, 2)
    by = {H: sym.expr(Var("h_2", 1, 100)) * 2}
    assert relations.implied([(sym.substitute(a, by), sym.substitute(b, by))], [Var("h_2", 1, 100), W]) == Stepped(W, 3)


SIZES = st.recursive(
    st.sampled_from([h, w, 1, 2, 5]),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, k: a * k, inner, st.integers(1, 4)),
        st.builds(sym.floordiv, inner, st.integers(2, 6)),
        st.builds(sym.ceildiv, inner, st.integers(2, 6)),
        st.builds(sym.mod, inner, st.integers(2, 6)),
    ),
    max_leaves=4,
)


@given(SIZES, SIZES)
def test_an_implied_relation_is_sufficient(a: Int, b: Int) -> None:
    """Under it, the sizes are equal, or fewer symbols and smaller steps are left to find; alone it may be enough."""
    found = relations.implied([(a, b)], [H, W])
    others = [(x, y) for x in range(1, 41) for y in range(1, 41)]
    if isinstance(found, Equal):
        for x, y in others:
            sizes = {"h": x, "w": y}
            if sizes[found.symbol.name] == sym.evaluate(found.value, sizes):
                assert sym.evaluate(a, sizes) == sym.evaluate(b, sizes)
    elif isinstance(found, Stepped) and not ({H, W} <= sym.variables(a - b)):
        for x, y in others:
            if {"h": x, "w": y}[found.symbol.name] % found.step == found.rest:
                assert sym.evaluate(a, {"h": x, "w": y}) == sym.evaluate(b, {"h": x, "w": y})


# ---- models ----------------------------------------------------------------------------------------------------------


def sized(name: str, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    return declared(name, floats(), shape)  # type: ignore[arg-type]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    arrays = {name: np.asarray(values) for name, values in (constants or {}).items()}
    return spelled(nodes, inputs, outputs, initializers=arrays, opset=18)


def run_both(proto: onnx.ModelProto, *shapes: Sequence[Sequence[int]]) -> luminal.Module:
    """The compiled model, which gives what onnxruntime does for inputs of these shapes."""
    module = luminal.compile(proto, name="related")
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for sizes in shapes:
        rng = np.random.default_rng(0)
        given = {
            value.name: rng.normal(size=shape).astype(np.float32)
            for value, shape in zip(proto.graph.input, sizes, strict=True)
        }
        expected = session.run(None, given)
        for wanted, (_, found) in zip(expected, module.run(given).items(), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    return module


@pytest.mark.parametrize("names", [(None, None), ("unk__330", "unk__331"), ("n", None)])
def test_batches_that_are_joined_are_one(names: tuple[str | None, str | None]) -> None:
    inputs = [sized(name, [size, 2]) for name, size in zip("ab", names, strict=True)]
    module = run_both(model([node("Concat", "a b", "y", axis=1)], inputs), [[5, 2], [5, 2]], [[1, 2], [1, 2]])
    with pytest.raises(ValueError, match=r'input "b", axis 0, has size 3, but ".*" is 5 \(from input "a", axis 0'):
        module.run({"a": np.ones((5, 2), np.float32), "b": np.ones((3, 2), np.float32)})


def test_sizes_are_one_in_products_sums_and_choices() -> None:
    inputs = [sized("a", ["n", "k"]), sized("b", ["l", "m"]), sized("c", ["p", "q"])]
    nodes = [node("MatMul", "a b", "ab"), node("Add", "ab c", "y")]
    module = run_both(model(nodes, inputs), [[2, 3], [3, 4], [2, 4]])
    assert module.manifest["relations"] == ["l = k (MatMul 'ab')", "p = n (Add 'y')", "q = m (Add 'y')"]


def test_the_state_of_a_recurrent_layer_has_the_batch_of_its_input() -> None:
    weights = {"W": np.ones((1, 4, 3), np.float32) / 8, "R": np.ones((1, 4, 4), np.float32) / 8}
    inputs = [sized("x", ["t", None, 3]), sized("first", [1, "m", 4])]
    proto = model([node("RNN", "x W R _ _ first", "y last", hidden_size=4)], inputs, weights)
    proto.graph.node[0].input[3] = proto.graph.node[0].input[4] = ""
    run_both(proto, [[2, 5, 3], [1, 5, 4]])


def test_one_size_is_a_multiple_of_another() -> None:
    inputs = [sized("a", ["n", 2]), sized("b", ["m", 2])]
    nodes = [node("Concat", "a a", "aa", axis=0), node("Add", "aa b", "y")]
    module = run_both(model(nodes, inputs), [[3, 2], [6, 2]])
    assert module.manifest["relations"] == ["m = 2*n (Add 'y')"]


@pytest.mark.parametrize("placeholder", ["?", "-1", "None", "*", "unknown"])
def test_a_placeholder_names_no_size(placeholder: str) -> None:
    inputs = [sized("x", [placeholder, placeholder])]
    run_both(model([node("Relu", "x", "y")], inputs), [[3, 7]])
    assert [dim.name for dim in importer.load(model([node("Relu", "x", "y")], inputs)).dims] == ["x_0", "x_1"]


def test_a_placeholder_that_dims_mention_is_a_name() -> None:
    proto = model([node("Relu", "x", "y")], [sized("x", ["unknown", "unknown"])])
    assert [dim.name for dim in importer.load(proto, dims={"unknown": (1, 4)}).dims] == ["unknown"]


def halving(levels: int, pads: Sequence[int] = (1, 1, 1, 1)) -> onnx.ModelProto:
    """An image halved so many times, and doubled as often, with the sum of both at each level."""
    nodes = []
    for level in range(levels):
        nodes.append(
            node("Conv", f"d{level} w", f"d{level + 1}", strides=[2, 2], pads=list(pads)),
        )
    for level in reversed(range(levels)):
        above = f"s{level + 1}" if level + 1 < levels else f"d{levels}"
        nodes.append(
            node(
                "Resize", f"{above} _ scales", f"u{level}", mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric",
            )
        )  # fmt: skip
        nodes[-1].input[1] = ""
        nodes.append(node("Add", f"d{level} u{level}", f"s{level}"))
    constants = {"w": np.ones((1, 1, 3, 3), np.float32) / 9, "scales": np.array([1, 1, 2, 2], np.float32)}
    return model(nodes, [sized("d0", [1, 1, "h", "w"])], constants, ["s0"])


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_an_image_that_is_halved_and_doubled_has_a_multiple_as_its_size(levels: int) -> None:
    step = 2**levels
    module = run_both(halving(levels), [[1, 1, 2 * step, 3 * step]])
    assert [text.partition(" (")[0] for text in module.manifest["relations"]] == [
        f"h is a multiple of {step}", f"w is a multiple of {step}"
    ]  # fmt: skip
    with pytest.raises(ValueError, match=f"axis 3, has size {step + 1}, expected {step}: the shape is .*{step}[*]w_"):
        module.run({"d0": np.ones((1, 1, step, step + 1), np.float32)})


def test_blocks_of_an_image_make_its_sizes_multiples() -> None:
    inputs = [sized("x", [1, 3, "h", "w"])]
    run_both(model([node("SpaceToDepth", "x", "y", blocksize=4)], inputs), [[1, 3, 8, 12]])
    halves = [node("Split", "x", "a b", axis=2, num_outputs=2), node("Mul", "a b", "y")]
    run_both(model(halves, inputs), [[1, 3, 8, 5]])


def test_a_size_that_a_file_froze_is_that() -> None:
    shape = np.array([-1, 9, 2, 2], np.int64)
    proto = model([node("Reshape", "x shape", "y")], [sized("x", ["batch", "seq", 4])], {"shape": shape})
    run_both(proto, [[3, 9, 4]])


def test_a_step_is_sized() -> None:
    proto = model([node("Relu", "x", "y")], [sized("x", ["n", "m"])])
    (n, m) = importer.load(proto, dims={"n": (32, 640, 32), "m": (5, 21, 8)}).inputs[0].shape
    assert (str(n), sym.lower(n), sym.upper(n)) == ("32*n_32", 32, 640)
    assert (str(m), sym.lower(m), sym.upper(m)) == ("8*m_8 + 5", 5, 21)


def test_a_declared_step_and_one_that_is_needed_hold_together() -> None:
    graph = importer.load(halving(2), dims={"h": (6, 60, 6)})
    assert str(graph.inputs[0].shape[2]) == "12*h_12"
    assert (graph.dims[0].lo, graph.dims[0].hi) == (1, 5)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"h": (9, 11)}, r"Add 's1'.*shapes do not broadcast.*; with h in 9\.\.11"),
        ({"h": (9, 11, 4), "w": (4, 8, 4)}, r"Add 's1'.*shapes do not broadcast"),
        ({"h": 9}, r"Add 's1'.*shapes do not broadcast"),
        ({"h": (5, 21, 4)}, r"Add 's1'.*shapes do not broadcast"),
        ({"h": (1, 9, 0)}, "a step of 1 or more"),
        ({"h": (1, 9, 1, 1)}, "expected a range"),
        ({"height": 8}, r"has no 'height'; the nearest to 'height' are 'h'|its symbolic sizes are 'h', 'w'"),
    ],
)
def test_dims_that_do_not_fit_are_refused(dims: dict[str, Any], message: str) -> None:
    with pytest.raises(LuminalError, match=message):
        importer.load(halving(2), dims=dims)


def test_ranges_without_a_common_size_are_refused() -> None:
    proto = model([node("Add", "a b", "y")], [sized("a", ["n"]), sized("b", ["m"])])
    with pytest.raises(ShapeError, match=r"shapes do not broadcast: .*; with n in 2\.\.4, m in 5\.\.8"):
        importer.load(proto, dims={"n": (2, 4), "m": (5, 8)})
    graph = importer.load(proto, dims={"n": (2, 6), "m": (5, 8)})
    assert [(dim.name, dim.lo, dim.hi) for dim in graph.dims] == [("n", 5, 6)]


def test_an_unknown_name_is_refused_before_anything_else() -> None:
    proto = model([node("Add", "a b", "y")], [sized("a", ["p2o.1", 3]), sized("b", ["p2o.1", 4])])
    with pytest.raises(InputError, match=r"no 'p2o_1'; the nearest to 'p2o_1' are 'p2o\.1'"):
        importer.load(proto, dims={"p2o_1": 8})


@pytest.mark.parametrize(
    ("shape", "fix"),
    [
        (
            [3, 4, 7],
            r"of a\.b or c d, fix it: --dim a\.b=SIZE or --dim 'c d'=SIZE, or dims={'a\.b': SIZE} or dims={'c d'",
        ),
        ([0, 4, 7], r"size of c d, fix it: --dim 'c d'=SIZE, or dims={'c d': SIZE}"),
        ([5, 0, 7], r"size of a\.b, fix it: --dim a\.b=SIZE, or dims={'a\.b': SIZE}"),
    ],
)
def test_sizes_to_fix_have_the_names_of_the_file(shape: list[int], fix: str) -> None:
    """Of those that the shape in the file does not keep; in expressions they are identifiers."""
    weights = {"k": np.array(shape)}
    proto = model([node("Reshape", "x k", "y")], [sized("x", ["a.b", "c d", 6])], weights)
    with pytest.raises(ShapeError, match=fix):
        importer.load(proto)


@pytest.mark.parametrize("op", ["Trilu", "CumSum"])
def test_a_number_that_has_to_be_fixed_has_the_name_of_the_file(op: str) -> None:
    nodes = [node("Shape", "x", "s", start=0, end=1), node(op, "x s", "y")]
    with pytest.raises(UnsupportedError, match=r"it is a_b: fix it with dims={'a\.b': SIZE}"):
        importer.load(model(nodes, [sized("x", ["a.b", 3])]))


def test_all_shapes_that_do_not_fit_are_listed() -> None:
    inputs = [sized("a", [2, 3]), sized("b", [2, 4])]
    nodes = [node("Add", "a b", "x"), node("MatMul", "a b", "y"), node("Relu", "a", "z"), node("Exp", "x", "t")]
    proto = model(nodes, inputs)
    places = luminal.check(proto)
    assert [(place.op, place.node) for place in places] == [("Add", "x"), ("MatMul", "y")]
    assert places[0].advice == "shapes do not broadcast: [2, 3], [2, 4]"
    with pytest.raises(ShapeError, match=r"(?s)Add 'x'.*MatMul 'y'"):
        luminal.read(proto)


def test_relations_are_stated_in_the_header(tmp_path: Path) -> None:
    luminal.compile(halving(1), name="halves").export(tmp_path / "out", python_module=False)
    header = (tmp_path / "out" / "halves.h").read_text()
    assert "The model needs it: h is a multiple of 2 (Add 's0')." in header
