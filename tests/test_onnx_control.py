"""ONNX control flow: what is known folds away, what is not becomes branches, scans and loops, as onnxruntime has it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import luminal
from luminal.core import ops, traverse
from luminal.core import target as targets
from luminal.core.errors import DTypeError, InputError, LuminalError, ModelError, ShapeError, UnsupportedError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.frontends.onnx import importer
from luminal.module import Module
from luminal.runtime.loader import LibraryError
from tests import onnx_models as models
from tests import onnx_suite
from tests.onnx_models import floats

Array = np.ndarray[Any, Any]


def parsed(text: str, opset: int = 17, version: int = 8) -> onnx.ModelProto:
    """``text`` is a graph in ONNX's own notation."""
    return onnx.parser.parse_model(f'<ir_version: {version}, opset_import: ["" : {opset}]> {text}')


def operations(graph: Graph) -> list[ops.Op]:
    return [node.op for node in traverse.topological(graph.results)]


def agrees(proto: onnx.ModelProto, *calls: Mapping[str, Array], **options: Any) -> Graph:
    """The graph, which gives on each of the calls what onnxruntime does."""
    graph = importer.load(proto, **options)
    named = {node.attr.name for node in graph.inputs}
    for inputs in calls:
        given = {name: array for name, array in inputs.items() if name in named}
        models.assert_close(models.run(graph, given), models.by_onnxruntime(proto, inputs))
    return graph


def compiled(graph: Graph, *calls: Mapping[str, Array]) -> None:
    """The library gives what the interpreter does, bit for bit where no sum is reordered."""
    module = luminal.compile(graph, target="host")
    for inputs in calls:
        models.assert_close(list(module.run(dict(inputs)).values()), models.run(graph, inputs))


# ---- If --------------------------------------------------------------------------------------------------------------

CHOOSES = """
    test (float[n, 3] x, bool c) => (float[n, 3] y, float[n] z) {
      one = Constant <value: tensor = int64[1] {1}> ()  w = Constant <value: tensor = float[3] {1, 2, 3}> ()
      y, z = If (c) <
        then_branch: graph = yes () => (float[n, 3] a, float[n] b)
          { a = Add (x, w)  b = ReduceSum <keepdims: int = 0> (a, one) },
        else_branch: graph = no () => (float[n, 3] a, float[n] b)
          { a = Mul (x, x)  b = ReduceMax <keepdims: int = 0, axes: ints = [1]> (x) }
      >
    }
"""


def test_a_branch_is_taken_at_run_time() -> None:
    calls = [{"x": floats(4, 3), "c": np.array(c)} for c in (True, False)]
    graph = agrees(parsed(CHOOSES), *calls)
    assert ops.COND in operations(graph)
    compiled(graph, *calls)


def test_a_known_condition_leaves_one_branch() -> None:
    graph = importer.load(parsed(CHOOSES), constants={"c": np.array(False)})
    assert ops.COND not in operations(graph) and ops.ADD not in operations(graph)


def chosen(then: str, other: str) -> onnx.ModelProto:
    return parsed(f"""
        test (float[4] x, bool c) => (float[n] y) {{
          one = Constant <value: tensor = int64[1] {{1}}> ()
          two = Constant <value: tensor = int64[1] {{2}}> ()
          y = If (c) <then_branch: graph = yes () => (float[n] a) {{ {then} }},
                      else_branch: graph = no () => (float[n] a) {{ {other} }}>
        }}
    """)


def test_branches_of_other_ranks_and_types_are_refused() -> None:
    with pytest.raises(
        ShapeError, match=r"^If 'y'\(bool\[\]\): .* \[1, 4\] where the condition holds, else \[4\]; .*fix"
    ):
        importer.load(chosen("z = Sub (one, one) a = Unsqueeze (x, z)", "a = Neg (x)"))
    with pytest.raises(DTypeError, match=r"If 'y'.* is float32 or int64"):
        importer.load(chosen("a = Neg (x)", "a = Cast <to: int = 7> (x)"))
    with pytest.raises(ModelError, match=r"^If 'y'\(bool\[\]\): the graph 'no' takes 1 inputs, but 0 are given"):
        proto = chosen("a = Neg (x)", "a = Neg (x)")
        proto.graph.node[2].attribute[1].g.input.add(name="more")
        importer.load(proto)


# Results of the two branches whose sizes differ, read by what follows and given as outputs. The inputs are c, d (bool),
# x float[n, 3] and w float[m, 3]; k_ are int64[1].
UNLIKE = {
    "sizes of inputs": ("(float[k, 3] y, float[k] z, float[3, 3] p, float[l, 3] q, float[1, 3] r, float[k] t)", """
        y, z = If (c) <
          then_branch: graph = yes () => (float[n, 3] a, float[n] b)
            { a = Neg (x)  b = ReduceSum <keepdims: int = 0> (x, k1) },
          else_branch: graph = no () => (float[m, 3] a, float[m] b)
            { a = Mul (w, w)  b = ReduceMax <keepdims: int = 0, axes: ints = [1]> (w) }
        >
        u = Transpose <perm: ints = [1, 0]> (y)  p = MatMul (u, y)  zz = Unsqueeze (z, k1)  v = Add (y, zz)
        q = Concat <axis: int = 0> (x, v, w)  r = ReduceSum (v, k0)
        t = If (c) <then_branch: graph = more () => (float[n] a) { a = Add (z, z) },
                    else_branch: graph = less () => (float[m] a)
                      { a = ReduceMax <keepdims: int = 0, axes: ints = [1]> (w) }>
    """),
    "numbers, and none at all": ("(float[k] y, bool[k] b, float s, float[l] t, float[1] u, float e)", """
        f = Reshape (x, km)  g = Slice (f, k0, k3)  h = Slice (f, k0, k1)
        y, b, s, n = If (c) <
          then_branch: graph = yes () => (float[1] a, bool[1] p, float q, float[0] i)
            { a = Neg (h)  p = Less (h, h)  q = Squeeze (h)  i = Slice (f, k0, k0) },
          else_branch: graph = no () => (float[3] a, bool[3] p, float q, float[3] i)
            { a = Neg (g)  p = Less (g, a)  q = ReduceSum <keepdims: int = 0> (g)  i = Exp (g) }
        >
        t = Concat <axis: int = 0> (y, n, y)  u = ReduceSum (n)  e = ReduceProd <keepdims: int = 0> (n)
    """),
    "sizes that data decides in a branch": ("(int64[2, k] y, int64[l] v, float[j, 3] z)", """
        y, v, z = If (c) <
          then_branch: graph = yes () => (int64[2, i] a, int64[i] b, float[j, 3] g)
            { zero = Sub (k1, k1)  f = Cast <to: int = 1> (zero)  h = Greater (x, f)  a = NonZero (h)
              e = Slice (a, k0, k1)  b = Squeeze (e, k0)  g = Gather (x, b) },
          else_branch: graph = no () => (int64[2, i] a, int64[i] b, float[j, 3] g)
            { a = NonZero (w)  e = Slice (a, k1, k2)  b = Squeeze (e, k0)  g = Concat <axis: int = 0> (x, w) }
        >
    """),
    "branches in branches": ("(float[i, j] y, float[i] s)", """
        y = If (c) <
          then_branch: graph = yes () => (float[i, j] a) {
            f = If (d) <then_branch: graph = yy () => (float[i, 3] b) { b = Neg (x) },
                        else_branch: graph = yn () => (float[i, 3] b) { b = Concat <axis: int = 0> (x, w, x) }>
            a = Tanh (f)
          },
          else_branch: graph = no () => (float[i, j] a) {
            a = If (d) <then_branch: graph = ny () => (float[f, g] b) { b = Transpose <perm: ints = [1, 0]> (w) },
                        else_branch: graph = nn () => (float[h, 3] b) { b = Slice (w, k0, k1) }>
          }
        >
        s = ReduceSum <keepdims: int = 0> (y, k1)
    """),
    "branches in loops": ("(float[1, 3] last, float[r, 1, 3] all)", """
        t = Constant <value: tensor = int64 {3}> ()  first = ReduceSum (x, k0)
        last, all = Loop (t, c, first) <
          body: graph = step (int64 i, bool go, float[1, 3] a) => (bool on, float[1, 3] b, float[1, 3] o) {
            one = Constant <value: tensor = int64 {1}> ()  odd = Mod (i, k2)  is = Equal (odd, k1)  on = Identity (go)
            z = If (is) <
              then_branch: graph = yes () => (float[j, 3] e) { e = Add (x, a) },
              else_branch: graph = no () => (float[j, 3] e)
                { v = Add (w, a)  s = ReduceSum <keepdims: int = 0> (v, k1)  f = Sub (s, s)  p = Greater (s, f)
                  e = Compress <axis: int = 0> (v, p) }
            >
            o = ReduceSum (z, k0)  b = Mul (o, a)
          }
        >
    """),
}  # fmt: skip


