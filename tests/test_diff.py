"""``luminal.diff``: what it accepts, and that planted mistakes are found where they were planted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch._higher_order_ops.map import map as map_

import luminal
from luminal.codegen import dialect_cpp
from luminal.comparison import inputs as drawing
from luminal.comparison import locate, stages
from luminal.comparison.locate import first_failure
from luminal.comparison.measure import COARSE_LIMIT, LIMIT, distance, indecision, rounding
from luminal.comparison.references import Interpreter, OnnxRuntime
from luminal.core import interp, ir, ops, pipeline, traverse
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.algebra import factoring, write
from luminal.core.algebra import stage as algebra
from luminal.core.decompose import contraction as decompose
from luminal.core.decompose import indexing
from luminal.core.decompose.error_function import erf
from luminal.core.errors import InputError, ModelError
from luminal.core.ir import Graph, Node
from luminal.core.origins import Origin
from luminal.core.rules.pattern import Rule
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.numeric import (
    bit_maxima,
    digits,
    integers,
    long_reductions,
    looked_up,
    moved_blocks,
    online,
    spelled_out,
    strips,
)
from luminal.core.schedule.numeric import rounding as rounding_of_operands
from luminal.core.types import bool_, f16, f32, i64
from luminal.frontends.onnx import operators
from tests.comparison_models import classifier

DIMS = {"batch": (1, 16)}


# ---- agreement -----------------------------------------------------------------------------------------------------


def test_agrees_with_onnxruntime() -> None:
    report = luminal.diff(classifier(), dims=DIMS)
    assert report.ok and report.finding is None and report.reference == "onnxruntime"
    assert [trial.dims for trial in report.trials] == [{"batch": 3}, {"batch": 1}]
    assert 0 <= report.worst < 1e-6
    assert "agrees" in str(report) and "probabilities float32[3, 5]" in str(report)


def test_agrees_with_pytorch() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 33), torch.nn.GELU(), torch.nn.Linear(33, 4)).eval()
    report = luminal.diff(module, (torch.randn(2, 6),), dims={"input": ("batch", None), "batch": (1, 8)})
    assert report.ok and report.reference == "torch"
    assert [trial.inputs for trial in report.trials] == ["given", "drawn", "smallest"]


class Picked(torch.nn.Module):
    """How many numbers are positive is decided by data, at the top and again for each row of a map."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[x > 0] * 2, map_(lambda row: row[row > 0].sum(), x)


def test_sizes_that_data_decides_are_no_part_of_the_inputs() -> None:
    report = luminal.diff(Picked(), (torch.randn(5, 7),))
    assert report.ok and all(not trial.dims for trial in report.trials)


def test_given_inputs_are_used_as_they_are() -> None:
    x = np.full((2, 8), np.nan, np.float32)
    report = luminal.diff(classifier(), {"x": x}, dims=DIMS)
    (trial,) = report.trials
    assert report.ok and trial.inputs == "given" and trial.dims == {"batch": 2}


@pytest.mark.parametrize("wrong", [np.zeros((2, 8)), np.zeros((2, 8), np.int64)])
def test_inputs_of_another_type_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="float32"):
        luminal.diff(classifier(), {"x": wrong}, dims=DIMS)


def test_references_that_cannot_run_the_model() -> None:
    with pytest.raises(InputError, match="torch cannot run"):
        luminal.diff(classifier(), dims=DIMS, reference="torch")
    with pytest.raises(InputError, match="expected auto"):
        luminal.diff(classifier(), dims=DIMS, reference="abacus")
    with pytest.raises(ModelError, match="onnxruntime refuses the model"):
        OnnxRuntime(classifier(unknown=True))


def test_tolerance() -> None:
    assert luminal.diff(classifier(), dims=DIMS, tolerance=1e-4).ok
    report = luminal.diff(classifier(), dims=DIMS, tolerance=0.0)
    assert not report.ok and report.finding is not None and report.finding.stage == "rounding"
    coarse = luminal.diff(classifier(), dims=DIMS, precision="bf16", tolerance=1e-6)
    assert not coarse.ok and coarse.finding is not None and coarse.finding.stage == "rounding"
    wrong: Any
    for wrong in (math.nan, math.inf, -1.0, "small"):
        with pytest.raises(InputError, match="tolerance: expected a finite number, 0 or more, found"):
            luminal.diff(classifier(), dims=DIMS, tolerance=wrong)


