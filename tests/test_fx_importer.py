"""The PyTorch front end as a whole: what may be given, symbolic sizes, names, structure, and its errors."""

from __future__ import annotations

import json
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

from luminal.core import interp, ir, ops, types
from luminal.core import symbolic as sym
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.traverse import topological
from luminal.frontends.fx import importer
from luminal.frontends.fx.tables import TABLE
from tests.fx_support import Call, check, difference, floats, run

Pair = namedtuple("Pair", ["first", "second"])


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4, bias=False)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))) + self.shift


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


# ---- what may be given ------------------------------------------------------------------------------


def test_module_program_and_traced_module_give_the_same_graph() -> None:
    module = Mlp().eval()
    graphs = [
        importer.load(module, (X,)),
        importer.load(module, {"x": X}),
        importer.load(torch.export.export(module, (X,))),
        importer.load(torch.export.export(module, (X,)).run_decompositions()),
        importer.load(torch.fx.symbolic_trace(module), (X,)),
    ]
    expected = module(X).detach().numpy()
    for graph in graphs:
        assert [node.attr.name for node in graph.inputs] == ["x"]
        np.testing.assert_allclose(run(graph, (X,))[0], expected, rtol=1e-6, atol=1e-6)
    assert graphs[0].results == graphs[1].results == graphs[2].results


def test_parameters_keep_their_names() -> None:
    graph = importer.load(Mlp().eval(), (X,))
    assert set(graph.names.values()) == {"up.weight", "up.bias", "down.weight", "shift"}
    assert graph.name == "mlp"


def test_unused_parameters_are_left_out() -> None:
    class Unused(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x)

    assert set(importer.load(Unused().eval(), (X,)).names.values()) == {"up.weight", "up.bias"}


def test_tied_weights_are_one_constant() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    graph = importer.load(Tied().eval(), (torch.tensor([1, 2]),))
    weights = [n for n in topological(graph.results) if n.op is ops.CONSTANT and n.rank == 2]
    assert len(weights) == 1 and len(graph.names) == 1


def test_origins_name_the_operator_and_the_line() -> None:
    graph = importer.load(Mlp().eval(), (X,))
    (origin, *_) = graph.origins[graph.results[0]]
    assert origin.op == "aten.add.Tensor"
    assert origin.location.startswith("tests/test_fx_importer.py:") or origin.location.startswith(
        "test_fx_importer.py:"
    )
    assert {o.op for found in graph.origins.values() for o in found} >= {"aten.linear.default", "aten.relu.default"}


# ---- symbolic sizes -----------------------------------------------------------------------------------