def unlike(name: str) -> onnx.ModelProto:
    outputs, text = UNLIKE[name]
    numbers = "  ".join(
        f"k{'m' if k < 0 else k} = Constant <value: tensor = int64[1] {{{k}}}> ()" for k in (-1, 0, 1, 2, 3)
    )
    return parsed(f"test (float[n, 3] x, float[m, 3] w, bool c, bool d) => {outputs} {{ {numbers} {text} }}")


UNLIKE_SIZES = {"n": (1, 8), "m": (1, 8)}


def unlike_calls(seed: int = 0) -> list[dict[str, Array]]:
    sizes = ((4, 2), (1, 5), (8, 8))
    return [
        {"x": floats(n, 3, seed=seed), "w": floats(m, 3, seed=seed + 1), "c": np.array(c), "d": np.array(d)}
        for c in (True, False) for d in (True, False) for n, m in sizes
    ]  # fmt: skip


@pytest.mark.parametrize("name", UNLIKE)
def test_branches_give_results_of_other_sizes(name: str) -> None:
    graph = agrees(unlike(name), *unlike_calls(), dims=UNLIKE_SIZES)
    assert ops.COND in operations(graph) or ops.COND in {node.op for node in traverse.everything(graph.results)}


def test_branches_of_other_sizes_compiled() -> None:
    graphs = {
        name.replace(" ", "_").replace(",", ""): importer.load(unlike(name), dims=UNLIKE_SIZES) for name in UNLIKE
    }
    module = luminal.compile(graphs, name="unlike", target="host")
    for name, graph in graphs.items():
        named = {node.attr.name for node in graph.inputs}
        for inputs in unlike_calls(seed=7):
            given = {key: array for key, array in inputs.items() if key in named}
            models.assert_close(list(module[name].run(given).values()), models.run(graph, given))


def choosing_sequences(then: str, other: str) -> onnx.ModelProto:
    return parsed(f"""
        test (float[4] x, bool c, int64 k) => (int64 n, float[4] y) {{
          s = If (c) <then_branch: graph = yes () => (seq(float[4]) a) {{ {then} }},
                      else_branch: graph = no () => (seq(float[4]) a) {{ {other} }}>
          n = SequenceLength (s)  y = SequenceAt (s, k)
        }}
    """)


def test_branches_give_sequences_of_other_lengths() -> None:
    proto = choosing_sequences("a = SequenceConstruct (x)", "z = Neg (x)  a = SequenceConstruct (x, z, x)")
    calls = [
        {"x": floats(4), "c": np.array(c), "k": np.array(k)}
        for c, k in ((True, 0), (True, -1), (False, 1), (False, -2))
    ]
    graph = agrees(proto, *calls)
    assert [(size.name, size.lo, size.hi) for size in graph.measured] == [("s_size", 1, 3)]
    compiled(graph, *calls)
    with pytest.raises(IndexError, match="index 1 is out of range for axis 0 of extent 1"):
        models.run(graph, {"x": floats(4), "c": np.array(True), "k": np.array(1)})


def test_the_condition_must_be_known_where_it_decides_which_tensors_there_are() -> None:
    proto = choosing_sequences(
        "a = SequenceConstruct (x)", "z = Concat <axis: int = 0> (x, x) a = SequenceConstruct (x, z)"
    )
    fixed = {"c": np.array(False), "k": np.array(0)}
    with pytest.raises(
        UnsupportedError, match=r"If 's'.*one shape, found sequence\(float32\[4\], float32\[8\]\);.*constants"
    ):
        importer.load(proto)
    count, _ = models.run(importer.load(proto, constants=fixed), {"x": floats(4)})
    assert count == 2
    other = choosing_sequences("a = SequenceConstruct (x)", "a = SequenceConstruct (x)")
    other.graph.node[0].attribute[1].g.node[0].op_type = "Neg"
    with pytest.raises(InputError, match=r"If 's'.*depends on the data of 'c'"):
        importer.load(other)


def test_what_a_branch_cannot_compute_is_listed() -> None:
    graph = parsed("""
        test (float[4] x, bool c) => (float[4] y, float[4] z) {
          y = If (c) <then_branch: graph = yes () => (float[4] a) { a = com.example.Mystery (x) },
                      else_branch: graph = no () => (float[4] a) { a = Neg (x) }>
          z = Relu (y)
        }
    """)
    graph.opset_import.add(domain="com.example", version=1)
    with pytest.raises(UnsupportedError) as caught:
        importer.load(graph)
    assert [(place.op, place.node) for place in caught.value.places] == [("com.example.Mystery", "y/a")]


# ---- Loop ------------------------------------------------------------------------------------------------------------