# ---- planted mistakes ----------------------------------------------------------------------------------------------


def test_mistake_in_generated_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recip = dialect_cpp.TABLE[ops.RECIP]
    monkeypatch.setitem(dialect_cpp.TABLE, ops.RECIP, lambda call: f"mul({recip(call)}, {recip(call)})")
    report = luminal.diff(classifier(), dims=DIMS, save=tmp_path)
    finding = report.finding
    assert not report.ok and finding is not None and finding.origin is not None
    assert finding.origin.name == "normalisation" and finding.stage == "code generation"
    assert "introduced by: code generation" in str(report)
    assert "Softmax 'normalisation'" in (tmp_path / "finding.txt").read_text()
    assert "Recip" in (tmp_path / "graph.txt").read_text()
    found, expected = (np.load(tmp_path / f"{name}.npz")["value_0"] for name in ("found", "expected"))
    assert found.shape == expected.shape and not np.allclose(found, expected, atol=1e-3)
    assert list(np.load(tmp_path / "inputs.npz"))


def test_mistake_in_simplification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simplify = pipeline.simplify

    def wrong(graph: Graph, rules: Sequence[Rule]) -> Graph:
        return _with(simplify(graph, rules), ops.ADD, lambda a, b: a)

    monkeypatch.setattr(pipeline, "simplify", wrong)
    report = luminal.diff(classifier(), dims=DIMS, save=tmp_path)
    assert report.finding is not None and report.finding.origin is not None
    assert report.finding.origin.name == "bias" and report.finding.stage == "simplification"


def _off(made: Any) -> Any:
    """A graph, or one with its contractions, with other outputs."""
    if isinstance(made, Contracted):
        return replace(made, graph=_off(made.graph))
    return made.computing([root * 1.5 for root in made.roots])


# Where each pass is done: the module, the function, and how to plant a mistake in what it gives.
PASSES: dict[str, tuple[Any, str]] = {
    "integer contractions": (integers, "integral"),
    "simplification": (pipeline, "simplify"),
    "known functions": (spelled_out, "known"),
    "algebra": (algebra, "improved"),
    "look-ups": (looked_up, "of_few"),
    "blocks that a number moves": (moved_blocks, "apart"),
    "strips": (strips, "in_strips"),
    "online reductions": (online, "in_parts"),
    "rounding of operands": (rounding_of_operands, "rounded"),
    "fewer digits": (digits, "eased"),
    "maxima of bits": (bit_maxima, "of_bits"),
    "long reductions": (long_reductions, "in_parts"),
    "preparation for kernels": (pipeline, "owned"),
}