def attention(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    batch, seq, width = x.shape
    heads = x.view(batch, seq, 2, width // 2).transpose(1, 2)
    scores = heads @ heads.transpose(-1, -2)
    causal = torch.ones(seq, seq, dtype=torch.bool).tril()
    scores = scores.masked_fill(~(causal & (mask[:, None, None, :] > 0)), torch.finfo(torch.float32).min)
    return (scores.softmax(-1) @ heads).transpose(1, 2).reshape(batch, seq, width)


AXES = {"args_0": ("batch", "seq"), "args_1": ("batch", "seq")}


def sized(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, seq, 8, generator=generator), torch.ones(batch, seq, dtype=torch.int64)


def test_one_graph_serves_every_size() -> None:
    others = [sized(1, 1), sized(1, 9), sized(4, 1), sized(8, 32)]
    graph = check(attention, *sized(2, 5), dims={**AXES, "batch": (1, 8), "seq": (1, 32)}, others=others)
    assert [(v.name, v.lo, v.hi) for v in graph.dims] == [("batch", 1, 8), ("seq", 1, 32)]


def test_an_example_of_size_one_does_not_fix_an_axis() -> None:
    check(attention, *sized(1, 1), dims={**AXES, "batch": (1, 8), "seq": (1, 32)}, others=[sized(3, 7)])


def test_dims_may_be_torch_dims() -> None:
    batch, seq = Dim("b", min=1, max=6), Dim("s", max=20)
    graph = check(attention, *sized(2, 5), dims={name: {0: batch, 1: seq} for name in AXES}, others=[sized(6, 20)])
    assert [(v.name, v.hi) for v in graph.dims] == [("b", 6), ("s", 20)]


def test_an_unbounded_dimension_reaches_1024() -> None:
    graph = importer.load(Call(torch.relu), (X,), dims={"args_0": ("rows",)})
    assert [(v.name, v.lo, v.hi) for v in graph.dims] == [("rows", 1, 1024)]
    program = torch.export.export(Call(torch.relu), (X,), dynamic_shapes={"args": ({0: Dim("n", min=2)},)})
    (symbol,) = importer.load(program).dims
    assert (symbol.lo, symbol.hi) == (2, 1024)


def test_a_size_fixes_a_dimension() -> None:
    graph = importer.load(Call(torch.relu), (X,), dims={"args_0": ("rows",), "rows": 3})
    assert graph.inputs[0].shape == (3, 4)


def test_a_program_keeps_its_bounds_and_takes_names_and_narrower_ranges() -> None:
    n = Dim("n", min=2, max=16)
    program = torch.export.export(Call(torch.relu), (X,), dynamic_shapes={"args": ({0: n},)})
    (kept,) = importer.load(program).dims
    assert (kept.lo, kept.hi) == (2, 16)
    (narrowed,) = importer.load(program, dims={"args_0": ("rows",), "rows": (4, 8)}).dims
    assert narrowed.name == "rows" and (narrowed.lo, narrowed.hi) == (4, 8)
    with pytest.raises(ModelError, match=r"1\.\.8 is asked for, but the program was exported for 2\.\.16"):
        importer.load(program, dims={"args_0": ("rows",), "rows": (1, 8)})


def test_a_symbol_takes_its_name_from_any_input() -> None:
    class Product(nn.Module):
        def forward(self, input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return input @ other

    n = Dim("n", min=2, max=9)
    program = torch.export.export(Product(), (X.T.clone(), X), dynamic_shapes={"input": {1: n}, "other": {0: n}})
    assert [v.name for v in importer.load(program, dims={"other": {0: "rows"}}).dims] == ["rows"]
    with pytest.raises(ModelError, match="dims names axes of 'y', which is no tensor input"):
        importer.load(program, dims={"y": ("rows",)})


def test_sizes_are_outputs_too() -> None:
    def function(x: torch.Tensor) -> Any:
        return x * 2, x.shape[0], x.shape[0] * 3 + 1, 7, None

    graph = importer.load(Call(function), (X,), dims={"args_0": ("n",), "n": (1, 9)})
    leaves = graph.structure["outputs"]["tuple"]
    assert leaves == [{"leaf": 0}, {"size": 1}, {"size": 2}, {"value": 7}, {"value": None}]
    for rows in (3, 1, 7):
        doubled, size, expression = run(graph, (torch.ones(rows, 4),))
        assert doubled.shape == (rows, 4)
        assert (size.dtype, int(size), int(expression)) == (np.int64, rows, rows * 3 + 1)


def test_arithmetic_on_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        n = x.shape[0]
        half = n // 2
        return (
            x[half:] * (n - 1) / n,
            torch.arange(2 * n + 1),
            x.new_ones(n * n, torch.sym_max(n, 3)),
            x.new_zeros(n * 2 + n % 4),
            x.new_full(((n + 3) // 4 * 4,), 1.5),
        )

    ranges = {"args_0": ("n",), "n": (3, 9)}
    graph = importer.load(Call(function), (torch.ones(6, 2),), dims=ranges)
    for n in (3, 4, 7, 9):
        x = torch.randn(n, 2)
        for found, expected in zip(run(graph, (x,)), function(x), strict=True):
            assert not difference(found, expected.numpy())


def test_arithmetic_on_sizes_and_numbers() -> None:
    n = sym.var("n", 1, 9)

    def calculate(name: str, *operands: Any) -> Any:
        return TABLE[name].handler(*operands)

    assert calculate("operator.mul", n, 2.0) == n * 2
    assert calculate("operator.truediv", n * 6, 3) == n * 2
    assert calculate("math.floor", calculate("operator.truediv", 7, 2)) == 3
    assert calculate("operator.floordiv", n, -2) == sym.floordiv(n * -1, 2)
    assert calculate("operator.lt", n, 10) is True
    assert calculate("operator.eq", n, 0) is False
    undecided = calculate("operator.and_", calculate("operator.gt", n, 3), True)
    assert [undecided.holds({"n": size}) for size in (3, 4)] == [False, True]
    for name, operands in {
        "operator.mul": (n, 1.5),
        "operator.truediv": (n, 2),
        "operator.pow": (n, -1),
        "torch._sym_sqrt": (n,),
        "torch.sym_ite": (undecided, 1, 2),
    }.items():
        with pytest.raises(UnsupportedError):
            calculate(name, *operands)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"args_0": ("n",), "n": (4, 2)}, r"expected 0 <= lo <= hi, and a step of 1 or more, found \(4, 2\)"),
        ({"args_0": 2.5}, "expected a range"),
        (({0: "n"},), r"expected a mapping, as {'x': {0: 'n'}, 'n': \(1, 64\)}, found \({0: 'n'},\)"),
        ({"y": ("n",)}, "dims names axes of y; the inputs are args_0"),
        ({"args_0": {5: "n"}}, r"axis 5 is out of range for shape \[3, 4\]"),
        ({"args_0": ("n",), "n": (5, 9)}, r"has 3 elements, outside dims\['n'\] = 5..9"),
    ],
)
def test_dims_that_do_not_fit(dims: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        importer.load(Call(torch.relu), (X,), dims=dims)


def test_a_module_that_fixes_a_declared_dimension() -> None:
    with pytest.raises(ModelError, match="cannot export Call"):
        importer.load(Call(lambda x: x + torch.ones(3, 4)), (X,), dims={"args_0": ("n",), "n": (1, 9)})


def test_a_program_with_a_fixed_axis_cannot_be_made_symbolic() -> None:
    program = torch.export.export(Call(torch.relu), (X,))
    with pytest.raises(ModelError, match="exported with axis 0 fixed to 3"):
        importer.load(program, dims={"args_0": ("n",), "n": (1, 9)})


# ---- constants ------------------------------------------------------------------------------------------


def repeated(x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    count = times.item()
    torch._check(count >= 1)
    torch._check(count <= 8)
    return x.unsqueeze(0).expand(count, -1, -1) * 2


def test_an_input_that_decides_a_shape_is_a_parameter() -> None:
    times = torch.tensor(5)
    graph = importer.load(Call(repeated), (X, times), constants={"args_1": np.array(5)})
    assert [node.attr.name for node in graph.inputs] == ["args_0"]
    assert graph.structure["inputs"]["tuple"][0]["tuple"] == [{"leaf": 0}, {"fixed": "args_1"}]
    np.testing.assert_array_equal(run(graph, (X,))[0], repeated(X, times).numpy())


def test_a_number_off_a_tensor_is_a_size_within_the_bounds_that_the_model_states() -> None:
    def function(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        longest, first = lengths.max().item(), lengths[0].item()
        torch._check(longest >= 2)
        torch._check(longest <= 4)
        torch._check(first >= 0)
        torch._check(first <= 3)
        valid = torch.arange(longest)[None] < lengths[:, None]
        return x[:, :longest] * 2, valid, x[first:], longest, x.new_zeros(first)

    lengths = torch.tensor([1, 3, 2])
    others = [(X, torch.tensor(values)) for values in ([0, 2], [3, 4, 1, 1], [2, 2])]
    graph = check(function, X, lengths, others=others, dims={"n": (1, 8), "args_1": {0: "n"}})
    for wrong in ([1, 5], [1, 1]):
        with pytest.raises(IndexError, match="item"):
            run(graph, (X, torch.tensor(wrong)))


def test_rows_as_often_as_data_says() -> None:
    def function(x: torch.Tensor, times: torch.Tensor) -> Any:
        rows = torch.repeat_interleave(x, times, 0)
        torch._check(rows.shape[0] <= 12)
        return rows, torch.repeat_interleave(x, torch.tensor([2, 0, 1]), 0)

    others = [(X, torch.tensor(times)) for times in ([0, 0, 0], [4, 4, 4], [0, 5, 0])]
    graph = check(function, X, torch.tensor([1, 3, 2]), others=others)
    with pytest.raises(IndexError, match="repeat_interleave"):
        run(graph, (X, torch.tensor([5, 5, 3])))


def test_a_stated_number_of_rows_that_is_wrong_makes_the_run_fail() -> None:
    graph = check(lambda x, times: torch.repeat_interleave(x, times, 0, output_size=6), X, torch.tensor([1, 3, 2]))
    for wrong in ([1, 3, 1], [1, 3, 3]):
        with pytest.raises(IndexError, match="repeat_interleave"):
            run(graph, (X, torch.tensor(wrong)))
    with pytest.raises(UnsupportedError, match="output_size=SIZE"):
        importer.load(Call(lambda x, times: torch.repeat_interleave(x, times, 0)), (X, torch.tensor([1, 3, 2])))


def unbounded(x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    count = times.item()
    torch._check(count >= 1)
    return x.unsqueeze(0).expand(count, -1, -1)


def test_a_number_without_a_bound_is_no_size() -> None:
    with pytest.raises(UnsupportedError, match=r"torch\._check\(n <= MOST\).* fix that input with constants"):
        importer.load(Call(unbounded), (X, torch.tensor(5)))


def checked(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    torch._check((places == 1).sum().item() == x.shape[0])
    torch._check(((places < 2).all() & (x.numel() == 12)).item(), lambda: "places are too large")
    return x * places.sum().float().sqrt().item()


def test_numbers_of_fixed_inputs_are_computed_when_compiling() -> None:
    places = torch.tensor([1, 0, 1, 1])
    graph = importer.load(Call(checked), (X, places), constants={"args_1": places.numpy()})
    np.testing.assert_array_equal(run(graph, (X,))[0], checked(X, places).numpy())
    with pytest.raises(UnsupportedError, match="fix that input with constants"):
        importer.load(Call(checked), (X, places))
    with pytest.raises(ModelError, match="the model refuses"):
        importer.load(Call(checked), (X, places), constants={"args_1": np.array([1, 2, 1, 1])})


def test_a_number_that_varies_is_no_input() -> None:
    program = torch.export.export(Call(lambda x, n: x * n), (X, 5), dynamic_shapes={"args": (None, Dim.DYNAMIC)})
    with pytest.raises(UnsupportedError, match="a number that varies must come in a tensor"):
        importer.load(program)


def test_constants_that_do_not_fit() -> None:
    with pytest.raises(ModelError, match=r"constants\['args_0'\]: expected float32\[3, 4\], found float64\[2\]"):
        importer.load(Call(torch.relu), (X,), constants={"args_0": np.zeros(2)})
    with pytest.raises(ModelError, match="constants names y"):
        importer.load(Call(torch.relu), (X,), constants={"y": np.zeros(2)})


# ---- structure -----------------------------------------------------------------------------------------


def test_nested_inputs_and_outputs_are_described() -> None:
    def function(batch: dict[str, Any], rest: Any) -> Any:
        total = batch["b"] + batch["a"][0]
        return {"sum": total, "pair": Pair(total * 2, [rest, total])}

    inputs = ({"b": X, "a": (X, 3)}, X + 1)
    graph = check(function, *inputs)
    assert [node.attr.name for node in graph.inputs] == ["args_0_b", "args_0_a_0", "args_1"]
    assert [name for name, _ in graph.outputs] == ["sum", "pair_first", "pair_second_0", "pair_second_1"]
    structure = json.loads(json.dumps(graph.structure))
    assert structure["inputs"]["tuple"][0]["tuple"] == [
        {"dict": [{"leaf": 0}, {"tuple": [{"leaf": 1}, {"value": 3}]}], "keys": ["b", "a"]},
        {"leaf": 2},
    ]
    total, pair = structure["outputs"]["dict"]
    assert total == {"leaf": 0}
    assert pair["keys"] == ["first", "second"] and pair["type"].endswith(":Pair")
    assert pair["object"] == [{"leaf": 1}, {"list": [{"leaf": 2}, {"leaf": 3}]}]


def test_a_model_output_is_described_by_its_fields() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    graph = check(lambda x: BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x,)), X)
    assert [name for name, _ in graph.outputs] == ["last_hidden_state", "hidden_states_0"]
    assert graph.structure["outputs"]["type"] == "transformers.modeling_outputs:BaseModelOutput"


def test_an_input_that_is_returned_and_one_that_is_not_used() -> None:
    graph = check(lambda x, y, z: (z, x, x), X, X + 1, X + 2)
    assert len(graph.inputs) == 3


# ---- what PyTorch wraps ---------------------------------------------------------------------------------


def test_no_grad_and_autocast_regions_are_inlined() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.sin()
        with torch.autocast("cpu", enabled=False):
            z = y.float() @ x.T
        with torch.autocast("cpu", dtype=torch.bfloat16):
            w = x @ x.T
        return z + w

    check(function, X, tolerance=1e-2)


# ---- what cannot be compiled ------------------------------------------------------------------------------


class Unknown(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.erfcx(x)
        return torch.fft.rfft(y).abs() + torch.linalg.svd(y)[1].sum()


def test_everything_unsupported_is_listed_at_once() -> None:
    with pytest.raises(UnsupportedError) as raised:
        importer.load(Unknown(), (X,))
    found = {place.op: place for place in raised.value.places}
    assert {"aten.special_erfcx.default", "aten._linalg_svd.default"} <= set(found)
    place = found["aten.special_erfcx.default"]
    assert place.node == "special_erfcx" and place.operands == ("float32[3, 4]",)
    assert "test_fx_importer.py:" in place.location
    assert "aten.special_erfcx.default 'special_erfcx'(float32[3, 4])" in str(raised.value)
    assert importer.unsupported(Unknown(), (X,)) == list(raised.value.places)


def test_strides_over_an_unknown_order_are_refused() -> None:
    for view in (lambda x: x.t(), lambda x: x[1:]):
        places = importer.unsupported(Call(lambda x, v=view: torch.as_strided(v(x), (2, 2), (1, 2), 0)), (X,))
        assert [place.op for place in places] == ["aten.as_strided.default"]
        assert "not contiguous" in places[0].advice


def test_supported_models_have_nothing_to_report() -> None:
    assert importer.unsupported(Mlp().eval(), (X,)) == []


class Counter(nn.Module):
    """A count of its calls, which it adds to what it is given, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("count", torch.ones(1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count += 1
        return {"y": x.add_(self.count) if self.in_place else x + self.count}


def test_updates_of_buffers_are_states() -> None:
    graph = importer.load(Counter(in_place=False), (X,))
    (state,) = graph.states
    assert (
        state.name == "count" and state.output == "count.next" and graph.given == (ir.input_("x", X.shape, types.f32),)
    )
    assert [name for name, _ in graph.returned] == ["y"] and np.array_equal(state.initial.attr.array, [1])


def test_updates_of_inputs_are_outputs() -> None:
    graph = importer.load(Counter(in_place=True), (X.clone(),))
    assert [name for name, _ in graph.outputs] == ["y", "x.next", "count.next"]
    assert graph.structure["inputs"]["tuple"][0]["tuple"] == [{"leaf": 0, "left": 1}]


def test_what_differs_in_training_is_imported_or_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    assert not importer.unsupported(module.train(), (X,))
    with pytest.raises(UnsupportedError, match="alpha dropout is active"):
        importer.load(nn.AlphaDropout().train(), (X,))


def test_what_is_no_model() -> None:
    with pytest.raises(ModelError, match=r"expected an nn\.Module"):
        importer.load("model", (X,))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="pass example inputs"):
        importer.load(torch.fx.symbolic_trace(Mlp().eval()))
    with pytest.raises(ModelError, match=r"do not fit Mlp\.forward"):
        importer.load(Mlp().eval(), (X, X))


def test_sizes_that_the_model_refuses() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] != 5)
        return x * 2

    with pytest.raises(ModelError, match=r"the model requires not n == 5; the declared sizes allow n = 5: narrow dims"):
        importer.load(Call(function), (torch.ones(4, 4),), dims={"args_0": ("n",), "n": (1, 9)})


def test_a_refusal_says_which_bounds_to_give() -> None:
    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], 4, -1).transpose(1, 2).reshape(x.shape) + x

    x, axes = torch.arange(36.0).reshape(3, 12), {"args_0": {1: "n"}}
    message = r"not 4\*n_4 == 4; .* n_4 = 1: narrow dims to dims={'n': \(8, 64, 4\)}, --dim n=8:64:4, where n = 4\*n_4"
    with pytest.raises(ModelError, match=message):
        importer.load(Call(heads), (x,), dims={"n": (4, 64), **axes})
    graph = importer.load(Call(heads), (x,), dims={"n": (8, 64, 4), **axes})
    found = interp.run(graph, {"args_0": x.numpy()}).outputs[0]
    np.testing.assert_array_equal(found, heads(x).numpy())

    def between(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] * x.shape[1] <= 30)
        return x * 2

    axes = {"args_0": {0: "m", 1: "n"}}
    with pytest.raises(ModelError, match=r"narrow dims to dims={'m': \(1, 3\)}, --dim m=1:3"):
        importer.load(Call(between), (torch.ones(3, 4),), dims={"m": (1, 9), "n": (2, 9), **axes})


def test_axes_that_the_exporter_takes_to_be_fixed() -> None:
    """It cannot solve what a chunk asks of a size."""

    def halves(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return a * b

    x = torch.arange(24.0).reshape(3, 8)
    graph = importer.load(Call(halves), (x,), dims={"n": (4, 64), "args_0": {1: "n"}})
    assert graph.relations and "n is a multiple of 2" in graph.relations[0]
    for columns in (4, 14, 64):
        wider = torch.rand(3, columns)
        np.testing.assert_array_equal(interp.run(graph, {"args_0": wider.numpy()}).outputs[0], halves(wider).numpy())
    with pytest.raises(ModelError, match="Declare the sizes that the model allows"):
        importer.load(Call(lambda x: x[:, : int(x.shape[1])] if x.shape[1] == 8 else x), (x,),
                      dims={"n": (4, 64), "args_0": {1: "n"}})  # fmt: skip


def test_every_place_that_is_at_fault_is_listed() -> None:
    """What is refused of sizes, beside operators that are unknown and behind them."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        torch._check(x.shape[0] != 5)
        values = torch.linalg.svdvals(x)
        torch._check(y.shape[0] != 33)
        return values + 1, y * values.sum(), torch.special.bessel_j0(y * values[0])

    options: Any = {"dims": {"m": (2, 9), "n": (2, 99), "args_0": {0: "m"}, "args_1": {0: "n"}}}
    places = importer.unsupported(Call(function), (torch.rand(4, 4), torch.rand(20)), **options)
    assert sorted(place.op for place in places) == [
        "aten._assert_scalar.default", "aten._assert_scalar.default", "aten._linalg_svd.default",
        "aten.special_bessel_j0.default",
    ]  # fmt: skip
    said = "\n".join(map(str, places))
    assert "narrow dims to dims={'m': (6, 9)}" in said and "narrow dims to dims={'n': (34, 99)}" in said
    with pytest.raises(ModelError, match=r"narrow dims to dims=\{'m'"):
        importer.load(Call(function), (torch.rand(4, 4), torch.rand(20)), **options)


def test_long_sizes_in_messages_are_shortened() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for start in range(3):
            x = torch.cat([x[:, :, ::2], x[:, :, start::3]], 2)
        return torch.special.bessel_j0(x)

    dims = {"n": (64, 400), "args_0": {2: "n"}}
    (place,) = importer.unsupported(Call(function), (torch.rand(1, 2, 128),), dims=dims)
    assert " ... " in str(place) and "(of n)]" in str(place) and len(str(place)) < 320


# ---- assertions -------------------------------------------------------------------------------------------


def test_an_assertion_on_data_is_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x >= 0).all())
        torch._assert_async((x < 9).all(), "too large")
        return x.sqrt()

    places = importer.unsupported(Call(function), (X.abs(),))
    assert [place.op for place in places] == ["aten._assert_async.default", "aten._assert_async.msg"]
    assert all("data of a call" in place.advice for place in places)
    assert "'too large'" in places[1].advice


def test_an_assertion_on_what_is_known_is_decided() -> None:
    def function(x: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
        torch._assert_async((limits[0] < limits[1]).all(), "limits in order")
        torch._assert_async(torch.ones(3).sum() > 2)
        return x.clamp(limits[0], limits[1])

    def load(low: float, high: float) -> Any:
        fixed = {"args_1": np.array([low, high], np.float32)}
        return importer.load(Call(function), (X, torch.tensor([-1.0, 1.0])), constants=fixed)

    assert [node.attr.name for node in load(-1, 1).inputs] == ["args_0"]
    with pytest.raises(ModelError, match="the model's own assertion fails: limits in order"):
        load(2, 1)


def test_a_functional_assertion_is_the_same() -> None:
    handler = TABLE["aten._functional_assert_async.msg"].handler
    token = ir.constant(0.0, types.f32)
    assert handler(ir.constant(True, types.bool_), "message", token) is token
    with pytest.raises(ModelError, match="message"):
        handler(ir.constant(False, types.bool_), "message", token)
    with pytest.raises(UnsupportedError, match="'message'"):
        handler(ir.input_("x", (), types.bool_), "message", token)


@pytest.mark.parametrize("name", ["aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default"])
def test_the_range_of_a_size_is_checked(name: str) -> None:
    n = sym.var("n", 2, 9)
    constrain = TABLE[name].handler
    for size, limits in ((n, {}), (n, {"min": 2, "max": 9}), (5, {"min": 5, "max": 5})):
        constrain(size, **limits)
    with pytest.raises(ModelError, match="the declared sizes allow n = 2"):
        constrain(n, min=3)
    with pytest.raises(ModelError, match="the declared sizes allow n = 9"):
        constrain(n, max=8)
    with pytest.raises(ModelError, match="12 <= 8"):
        constrain(12, max=8)


def test_a_size_is_not_negative() -> None:
    with pytest.raises(ModelError, match="-1 >= 0"):
        TABLE["aten.sym_constrain_range_for_size.default"].handler(-1)


def test_assertions_on_metadata_hold_once_exported() -> None:
    assert TABLE["aten._assert_tensor_metadata.default"].handler(None, None, None, types.f32) is None


def test_a_traced_module_is_imported_without_export() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"sum": [x.t() + y, None], "scaled": torch.tensor(2.0) * x}

    x, y = floats(2, 3), floats(3, 1)
    graph = importer.load(make_fx(function)(x, y))
    assert [name for name, _ in graph.outputs] == ["sum_0", "scaled"]
    total, scaled = run(graph, (x, y))
    np.testing.assert_array_equal(total, x.t() + y)
    np.testing.assert_array_equal(scaled, 2 * x)
    assert graph.structure["parameters"] == ["x_1", "y_1"]


def test_a_traced_module_keeps_its_symbolic_sizes() -> None:
    traced = make_fx(lambda x: x.reshape(-1) + x.shape[0], tracing_mode="symbolic")(floats(4, 6))
    graph = importer.load(traced)
    other = floats(5, 8)
    np.testing.assert_array_equal(run(graph, (other,))[0], other.reshape(-1) + 5)


def test_a_traced_module_that_writes_in_place_needs_no_inputs() -> None:
    traced = make_fx(lambda x: x.add(1).mul_(2))(floats(2, 3))
    for inputs in (None, (floats(2, 3),)):
        found = run(importer.load(traced, inputs), (floats(2, 3),))[0]
        np.testing.assert_array_equal(found, (floats(2, 3) + 1) * 2)