def looping(body: str, outputs: str = "(float[2] last, float[m, 2] all)") -> onnx.ModelProto:
    """``body`` computes the condition ``on``, the next value ``b`` of ``a``, and ``p``, which is put out if at all."""
    put_out = ", float[2] p" if "all" in outputs else ""
    return parsed(f"""
        test (float[2] x, float[n, 2] w, int64 trips, bool keep) => {outputs} {{
          {"last, all" if "all" in outputs else "last"} = Loop (trips, keep, x) <
            body: graph = step (int64 i, bool go, float[2] a) => (bool on, float[2] b{put_out}) {{ {body} }}
          >
        }}
    """)


PRODUCTS = "on = Identity (go)  row = Gather (w, i)  s = Mul (a, row)  b = Add (s, x)  p = Neg (a)"


def loop_inputs(trips: int = 3, keep: bool = True, rows: int = 5) -> dict[str, Array]:
    return {"x": floats(2), "w": floats(rows, 2, seed=1), "trips": np.array(trips), "keep": np.array(keep)}


def test_a_known_number_of_iterations_is_a_scan() -> None:
    inputs = loop_inputs()
    fixed = {"trips": inputs["trips"], "keep": inputs["keep"]}
    graph = agrees(looping(PRODUCTS), inputs, constants=fixed)
    assert ops.SCAN in operations(graph) and ops.WHILE not in operations(graph)
    compiled(graph, {name: inputs[name] for name in ("x", "w")})


def test_a_symbolic_number_of_iterations_is_a_scan() -> None:
    proto = looping(PRODUCTS)
    proto.graph.node.insert(0, onnx.helper.make_node("Shape", ["w"], ["rows"], start=0, end=1))
    proto.graph.node[1].input[0], proto.graph.node[1].input[1] = "rows", ""
    del proto.graph.input[2:]
    calls = [{name: loop_inputs(rows=rows)[name] for name in ("x", "w")} for rows in (1, 4)]
    graph = agrees(proto, *calls, dims={"n": (1, 8)})
    assert ops.SCAN in operations(graph)
    compiled(graph, *calls)


def test_no_iterations_leave_the_first_value() -> None:
    inputs = loop_inputs()
    for trips, keep in ((0, True), (-2, True), (3, False)):
        graph = importer.load(looping(PRODUCTS), constants={"trips": np.array(trips), "keep": np.array(keep)})
        last, put_out = models.run(graph, {name: inputs[name] for name in ("x", "w")})
        np.testing.assert_array_equal(last, inputs["x"])
        assert put_out.shape == (0, 2)


HALVES = """
    half = Constant <value: tensor = float {0.5}> ()  b = Mul (a, half)  p = Neg (b)
    t = ReduceMax <keepdims: int = 0> (b)  limit = Constant <value: tensor = float {0.1}> ()  on = Greater (t, limit)
"""


def test_iterations_that_data_decides_are_a_while_loop() -> None:
    proto = looping(HALVES, outputs="(float[2] last)")
    calls = [
        {**loop_inputs(trips, keep), "x": np.float32([3, 1])} for trips, keep in ((9, True), (2, True), (9, False))
    ]
    graph = agrees(proto, *calls)
    assert ops.WHILE in operations(graph)
    named = {node.attr.name for node in graph.inputs}
    compiled(graph, *({name: array for name, array in call.items() if name in named} for call in calls))


def test_outputs_that_iterations_put_out_are_as_many_as_the_run_makes() -> None:
    proto = looping(HALVES)
    calls = [{**loop_inputs(20, keep), "x": np.float32([x, 1])} for x, keep in ((3, True), (0.01, True), (9, False))]
    graph = agrees(proto, *calls, constants={"trips": np.array(20)})
    assert [dim.hi for dim in graph.measured] == [20]
    compiled(graph, *({name: call[name] for name in ("x", "w", "keep")} for call in calls))


def test_the_largest_number_of_iterations_is_no_limit() -> None:
    """So exporters write while loops."""
    x = np.float32([3, 1])
    fixed = {"trips": np.array((1 << 63) - 1), "keep": np.array(True)}
    graph = importer.load(looping(HALVES, outputs="(float[2] last)"), constants=fixed)
    assert ops.WHILE in operations(graph)
    np.testing.assert_array_equal(models.run(graph, {"x": x, "w": floats(2, 2)})[0], x / 32)


def test_loops_without_a_limit_inside_each_other() -> None:
    """What the inner one begins with, the outer one carries on."""
    proto = parsed("""
        test (float[2] x) => (float[2] last) {
          trips = Constant <value: tensor = int64 {9223372036854775807}> ()
          yes = Constant <value: tensor = bool {1}> ()  one = Constant <value: tensor = float {1}> ()
          last = Loop (trips, yes, x) <
            body: graph = outer (int64 i, bool go, float[2] a) => (bool more, float[2] b) {
              c = Loop (trips, yes, a) <
                body: graph = inner (int64 j, bool on, float[2] d) => (bool again, float[2] e)
                  { e = Add (d, one)  s = ReduceMax <keepdims: int = 0> (e)  r = Mod <fmod: int = 1> (s, seven)
                    again = Greater (r, one) }
              >
              b = Add (c, one)  m = ReduceMax <keepdims: int = 0> (b)  more = Less (m, many)
            }
          >
        }
    """)
    for name, number in {"seven": 7.0, "many": 100.0}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(number, np.float32), name))
    calls = [{"x": np.float32([0, 3])}, {"x": np.float32([98, 2])}]
    compiled(agrees(proto, *calls), *calls)
    endless = onnx.ModelProto.FromString(proto.SerializeToString())
    inner = endless.graph.node[3].attribute[0].g.node[0].attribute[0].g
    inner.output[0].name = inner.input[1].name
    compile_graph(importer.load(endless), targets.parse("avx2"))  # a condition that is always true is carried on, too


def test_the_most_iterations_are_declared_or_follow_from_a_minimum() -> None:
    with pytest.raises(InputError, match=r"^Loop 'last'.* dims=\{'all_count': \(0, MOST\)\}"):
        importer.load(looping(PRODUCTS))
    calls = [loop_inputs(trips) for trips in (4, 0, -1)]
    graph = agrees(looping(PRODUCTS), *calls, dims={"all_count": (0, 4)})
    with pytest.raises(InputError, match="more rounds than there is room for"):
        models.run(graph, loop_inputs(5))
    bounded = looping(PRODUCTS)
    bounded.graph.node.insert(0, onnx.parser.parse_node("least = Min (trips, most)"))
    bounded.graph.node.insert(0, onnx.parser.parse_node("most = Constant <value: tensor = int64 {4}> ()"))
    bounded.graph.node[2].input[0] = "least"
    graph = agrees(bounded, *calls, loop_inputs(9))
    assert [dim.hi for dim in graph.measured] == [4]
    with pytest.raises(InputError, match=r"dims: the model has no 'all'; the nearest to 'all' are 'all_count'; .* 'n'"):
        importer.load(bounded, dims={"all": 9})