@pytest.mark.parametrize("name", pipeline.PASSES)
def test_mistake_in_a_pass(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, function = PASSES[name]
    done = getattr(module, function)

    def wrong(*args: Any) -> Any:
        found = done(*args)
        if name != "preparation for kernels":
            return _off(found)
        graph, prepared = found
        return _off(graph), replace(prepared, roots=_off(graph).roots)

    graph = luminal.read(classifier(), dims=DIMS)
    inputs = drawing.draw(graph, {"batch": 3})
    target = replace(targets.parse("avx512-vnni", "bf16"), algebra=targets.BOUNDED)
    monkeypatch.setattr(module, function, wrong)
    monkeypatch.setattr(locate, "_compiled", _interpreted)
    finding = locate.locate(graph, OnnxRuntime(classifier()), inputs, [0], target, None, tmp_path)
    assert finding.stage == name and finding.origin is not None and finding.origin.name == "hidden"
    assert pipeline.PASSES[name] in finding.explanation


class Derived(torch.nn.Module):
    """Attention without an exponential, which a product in another order computes, then two layers of one signal, which
    become one, and two in turn."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.wide, self.narrow = torch.nn.Linear(16, 64), torch.nn.Linear(64, 8)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mixed = torch.relu((q @ k.transpose(1, 2)) @ v)
        return self.narrow(self.wide(torch.relu(self.first(mixed) + self.second(mixed))))


def _without_common_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """``x w + x v`` as ``x w``."""
    total = factoring.total
    monkeypatch.setattr(factoring, "total", lambda paths, *more: total(list(paths)[:1], *more))


def _twice_over_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over the 96 tokens as twice that."""
    value = write._value

    def wrong(path: Any, in_constant: bool = False) -> Any:
        found = value(path, in_constant)
        over_tokens = any(c.extent == 96 for c in path.domain if c not in path.coordinates)
        return replace(found, node=found.node * 2.0) if over_tokens else found

    monkeypatch.setattr(write, "_value", wrong)


UNSOUND = {
    "common factors": (_without_common_factors, ("linear", "linear_1"), "(Constant[16, 16])"),
    "sums": (_twice_over_tokens, ("matmul_1", "matmul"), "sum["),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_derivation_is_named(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant, operators_, form = UNSOUND[name]
    plant(monkeypatch)
    inputs = tuple(torch.randn(2, 96, 16, generator=torch.Generator().manual_seed(k)) for k in range(3))
    report = luminal.diff(Derived().eval(), inputs, save=tmp_path, algebra="bounded")
    assert not report.ok and report.finding is not None and report.finding.stage == "algebra"
    found = report.finding.explanation
    assert all(repr(operator) in found for operator in operators_), found
    assert "becomes" in found and form in found.partition(" becomes ")[2] and "(region " in found
    assert ("wide" in found) == ("narrow" in found) and "linear_3" not in found  # the other derivations are right


def _interpreted(graph: Graph, target: Any, inputs: Any) -> Sequence[Any]:
    """What the graph that the kernels of ``graph`` are made of computes."""
    return interp.run(stages.reached(graph, target)["preparation for kernels"], inputs).outputs


def test_mistake_in_a_pass_that_changes_several_operators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The operators of a function that is spelled out: alone, or stored on the way, each is right."""
    x = ir.input_("x", (4, 8), f32)
    origins: ir.Origins = {}
    y = x
    for name, step in (
        ("scaled", lambda y: y / math.sqrt(2.0)),
        ("erf", erf),
        ("plus one", lambda y: y + 1.0),
        ("times x", lambda y: y * x),
        ("halved", lambda y: y * 0.5),
    ):
        with ir.originating(origins, Origin(name, name)):
            y = step(y)
    graph = Graph("gelu", (x,), (("y", y),), origins=origins)
    inputs = drawing.draw(graph, {})
    target = targets.AVX2
    wrong = tuple(replace(row, right=lambda x, row=row: row.right(x) * 1.5) for row in spelled_out.IDENTITIES)
    monkeypatch.setattr(spelled_out, "IDENTITIES", wrong)
    monkeypatch.setattr(locate, "_compiled", _interpreted)
    finding = locate.locate(graph, Interpreter(graph), inputs, [0], target, None, tmp_path)
    assert finding.stage == "known functions" and "spells out" in finding.explanation


def test_what_a_precision_cannot_hold_is_no_mistake_of_a_stage() -> None:
    linear, x = torch.nn.Linear(8, 8), torch.full((2, 8), 1e6)
    report = luminal.diff(linear, (x,), precision="fp16")
    assert not report.ok and "NaN or infinite on one side only" in str(report)
    assert report.finding is not None and report.finding.stage == "what was chosen", str(report)
    assert "numbers of fp16 do not reach so far" in report.finding.explanation


def test_what_a_stage_makes_wrong_is_not_put_down_to_the_precision() -> None:
    """The graph of operands that are rounded is right, and the one that is prepared is not."""
    x = ir.input_("x", (4, 8), f32)
    graph = Graph("linear", (x,), (("y", decompose.matmul(x, ir.constant(np.ones((8, 16), np.float32)))),))
    differs = iter([False, True])
    target = targets.parse("avx512-bf16", "bf16")
    stage, _ = stages.introduced(graph, {"x": np.ones((4, 8), np.float32)}, target, lambda _: next(differs, False))
    assert stage == "preparation for kernels"


def _with(graph: Graph, op: ops.Op, replacement: Callable[..., Node]) -> Graph:
    """``graph`` with another meaning of ``op``."""
    built: dict[Node, Node] = {}
    for node in traverse.topological(graph.results):
        operands = [built[operand] for operand in node.inputs]
        built[node] = replacement(*operands) if node.op is op else traverse.rebuild(node, operands)
    outputs = tuple((name, built[node]) for name, node in graph.outputs)
    return Graph(graph.name, graph.inputs, outputs, graph.dims, graph.origins, graph.names, graph.structure)


def test_mistake_in_the_front_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = operators.find

    def wrong(domain: str, name: str, version: int) -> Any:
        return (lambda call: call.inputs[0] * 0.9) if name == "Tanh" else find(domain, name, version)

    monkeypatch.setattr(operators, "find", wrong)
    report = luminal.diff(classifier(), dims=DIMS, save=tmp_path)
    finding = report.finding
    assert finding is not None and finding.origin is not None
    assert finding.origin.name == "activation" and finding.stage == "the front end or a decomposition"
    assert "Tanh 'activation'" in str(report)


def test_mistake_between_operators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A library that is wrong only where operators share it: alone, each is right."""

    def compiled(graph: Graph, target: Any, inputs: Any) -> Sequence[Any]:
        values = interp.run(graph, inputs).outputs
        return values if graph.name.endswith("_part") else [value * np.float32(1.01) for value in values]

    monkeypatch.setattr(locate, "_compiled", compiled)
    graph = luminal.read(classifier(), dims=DIMS)
    inputs = drawing.draw(graph, {"batch": 3})
    finding = locate.locate(graph, OnnxRuntime(classifier()), inputs, [0], targets.detect(), None, tmp_path)
    assert finding.stage == "fusion" and finding.origin is not None and finding.origin.name == "hidden"


@pytest.mark.parametrize("broken", range(20))
def test_first_failure_follows_dependencies(broken: int) -> None:
    """A failure shows in what depends on it: here in every second of what comes later."""
    count = 97
    needs = [sum(1 << k for k in range(number + 1) if (number - k) % 2 == 0) for number in range(count)]
    calls: list[int] = []

    def fails(probes: Sequence[int]) -> list[bool]:
        calls.append(len(probes))
        return [bool(needs[p] >> broken & 1) for p in probes]

    assert first_failure(needs, fails) == broken
    assert len(calls) <= 4 and max(calls) <= locate.PROBES + 1
    assert first_failure(needs, lambda probes: [False] * len(probes)) is None


# ---- inputs --------------------------------------------------------------------------------------------------------


def _domains(inputs: Sequence[Node], *outputs: Node) -> dict[str, str]:
    graph = Graph("test", tuple(inputs), tuple((f"y{k}", node) for k, node in enumerate(outputs)))
    return {node.attr.name: str(domain) for node, domain in drawing.domains(graph).items()}


def test_indices_lie_within_the_axis() -> None:
    table = ir.input_("table", (50, 4), f32)
    ids = ir.input_("ids", (2, 7), i64)
    rows, columns = ir.input_("rows", (3,), i64), ir.input_("columns", (3,), i64)
    found = _domains((table, ids, rows, columns), indexing.take(table, ids, 0), indexing.index(table, (rows, columns)))
    assert found == {"table": "normal", "ids": "index below 50", "rows": "index below 50", "columns": "index below 4"}


def test_masks_are_zeros_and_ones() -> None:
    scores = ir.input_("scores", (2, 7), f32)
    integer, additive = ir.input_("integer", (2, 7), i64), ir.input_("additive", (2, 7), f32)
    flag = ir.input_("flag", (2, 7), bool_)
    masked = ir.select(ir.cast(integer, bool_), scores, -1.0)
    found = _domains(
        (scores, integer, additive, flag), masked, scores + (1.0 - additive) * f32.min, ir.select(flag, scores, 0.0)
    )
    assert found == {"scores": "normal", "integer": "mask", "additive": "mask", "flag": "mask"}
    graph = Graph("test", (integer,), (("y", ir.cast(integer, bool_)),))
    values = drawing.draw(graph, {})["integer"]
    assert set(np.unique(values)) == {0, 1} and (values[:, 0] == 1).all()


def test_logarithms_read_positive_numbers() -> None:
    x, y, z = (ir.input_(name, (9,), f32) for name in "xyz")
    squares = y * y
    found = _domains((x, y, z), ir.unary(ops.LOG2, x * 3.0), ir.unary(ops.SQRT, squares), z)
    assert found == {"x": "positive", "y": "normal", "z": "normal"}


def test_sizes_leave_tails_and_keep_bounds() -> None:
    free, narrow = sym.var("free", 1, 300), sym.var("narrow", 8, 16)
    x = ir.input_("x", (free, narrow), f32)
    dims = tuple(v for v in map(sym.as_var, (free, narrow)) if v is not None)
    graph = Graph("test", (x,), (("y", x),), dims)
    assert drawing.sizes(graph) == {"free": 3, "narrow": 16}
    assert drawing.sizes(graph, smallest=True) == {"free": 1, "narrow": 8}
    assert drawing.draw(graph, {"free": 3, "narrow": 16}, 5)["x"].shape == (3, 16)


# ---- distances -----------------------------------------------------------------------------------------------------


def test_distance_counts_representable_values() -> None:
    one = np.ones(3, np.float32)
    found = distance(np.nextafter(one, np.float32(2)), one)
    assert found.ulp == 1 and found.misplaced == 0 and found.relative == pytest.approx(2.0**-23)
    tiny = np.array([np.float32(1e-45)])
    assert distance(-tiny, tiny).ulp == 2
    assert distance(one.astype(np.float16), one.astype(np.float64) * (1 + 2**-10)).ulp == 1
    assert distance(np.array([3, -5]), np.array([3, 2])).ulp == 7
    assert distance(np.array([-0.5], ml_dtypes.float4_e2m1fn), np.array([1.0])).ulp == 3
    assert distance(np.array([128.0], ml_dtypes.float8_e8m0fnu), np.array([0.25])).ulp == 9
    assert distance(np.array([-8], ml_dtypes.int4), np.array([7], ml_dtypes.int4)).ulp == 15


def test_distance_places_nan_and_infinities() -> None:
    expected = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert distance(expected, expected).misplaced == 0
    assert distance(expected, expected[::-1]).misplaced == 4


def test_zeros_are_far_from_anything() -> None:
    found = distance(np.zeros(4, np.float32), np.array([1, -2, 3, 4], np.float32))
    assert found.relative == 1.0 and found.cosine == 0.0


def test_rounding_grows_with_the_square_root_of_a_sum() -> None:
    x = ir.input_("x", (10, 400), f32)
    summed = ir.reduce(ops.SUM_REDUCE, x, [1])
    unit = 2.0**-24
    bounds = rounding([summed, ir.cast(summed, f16)], {})
    assert bounds[summed].bound == pytest.approx(20 * unit)
    assert bounds[summed].limit == LIMIT * unit
    assert bounds[ir.cast(summed, f16)].limit == COARSE_LIMIT * 2.0**-11
    assert bounds[x].bound == 0.0


def test_what_inputs_do_not_decide_is_said() -> None:
    """A tolerance that exceeds what the output varies by, constants, and numbers that are none."""
    expected = np.float32([1000.0, 1000.1, 999.9, 1000.05])
    assert indecision(expected, expected, 1.0) == ""
    assert indecision(expected + np.float32([0, 0.001, 0, 0]), expected, 1.0) == ""
    assert "varies by" in indecision(expected[::-1], expected, 1e-3)
    assert indecision(expected[::-1], expected, 1e-6) == ""  # that is a mismatch
    ones, nothing = np.ones(3, np.float32), np.full(3, np.nan, np.float32)
    assert indecision(ones, ones, 1e-6) == "every element is 1"
    assert indecision(nothing, nothing, 1e-6) == "no element is a finite number"
    assert indecision(np.ones(3, np.int64), np.ones(3, np.int64), 0.0) == ""


def test_a_saturated_output_does_not_agree() -> None:
    class Saturated(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(1000 + x.abs())

    report = luminal.diff(Saturated(), (torch.ones(2, 3),), reference="interpreter")
    assert report.ok and len(report.undecided) == 1
    assert "every element is 1" in str(report) and "agrees" not in str(report)