def test_few_iterations_may_change_shapes() -> None:
    """A body that is no loop is repeated: the sizes grow, and the condition is known each time."""
    grows = parsed("""
        test (float[1] x, int64 trips) => (float[m] last) {
          yes = Constant <value: tensor = bool {1}> ()
          last = Loop (trips, yes, x) <
            body: graph = step (int64 i, bool go, float[k] a) => (bool on, float[j] b) {
              two = Constant <value: tensor = int64 {2}> ()  on = Less (i, two)
              n = Neg (a)  b = Concat <axis: int = 0> (a, n)
            }
          >
        }
    """)
    graph = agrees(grows, {"x": floats(1), "trips": np.array(9)}, constants={"trips": np.array(9)})
    assert graph.results[0].shape == (8,)
    with pytest.raises(ShapeError, match=r"^Loop 'last'\(int64\[\], bool\[\], float32\[1\]\): .* \[1\] becomes \[2\]"):
        importer.load(grows)
    with pytest.raises(ShapeError, match=r"\[1\] becomes \[2\]"):
        importer.load(grows, constants={"trips": np.array(1000)})


def test_a_carry_of_another_type_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"^Loop 'last'.* carry of float32 becomes int64"):
        importer.load(looping("on = Identity (go)  b = Cast <to: int = 7> (a)  p = Neg (a)", "(float[2] last)"))


def test_a_body_of_another_arity_is_refused() -> None:
    proto = looping(PRODUCTS, "(float[2] last)")
    body = proto.graph.node[0].attribute[0].g
    body.input.add(name="more")
    with pytest.raises(ModelError, match="the graph 'step' takes 4 inputs, but 3 are given"):
        importer.load(proto)
    del body.output[1:]
    with pytest.raises(ModelError, match="the body gives 1 values, expected at least 2"):
        importer.load(proto)


def test_loops_in_loops_end_in_an_error() -> None:
    """Bodies that change shapes, one in the other, would be repeated 64 to the eighth times."""
    text, name = "b8 = Concat <axis: int = 0> (a8, a8)  on8 = Identity (go8)", "b8"
    for level in range(8, 0, -1):
        k = level - 1
        text = f"""
            on{k} = Identity (go{k})
            b{k} = Loop (trips, on{k}, a{k}) <
              body: graph = step{level} (int64 i{level}, bool go{level}, float[s{level}] a{level})
                => (bool on{level}, float[t{level}] {name}) {{ {text} }}
            >
        """
        name = f"b{k}"
    proto = parsed(
        f"test (float[2] a0, bool go0) => (float[m] b0) {{ trips = Constant <value: tensor = int64 {{3}}> () {text} }}"
    )
    with pytest.raises(LuminalError):
        importer.load(proto, constants={"go0": np.array(True)})


def test_sizes_that_data_decides_inside_a_body() -> None:
    """Rows at which a carry is positive are summed, in a loop inside a loop, which puts out as many as there are."""
    proto = parsed("""
        test (float[3] x, float[3, 2] w) => (float[2] last) {
          n = Constant <value: tensor = int64 {4}> ()  yes = Constant <value: tensor = bool {1}> ()
          zero = Constant <value: tensor = float {0}> ()  zero_axis = Constant <value: tensor = int64[1] {0}> ()
          first = ReduceSum <keepdims: int = 0> (w, zero_axis)
          last = Loop (n, yes, first) <
            body: graph = outer (int64 i, bool go, float[2] a) => (bool on, float[2] b) {
              on = Identity (go)  f = Cast <to: int = 1> (i)  shifted = Sub (x, f)  p = Greater (shifted, zero)
              at = NonZero (p)  flat = Squeeze (at, zero_axis)  rows = Gather (w, flat)
              s = ReduceSum <keepdims: int = 0> (rows, zero_axis)
              count = Size (flat)
              again, all = Loop (count, yes, s) <
                body: graph = inner (int64 j, bool k, float[2] c) => (bool l, float[2] d, float[2] e) {
                  l = Identity (k)  d = Add (c, s)  e = Mul (c, c)
                }
              >
              t = ReduceSum <keepdims: int = 0> (all, zero_axis)  u = Add (a, again)  b = Add (u, t)
            }
          >
        }
    """)
    calls = [{"x": np.float32(x), "w": floats(3, 2, seed=1)} for x in ([3, 0.5, 1.5], [-1, -2, 0], [9, 9, 9])]
    graph = agrees(proto, *calls)
    assert not graph.measured and traverse.sizes_inside(graph.results)
    compiled(graph, *calls)


# ---- sequences whose length a run decides ----------------------------------------------------------------------------

# Over x float[n, 2], w float[4, 2], trips, k (int64) and split int64[3].
GROW = "on = Identity (go)  row = Gather (x, zero)  f = Cast <to: int = 1> (i)  p = Add (row, f)"
SEQUENCES = {
    "a loop for as long as data says": ("(int64 l, float[a, 2] y, float[b] z, float[2] v, float[2] t)", f"""
        e = SequenceEmpty ()
        s, t = Loop (trips, , e, one) <body: graph = step (int64 i, bool go, seq(float[2]) u, float[2] q)
          => (bool on, seq(float[2]) r, float[2] h) {{ {GROW}  h = Add (q, p)  r = SequenceInsert (u, h) }}>
        l = SequenceLength (s)  v = SequenceAt (s, k)
        y = ConcatFromSequence <axis: int = 0, new_axis: int = 1> (s)  z = ConcatFromSequence <axis: int = -1> (s)
    """),
    "a symbolic number of rounds": ("(int64 l, float[2, a] y, float[m, 2] all)", f"""
        n = Size (x)  e = SequenceConstruct (one, one)
        s, all = Loop (n, , e) <body: graph = step (int64 i, bool go, seq(float[2]) u)
          => (bool on, seq(float[2]) r, float[2] h)
          {{ {GROW}  h = Neg (p)  g = SequenceInsert (u, p)  r = SequenceInsert (g, h) }}>
        l = SequenceLength (s)  y = ConcatFromSequence <axis: int = 1, new_axis: int = 1> (s)
    """),
    "a known number of rounds": ("(float[a] y, float[2] v)", f"""
        three = Constant <value: tensor = int64 {{3}}> ()  e = SequenceEmpty ()
        s = Loop (three, , e) <body: graph = step (int64 i, bool go, seq(float[2]) u) => (bool on, seq(float[2]) r)
          {{ {GROW}  r = SequenceInsert (u, p) }}>
        y = ConcatFromSequence <axis: int = 0> (s)  last = Constant <value: tensor = int64 {{-1}}> ()
        v = SequenceAt (s, last)
    """),
    "loops in loops": ("(float[a, 2] y)", f"""
        e = SequenceEmpty ()  n = Size (x)
        s = Loop (trips, , e) <body: graph = step (int64 i, bool go, seq(float[2]) u) => (bool on, seq(float[2]) r) {{
          {GROW}  g = SequenceInsert (u, p)
          r = Loop (n, , g) <body: graph = inner (int64 j, bool more, seq(float[2]) b) => (bool again, seq(float[2]) d)
            {{ again = Identity (more)  c = Cast <to: int = 1> (j)  o = Mul (c, p)  d = SequenceInsert (b, o) }}>
        }}>
        y = ConcatFromSequence <axis: int = 0, new_axis: int = 1> (s)
    """),
    "rows": ("(float[a, 2] y, float[2, b] z, int64 l, float[1, 2] v, float[c, 2] m)", """
        s = SplitToSequence <keepdims: int = 0> (x)  l = SequenceLength (s)
        y = ConcatFromSequence <axis: int = 0, new_axis: int = 1> (s)  t = SplitToSequence (x)  v = SequenceAt (t, zero)
        z = ConcatFromSequence <axis: int = 1, new_axis: int = 1> (s)
        e = SequenceEmpty ()
        u = Loop (l, , e) <body: graph = step (int64 i, bool go, seq(float[2]) g) => (bool on, seq(float[2]) r)
          { on = Identity (go)  row = SequenceAt (s, i)  p = Mul (row, one)  r = SequenceInsert (g, p) }>
        m = ConcatFromSequence <axis: int = 0, new_axis: int = 1> (u)
    """),
    "parts of two": ("(float[a, 2] y, float[2, 2] v, float[2, b] z)", """
        d = Concat <axis: int = 0> (x, x)  two = Constant <value: tensor = int64 {2}> ()
        s = SplitToSequence <axis: int = 0> (d, two)  v = SequenceAt (s, zero)
        t = SequenceMap (s, one) <body: graph = each (float[2, 2] a, float[2] b) => (float[2, 2] c) { c = Sub (a, b) }>
        y = ConcatFromSequence <axis: int = 0> (t)  z = ConcatFromSequence <axis: int = -1> (t)
    """),
    "parts of sizes that data gives": ("(float[a, 2] y, float[b, 2] z, float[c, 2] r, int64 l)", """
        s = SplitToSequence (w, split)  three = Constant <value: tensor = int64 {2}> ()
        a = SequenceAt (s, zero)  y = Neg (a)  z = SequenceAt (s, three)  l = SequenceLength (s)
        t = SequenceErase (s, zero)  u = ConcatFromSequence <axis: int = 0> (t)  b1, b2, b3 = Split (w, split)
        r = Concat <axis: int = 0> (u, a, b3, b1)
    """),
    "tensors put in and taken out anywhere": ("(float[a] y, float[b] z, float[c] v, float[d] m)", """
        f = Neg (one)  g = Exp (one)  s = SequenceConstruct (one, f, g)
        t = SequenceInsert (s, f, k)  u = SequenceErase (t, k)  q = SequenceErase (u)
        r = SplitToSequence <keepdims: int = 0> (x)  h = SequenceInsert (r, one)  j = SequenceInsert (h, g, zero)
        y = ConcatFromSequence <axis: int = 0> (t)  z = ConcatFromSequence <axis: int = 0> (u)
        v = ConcatFromSequence <axis: int = 0> (q)  m = ConcatFromSequence <axis: int = 0> (j)
    """),
}  # fmt: skip


def with_sequences(name: str) -> onnx.ModelProto:
    outputs, text = SEQUENCES[name]
    return parsed(f"""
        test (float[n, 2] x, float[4, 2] w, int64 trips, int64 k, int64[3] split) => {outputs} {{
          one = Constant <value: tensor = float[2] {{1, 0.5}}> ()
          zero = Constant <value: tensor = int64 {{0}}> () {text}
        }}
    """)


SEQUENCE_CALLS = [
    {
        "x": floats(n, 2, seed=n), "w": floats(4, 2, seed=1), "trips": np.array(trips), "k": np.array(k),
        "split": np.array(split),
    }
    for n, trips, k, split in ((1, 1, 0, [1, 3, 0]), (5, 3, -1, [0, 0, 4]), (2, 6, 1, [1, 1, 2]))
]  # fmt: skip


def importing_sequences(name: str) -> Graph:
    counted = {"s_count": (0, 6)} if "Loop (trips" in SEQUENCES[name][1] else {}
    return importer.load(with_sequences(name), dims={"n": (1, 5), **counted})


def given_to(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {node.attr.name: inputs[node.attr.name] for node in graph.inputs}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_whose_length_or_parts_a_run_decides(name: str) -> None:
    graph, proto = importing_sequences(name), with_sequences(name)
    for inputs in SEQUENCE_CALLS:
        models.assert_close(models.run(graph, given_to(graph, inputs)), models.by_onnxruntime(proto, inputs))


def test_sequences_that_are_outputs() -> None:
    """One output for each tensor, or one for all where a run decides how many there are."""
    for name, wanted in {
        "a known number of rounds": ["s_0", "s_1", "s_2"],
        "a symbolic number of rounds": ["s"],
    }.items():
        proto = with_sequences(name)
        del proto.graph.output[:]
        proto.graph.output.add(name="s")
        graph = importer.load(proto, dims={"n": (1, 5)})
        assert [output for output, _ in graph.outputs] == wanted
        inputs = SEQUENCE_CALLS[1]
        x, found = inputs["x"], models.run(graph, given_to(graph, inputs))
        added = [sign * (x[0] + np.float32(number)) for number in range(10) for sign in (1, -1)]
        if len(wanted) == 1:
            np.testing.assert_array_equal(found[0], np.float32([[1, 0.5], [1, 0.5], *added]))
        else:
            np.testing.assert_array_equal(found, added[:6:2])


def test_parts_that_do_not_add_up_fail() -> None:
    graph = importing_sequences("parts of sizes that data gives")
    module = luminal.compile(graph, target="host")
    for split in ([1, 1, 1], [5, -2, 1], [0, 0, 0], [4, 1, 0]):
        given = given_to(graph, {**SEQUENCE_CALLS[0], "split": np.array(split)})
        with pytest.raises(IndexError, match="index -1 is out of range"):
            models.run(graph, given)
        with pytest.raises(IndexError, match="an index is out of range in step"):
            module.run(given)


@pytest.mark.parametrize("operation", ["r = SequenceInsert (s, one, k)", "r = SequenceErase (s, k)"])
def test_positions_outside_a_sequence_fail(operation: str) -> None:
    proto = parsed(f"""
        test (float[n, 2] x, int64 k) => (float[a] y) {{
          one = Constant <value: tensor = float[2] {{1, 0.5}}> ()
          s = SplitToSequence <keepdims: int = 0> (x)  {operation}  y = ConcatFromSequence <axis: int = 0> (r)
        }}
    """)
    graph = importer.load(proto, dims={"n": (1, 5)})
    for k in (-4, 4):
        with pytest.raises(IndexError, match="index -1 is out of range"):
            models.run(graph, {"x": floats(3, 2), "k": np.array(k)})


REFUSED = {
    "r = SequenceInsert (u, p)  q = SequenceAt (r, zero)": "a round reads the sequence that the loop makes longer",
    "is = Cast <to: int = 9> (i)  r = If (is) <"
    "then_branch: graph = yes () => (seq(float[2]) a) { a = SequenceInsert (u, p) }, "
    "else_branch: graph = no () => (seq(float[2]) a) { a = Identity (u) }>": "adds to it under a condition",
    "h = Greater (row, one)  j = Compress <axis: int = 0> (row, h)  r = SequenceInsert (u, j)": "which data decides in",
    "r = SequenceInsert (u, zero)": "one shape, found float32[2] and int64[]",
}


@pytest.mark.parametrize("step", REFUSED)
def test_sequences_that_grow_in_other_ways_are_refused(step: str) -> None:
    proto = parsed(f"""
        test (float[n, 2] x, int64 trips) => (float[a] y) {{
          one = Constant <value: tensor = float[2] {{1, 0.5}}> ()  zero = Constant <value: tensor = int64 {{0}}> ()
          e = SequenceConstruct (one)
          s = Loop (trips, , e) <body: graph = step (int64 i, bool go, seq(float[2]) u) => (bool on, seq(float[2]) r)
            {{ {GROW}  {step} }}>
          y = ConcatFromSequence <axis: int = 0> (s)
        }}
    """)
    with pytest.raises(UnsupportedError, match="Loop 's'") as caught:
        importer.load(proto, dims={"n": (1, 5), "s_count": (0, 6)})
    assert REFUSED[step] in str(caught.value)


def test_the_most_rounds_that_make_a_sequence_longer_are_declared() -> None:
    proto = with_sequences("a loop for as long as data says")
    with pytest.raises(InputError, match=r"Loop 's'.* dims=\{'s_count': \(0, MOST\)\}"):
        importer.load(proto, dims={"n": (1, 5)})
    graph = importer.load(proto, dims={"n": (1, 5), "s_count": (0, 2)})
    with pytest.raises(InputError, match="more rounds than there is room for"):
        models.run(graph, given_to(graph, SEQUENCE_CALLS[1]))


def test_tensors_of_several_shapes_are_refused_where_a_run_decides_which() -> None:
    proto = parsed("""
        test (float[n, 2] x, int64 k) => (float[a, b] y) {
          z = Transpose <perm: ints = [1, 0]> (x)  s = SequenceConstruct (x, z)  y = SequenceAt (s, k)
        }
    """)
    with pytest.raises(InputError, match=r"SequenceAt .*float32\[2, n\]\).*depends on the data of 'k'"):
        importer.load(proto, dims={"n": (1, 5)})
    uneven = parsed("""
        test (float[n, 2] x) => (int64 l) {
          two = Constant <value: tensor = int64 {2}> ()  s = SplitToSequence (x, two)  l = SequenceLength (s)
        }
    """)
    with pytest.raises(UnsupportedError, match=r"a multiple of 2, .* found n: fix it with dims="):
        importer.load(uneven, dims={"n": (1, 5)})


def test_sequences_compiled() -> None:
    graphs = {name.replace(" ", "_"): importing_sequences(name) for name in SEQUENCES}
    module = luminal.compile(graphs, name="sequences", target="host")
    for name, graph in graphs.items():
        for inputs in SEQUENCE_CALLS:
            given = given_to(graph, inputs)
            models.assert_close(list(module[name].run(given).values()), models.run(graph, given))


# ---- Loop whose number of rounds follows from its condition ----------------------------------------------------------


def while_(body: str, before: str = "", keep: str = "go", trips: str = "", sizes: str = "float[n, 3] x") -> str:
    """A loop as tf2onnx writes one: a counter of int32 that begins at ``zero`` and is compared with ``count``."""
    return f"""
        test ({sizes}) => (float[m, 3] y, float[3] last, int32 i) {{
          none = Constant <value: tensor = float[3] {{0, 0, 0}}> ()  zero = Constant <value: tensor = int32 {{0}}> ()
          one = Constant <value: tensor = int32 {{1}}> ()  two = Constant <value: tensor = int32 {{2}}> ()
          s = Shape <start: int = 0, end: int = 1> (x)  scalar = Squeeze (s)  count = Cast <to: int = 6> (scalar)
          {before}
          i, c, last, y = Loop ({trips}, {keep}, zero, count, none) <
            body: graph = round (int64 number, bool before, int32 i0, int32 c0, float[3] a0) =>
                (bool again, int32 i1, int32 c0, float[3] a1, float[3] o)
              {{ row = Gather (x, i0)  a1 = Add (a0, row)  o = Mul (a1, row)  {body} }}>
        }}
    """


FLOATS = "f = Cast <to: int = 1> (i1)  g = Cast <to: int = 1> (c0)  again = Less (f, g)"
DERIVED = {
    "i < n, compared as floats": while_(
        f"i1 = Add (i0, one) {FLOATS}",
        "z = Cast <to: int = 1> (zero) n_ = Cast <to: int = 1> (count) go = Less (z, n_)",
    ),
    "by twos": while_("i1 = Add (i0, two)  again = Less (i1, c0)", "go = Less (zero, count)"),
    "up to one less": while_(
        "i1 = Add (i0, one)  m = Sub (c0, one)  again = Less (i1, m)", "d = Sub (count, one)  go = Less (zero, d)"
    ),
    "<=": while_("i1 = Add (i0, two)  again = LessOrEqual (i1, c0)", "d = Sub (count, one)", keep=""),
    "not <": while_("i1 = Add (i0, one)  m = Not (again_)  again = Identity (m)", keep="").replace(
        "m = Not", "again_ = Less (c0, i1)  m = Not"
    ),
    "and a limit": while_(
        "i1 = Add (i0, one)  a = Less (i1, c0)  k = Less (i1, four)  again = And (a, k)",
        "go = Less (zero, count)  four = Constant <value: tensor = int32 {4}> ()",
    ),
    "and a number of trips": while_(
        "i1 = Add (i0, one)  again = Less (i1, c0)", "go = Less (zero, count)", trips="half"
    ).replace("go =", "t = Constant <value: tensor = int64 {2}> ()  half = Div (scalar, t)  go ="),
    "the last round alone is false": while_("i1 = Add (i0, one)  again = Less (i1, i0)", "", keep=""),
}


@pytest.mark.parametrize("case", DERIVED)
@pytest.mark.parametrize("least", [1, 3])
def test_rounds_that_follow_from_the_condition(case: str, least: int) -> None:
    proto = parsed(DERIVED[case])
    late = case in ("<=", "not <")  # these read a row that is not there where the counter ends at the number of rows
    body = proto.graph.node[-1].attribute[0].g
    if late:
        body.node[0].op_type, body.node[0].input[:] = "Gather", ["x", "zero"]
    calls = [{"x": floats(rows, 3)} for rows in (least, 4, 7)]
    graph = agrees(proto, *calls, dims={"n": (least, 8)})
    assert ops.SCAN in operations(graph) and ops.WHILE not in operations(graph)
    assert not graph.measured
    compiled(graph, *calls)


NOT_DERIVED = {
    "data": "i1 = Add (i0, one)  again_ = ReduceSum <keepdims: int = 0> (a1)  k = Abs (again_)  again = Less (k, far)",
    "a counter that data moves": (
        "big = ReduceMax <keepdims: int = 0> (row)  b = Cast <to: int = 6> (big)  t = Mul (b, zero)  u = Add (t, one)"
        "  i1 = Add (i0, u)  again = Less (i1, c0)"
    ),
    "data or a bound": (
        "i1 = Add (i0, one)  k = ReduceSum <keepdims: int = 0> (a1)  a = Less (k, far)  l = Less (i1, c0)"
        "  m = And (a, l)  again = Identity (m)"
    ),
    "a counter that doubles": "e = Add (i0, i0)  i1 = Add (e, one)  again = Less (i1, c0)",
}


@pytest.mark.parametrize("case", NOT_DERIVED)
def test_rounds_that_data_decides_stay_a_loop(case: str) -> None:
    proto = parsed(while_(NOT_DERIVED[case], "far = Constant <value: tensor = float {2.5}> ()", keep=""))
    if case == "data":
        proto.graph.node[-1].attribute[0].g.node[0].input[1] = "zero"
    calls = [{"x": np.abs(floats(rows, 3)) + 0.5} for rows in (3, 7)]
    graph = agrees(proto, *calls, dims={"n": (3, 8), "y_count": (0, 64)})
    assert ops.WHILE in operations(graph)
    compiled(graph, *calls)


def test_loops_of_equally_many_rounds_fit_together() -> None:
    """A sum of two loops' outputs: nothing but their conditions says that they are equally long."""
    loop = """
        i{k}, y{k} = Loop (, go, zero) <body: graph = round{k} (int64 number, bool before, int32 i0) =>
            (bool again, int32 i1, float[3] o)
          {{ row = Gather ({x}, i0)  o = Exp (row)  i1 = Add (i0, one)  again = Less (i1, count) }}>
    """
    proto = parsed(f"""
        test (float[n, 3] x) => (float[m, 3] y) {{
          zero = Constant <value: tensor = int32 {{0}}> ()  one = Constant <value: tensor = int32 {{1}}> ()
          s = Shape <start: int = 0, end: int = 1> (x)  scalar = Squeeze (s)  count = Cast <to: int = 6> (scalar)
          go = Less (zero, count)  w = Neg (x)  {loop.format(k=1, x="x")}  {loop.format(k=2, x="w")}  y = Add (y1, y2)
        }}
    """)
    calls = [{"x": floats(rows, 3)} for rows in (1, 5)]
    graph = agrees(proto, *calls, dims={"n": (1, 8)})
    assert [str(size) for size in graph.outputs[0][1].shape] == ["n", "3"]
    compiled(graph, *calls)


# ---- Scan ------------------------------------------------------------------------------------------------------------

DIRECTIONS: Sequence[tuple[str, tuple[int, ...]]] = [
    ("scan_input_directions: ints = [1, 0]", (5, 4)),
    ("scan_output_directions: ints = [1]", (5, 4)),
    ("scan_input_axes: ints = [1, 0]", (4, 5)),
    ("scan_input_axes: ints = [-1, 0], scan_output_axes: ints = [-1], scan_input_directions: ints = [0, 1]", (4, 5)),
]


@pytest.mark.parametrize(("attributes", "shape"), DIRECTIONS)
def test_scans_run_along_any_axis_in_both_directions(attributes: str, shape: tuple[int, ...]) -> None:
    proto = parsed(f"""
        test (float[4] first, int64 n, float[a, b] x, float[5, 4] y) => (float[4] last, int64 m, float[c, d] z) {{
          last, m, z = Scan <num_scan_inputs: int = 2, {attributes}, body: graph = step
            (float[4] s, int64 k, float[4] u, float[4] v) => (float[4] t, int64 l, float[4] w)
            {{ p = Mul (u, s)  t = Add (p, v)  l = Add (k, k)  w = Sub (t, u) }}> (first, n, x, y)
        }}
    """)
    inputs = {"first": floats(4), "n": np.array(3), "x": floats(*shape, seed=1), "y": floats(5, 4, seed=2)}
    agrees(proto, inputs, dims=dict(zip("ab", shape, strict=True)))


def test_a_scan_along_a_symbolic_size() -> None:
    proto = parsed("""
        test (float[b, 3] first, float[b, t, 3] x, float[3, 3] r) => (float[b, 3] last, float[b, t, 3] z) {
          last, z = Scan <num_scan_inputs: int = 1, scan_input_axes: ints = [1], scan_output_axes: ints = [1],
            body: graph = step (float[b, 3] s, float[b, 3] u) => (float[b, 3] t, float[b, 3] w)
            { p = MatMul (s, r)  q = Add (p, u)  t = Tanh (q)  w = Identity (t) }> (first, x)
        }
    """)
    calls = [
        {"first": floats(b, 3), "x": floats(b, t, 3, seed=1), "r": floats(3, 3, seed=2)} for b, t in ((1, 1), (3, 6))
    ]
    graph = agrees(proto, *calls, dims={"b": (1, 4), "t": (1, 8)})
    compiled(graph, *calls)


def test_a_scan_that_is_one_kernel_reads_a_constant() -> None:
    proto = parsed("""
        test (float[3] first, float[t, 3] x) => (float[3] last, float[t, 3] z) {
          scale = Constant <value: tensor = float[3] {1, 0.5, 3}> ()
          last, z = Scan <num_scan_inputs: int = 1, body: graph = step (float[3] s, float[3] u)
            => (float[3] t, float[3] w) { t = Add (s, u)  w = Mul (t, scale) }> (first, x)
        }
    """)
    inputs = {"first": floats(3), "x": floats(4, 3, seed=1)}
    compiled(agrees(proto, inputs, dims={"t": (1, 8)}), inputs)


def test_a_batch_of_sequences_of_their_own_lengths() -> None:
    """Opset 8, which alone has batches; behind the end of a sequence zeros are put out."""
    proto = parsed("""
        test (int64[2] lengths, float[2, 3] first, float[2, 4, 3] x) => (float[2, 3] last, float[2, 4, 3] z) {
          last, z = Scan <num_scan_inputs: int = 1, directions: ints = [1],
            body: graph = step (float[3] s, float[3] u) => (float[3] t, float[3] w)
            { t = Add (s, u)  w = Mul (t, t) }> (lengths, first, x)
        }
    """, 8, 3)  # fmt: skip
    inputs = {"lengths": np.array([4, 2]), "first": floats(2, 3), "x": floats(2, 4, 3, seed=1)}
    last, z = models.imported(proto, inputs)
    for row, length in enumerate(inputs["lengths"]):
        state = inputs["first"][row]
        for place in range(length):
            state = state + inputs["x"][row, length - 1 - place]
            np.testing.assert_allclose(z[row, place], state * state, rtol=1e-6)
        np.testing.assert_allclose(last[row], state, rtol=1e-6)
        assert not z[row, length:].any()


def test_scans_that_do_not_fit_are_refused() -> None:
    def scanning(count: int) -> onnx.ModelProto:
        return parsed(f"""
            test (float[3] s, float[4, 3] x) => (float[3] last) {{
              last = Scan <num_scan_inputs: int = {count}, body: graph = step (float[3] a, float[3] u) => (float[3] b)
                {{ b = Concat <axis: int = 0> (a, u) }}> (s, x)
            }}
        """)

    with pytest.raises(ShapeError, match=r"^Scan 'last'\(float32\[3\], float32\[4, 3\]\): .* \[3\] becomes \[6\]"):
        importer.load(scanning(1))
    for count in (0, 3):
        with pytest.raises(ModelError, match=f"expected one scan input or more, found {count}"):
            importer.load(scanning(count))


# ---- the project's own cases -----------------------------------------------------------------------------------------


def test_compiled_cases_pass() -> None:
    names = """test_if test_if_seq test_if_opt test_loop11 test_loop13_seq test_loop16_seq_none test_scan_sum
        test_scan9_multi_state test_range_int32_type_negative_delta_expanded
        test_sequence_map_add_2_sequences_expanded test_linear_attention_gated_delta_gqa"""
    onnx_suite.check_compiled(names.split())


# ---- If with branches of different ranks -----------------------------------------------------------------------------


def ranks(follow: str, then: str = "Unsqueeze (p, one)", other: str = "Neg (p)", inside: str = "") -> onnx.ModelProto:
    """Branches of three and of two axes, and what ``follow``s them; ``p`` is computed before."""
    return parsed(f"""
        test (float[n, 4] x) => (float[m] y) {{
          zero = Constant <value: tensor = float {{0}}> ()  one = Constant <value: tensor = int64[1] {{1}}> ()
          flat = Constant <value: tensor = int64[1] {{-1}}> ()  p = Exp (x)  s = ReduceSum <keepdims: int = 0> (x)
          c = Greater (s, zero)  {inside}
          a = If (c) <then_branch: graph = yes () => (float[i, j, k] q) {{ q = {then} }},
                      else_branch: graph = no () => (float[i, j] q) {{ q = {other} }}>
          {follow}
        }}
    """)


SIGNS = [{"x": np.abs(floats(3, 4))}, {"x": -np.abs(floats(5, 4))}]
FOLLOWS = {
    "one result": "b = Mul (a, a)  y = Reshape (b, flat)",
    "sizes that differ": "b = Concat <axis: int = 1> (a, a)  t = Relu (b)  y = Reshape (t, flat)",
    "a shape of another rank": "z = Shape (a)  y = Cast <to: int = 1> (z)",
    "found sizes": "b = Relu (a)  r = Reshape (b, flat)  y = Compress <axis: int = 0> (r, e)",
    "two of them": """
        d = If (c) <then_branch: graph = t2 () => (float[i] q) { q = ReduceSum <keepdims: int = 0> (a, one) },
                    else_branch: graph = e2 () => (float[i] q) { q = Unsqueeze (a, one) }>
        y = Reshape (d, flat)
    """,
}


@pytest.mark.parametrize("case", FOLLOWS)
def test_branches_of_different_ranks(case: str) -> None:
    follow = FOLLOWS[case]
    if case == "found sizes":  # what is computed before has a size that data decides, which each branch reads
        follow = "w = NonZero (x)  e = ConstantOfShape <value: tensor = bool[1] {1}> (four)" + follow
        follow = follow.replace("e = ", "four = Constant <value: tensor = int64[1] {4}> ()  e = ")
    graph = agrees(ranks(follow), *SIGNS, dims={"n": (1, 8)})
    assert ops.COND in operations(graph)
    compiled(graph, *SIGNS)


def test_branches_of_different_ranks_in_a_loop() -> None:
    proto = parsed("""
        test (float[n, 4] x) => (float[4] y) {
          zero = Constant <value: tensor = float {0}> ()  none = Constant <value: tensor = float[4] {0, 0, 0, 0}> ()
          rows = Constant <value: tensor = int64[1] {0}> ()  t = Shape <end: int = 1> (x)  k = Squeeze (t)
          y = Loop (k, , none) <body: graph = round (int64 i, bool go, float[4] c0) => (bool again, float[4] after) {
            again = Identity (go)  row = Gather (x, i)  s = ReduceSum <keepdims: int = 0> (row)  c = Greater (s, zero)
            a = If (c) <then_branch: graph = yes () => (float[1, 4] q) { q = Unsqueeze (row, rows) },
                        else_branch: graph = no () => (float[4] q) { q = Neg (row) }>
            b = Mul (a, a)  e = Squeeze (b)  after = Add (c0, e)
          }>
        }
    """)
    calls = [{"x": floats(rows, 4)} for rows in (1, 6)]
    graph = agrees(proto, *calls, dims={"n": (1, 8)})
    assert ops.SCAN in operations(graph)
    compiled(graph, *calls)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_run_fails_where_what_follows_does_not_fit_the_branch(swapped: bool) -> None:
    """Three axes by two are no product of matrices with those that follow."""
    follow = "w = Constant <value: tensor = float[4] {1, 2, 3, 4}> ()  z = Transpose <perm: ints = [1, 0]> (a)"
    proto = ranks(f"{follow}  y = MatMul (w, z)")
    if swapped:
        node = proto.graph.node[6]
        first, second = node.attribute
        first.name, second.name = second.name, first.name
    fits, other = SIGNS[::-1] if not swapped else SIGNS
    graph = agrees(proto, fits, dims={"n": (1, 8)})
    module = luminal.compile(graph)
    assert isinstance(module, Module)
    models.assert_close(list(module.run(fits).values()), models.by_onnxruntime(proto, fits))
    for run in (lambda: models.run(graph, other), lambda: module.run(other)):
        with pytest.raises((InputError, LibraryError), match="a branch is taken that does not fit what follows it"):
            run()


def test_ranks_that_differ_to_the_end() -> None:
    with pytest.raises(ShapeError, match=r"expected result 0 to have as many axes in both branches"):
        importer.load(ranks("y = Relu (a)"), dims={"n": (1, 8)})
    neither = "z = Transpose <perm: ints = [0, 1, 2, 3]> (a)  y = Reshape (z, flat)"
    with pytest.raises(LuminalError, match="Transpose"):
        importer.load(ranks(neither), dims={"n": (1, 8)})
