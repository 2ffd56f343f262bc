"""Operators of the ATen table against PyTorch, a family per module, so that each family is exported once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import luminal
from luminal.frontends.fx import importer
from tests.fx_support import Call, Family, check, difference, floats, integers, run, together
from tests.torch_page import core_operators, taken_by

SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5])


def named(*names: str, of: Any = torch) -> Family:
    return {name: getattr(of, name) for name in names}


# ---- pointwise --------------------------------------------------------------------------------------

REAL = named(
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "digamma", "erf",
    "erfc", "exp", "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2",
    "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
SAME_TYPE = named("abs", "neg", "sign", "relu", "square", "ceil", "floor", "trunc", "round", "logical_not")
CLASSES = named("isnan", "isinf", "isfinite", "isposinf", "isneginf", "nan_to_num")
ACTIVATIONS: Family = {
    **named(
        "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
        "relu6", "selu", "silu", "softplus", "softshrink", "softsign", "tanhshrink", of=F,
    ),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu alpha": lambda x: F.elu(x, 0.7),
    "celu alpha": lambda x: F.celu(x, 2.0),
    "elu scaled": lambda x: torch.ops.aten.elu(x, 0.7, 1.5, 2.0),
    "softplus beta": lambda x: F.softplus(x, 2.0, 3.0),
    "softplus, negative beta": lambda x: F.softplus(x, -0.5, 3.0),
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "glu": lambda x: F.glu(x, 0),
    "prelu": lambda x: F.prelu(x, x.new_full((1,), 0.25)),
    "prelu, channels": lambda x: F.prelu(x.reshape(1, 2, -1), x.new_tensor([0.25, -2.0])),
    "prelu, a number": lambda x: F.prelu(x[0], x.new_full((1,), 0.25)),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
}  # fmt: skip


def test_functions_of_reals() -> None:
    check(together(REAL), floats(64) * 0.9)
    check(together({n: f for n, f in REAL.items() if n not in ("acos", "asin")}), floats(64).abs() * 10 + 0.1)


def test_functions_of_reals_at_special_values() -> None:
    check(together(REAL), SPECIAL)


def test_functions_of_reals_make_floats_of_integers() -> None:
    check(together(REAL), integers(-3, 4, 20), tolerance=4e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_functions_of_narrow_floats(dtype: torch.dtype) -> None:
    family = {name: f for name, f in REAL.items() if name not in ("log", "log2", "log10", "sinh", "cosh", "tan")}
    check(together({**family, **SAME_TYPE, **ACTIVATIONS}), floats(64, dtype=dtype))


def test_same_type() -> None:
    check(together({**SAME_TYPE, **CLASSES, "frac": torch.frac}), torch.cat([floats(32) * 5, SPECIAL]))
    check(together({**SAME_TYPE, "not": torch.bitwise_not}), integers(-5, 6, 12))
    check(together({**SAME_TYPE, **CLASSES}), integers(-128, 128, 64, dtype=torch.int8))


def test_round_to_decimals() -> None:
    check(lambda x: (torch.round(x, decimals=2), torch.round(x, decimals=-1)), floats(32) * 30)


def test_activations() -> None:
    check(together(ACTIVATIONS), floats(64) * 5)


def test_hardtanh_with_and_without_bounds() -> None:
    # Tracing leaves out arguments that equal the schema's defaults, which are whole numbers here.
    family: Family = {
        "none": torch.ops.aten.hardtanh,
        "whole": torch.nn.Hardtanh(-1, 1),
        "lower": lambda x: torch.ops.aten.hardtanh(x, -2),
        "upper": lambda x: torch.ops.aten.hardtanh(x, max_val=0),
        "both": lambda x: F.hardtanh(x, -0.25, 0.5),
    }
    check(together(family), torch.cat([floats(32) * 5, SPECIAL]))
    check(together(family), floats(32, dtype=torch.bfloat16))
    check(together({name: f for name, f in family.items() if name != "both"}), integers(-5, 6, 12))


def test_activations_at_special_values() -> None:
    # The products inside PyTorch's own gelu and hardswish overflow for inputs near the largest number.
    overflow = ("gelu", "gelu tanh", "hardswish")
    check(together({name: f for name, f in ACTIVATIONS.items() if name not in overflow}), SPECIAL)
    check(together({name: ACTIVATIONS[name] for name in overflow}), SPECIAL[SPECIAL.abs() < 1e4])


ARITHMETIC: Family = {
    **named("add", "sub", "mul", "div", "maximum", "minimum", "fmod", "remainder", "floor_divide"),
    "true divide": torch.true_divide,
    "divide, floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "divide, trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "add, alpha": lambda a, b: torch.add(a, b, alpha=3),
    "sub, alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "reversed sub": lambda a, b: torch.rsub(a, b),
    "max": torch.max,
    "min": torch.min,
}
SCALAR_ARITHMETIC: Family = {
    "add": lambda a: a + 2,
    "add float": lambda a: a + 0.1,
    "sub": lambda a: a - 3,
    "reversed sub": lambda a: 3 - a,
    "mul": lambda a: a * 0.1,
    "div": lambda a: a / 3,
    "reversed div": lambda a: 3.0 / (a + 0.5),
    "floor div": lambda a: a // 3,
    "remainder": lambda a: a % 3,
    "fmod": lambda a: torch.fmod(a, 3),
    "square": lambda a: a**2,
    "cube": lambda a: a**3,
    "clamp": lambda a: a.clamp(-1, 1),
    "clamp min": lambda a: a.clamp(min=0),
    "clamp max": lambda a: torch.clamp_max(a, 1),
}
COMPARISONS = named("eq", "ne", "lt", "le", "gt", "ge")


def test_arithmetic() -> None:
    check(together(ARITHMETIC), floats(5, 1, 7) * 4, floats(3, 1, seed=1))
    check(together(ARITHMETIC), integers(-9, 10, 60), integers(1, 6, 60, seed=1))
    check(together(ARITHMETIC), floats(12), integers(1, 6, 12))
    check(together(SCALAR_ARITHMETIC), floats(40) * 3)
    check(together(SCALAR_ARITHMETIC), integers(-9, 10, 40))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_arithmetic_of_narrow_floats(dtype: torch.dtype) -> None:
    simple = {name: f for name, f in ARITHMETIC.items() if "floor" not in name and name not in ("remainder", "fmod")}
    check(together(simple), floats(60, dtype=dtype), floats(60, seed=1, dtype=dtype))
    check(together(SCALAR_ARITHMETIC | named("square")), integers(-20, 20, 40).to(dtype))


def test_arithmetic_at_special_values() -> None:
    ordinary = {n: f for n, f in ARITHMETIC.items() if n not in ("add, alpha", "sub, alpha")}
    check(together(ordinary), SPECIAL[:, None], SPECIAL)


def test_mixed_types_promote_as_in_pytorch() -> None:
    scalar_tensor = torch.tensor(2.5, dtype=torch.float64)
    simple: Family = named("add", "sub", "mul", "div", "maximum")
    check(together(simple), integers(-5, 5, 8, dtype=torch.int8), integers(0, 9, 8, dtype=torch.uint8))
    check(together(simple), floats(8), scalar_tensor)
    check(together(simple), integers(0, 5, 8), scalar_tensor)
    check(together({"add": torch.add, "mul": torch.mul}), integers(0, 2, 8).bool(), integers(0, 2, 8, seed=1).bool())


def test_powers() -> None:
    exponents = (-2, -1, -0.5, 0.5, 1, 2, 3, 4, 1.7, 0)
    family: Family = {f"pow {e}": lambda a, b, e=e: torch.pow(a, e) for e in exponents}
    check(
        together({**family, "tensors": torch.pow, "base": lambda a, b: torch.pow(2.0, b)}), floats(40).abs(), floats(40)
    )
    check(lambda a: (a**2, a**3, a**4, a**0), integers(-5, 6, 20))
    check(lambda a: (a**2.0, a**0.5, a**-1.0), SPECIAL)


def test_fused_arithmetic() -> None:
    a, b, c = floats(6, 4), floats(6, 4, seed=1), floats(6, 4, seed=2) + 3
    check(
        together(
            {
                **named("addcmul", "addcdiv"),
                "addcmul, value": lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
                "addcdiv, value": lambda a, b, c: torch.addcdiv(a, b, c, value=0.5),
                "lerp": lambda a, b, c: torch.lerp(a, b, 0.3),
                "lerp tensor": lambda a, b, c: torch.lerp(a, b, c / 4),
                "atan2": lambda a, b, c: torch.atan2(a, b),
                "copysign": lambda a, b, c: torch.copysign(a, b),
            }
        ),
        a, b, c,
    )  # fmt: skip


def test_comparisons_and_logic() -> None:
    check(together(COMPARISONS), SPECIAL[:, None], SPECIAL)
    check(together(COMPARISONS), integers(-3, 4, 30), floats(30))
    check(lambda a: (a == 1, a != 1, a < 0.5, a <= 0.5, a > 1, a >= 1), integers(-3, 4, 30))
    logic = named("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")
    check(together(logic), integers(0, 4, 30), integers(0, 4, 30, seed=1))
    check(together(logic), integers(0, 2, 30).bool(), integers(0, 2, 30, seed=1).bool())
    check(together(named("logical_and", "logical_or", "logical_xor")), floats(30).round(), floats(30, seed=1).round())


def test_shifts() -> None:
    check(lambda a, b: (a << b, a >> b, a << 2, a >> 1), integers(-99, 99, 30), integers(0, 9, 30))


def test_choices() -> None:
    mask = integers(0, 2, 4, 5).bool()
    family: Family = {
        "where": torch.where,
        "where scalar": lambda m, a, b: torch.where(m, a, 0.0),
        "where reversed": lambda m, a, b: torch.where(m, 1.0, b),
        "where scalars": lambda m, a, b: torch.where(m, 1.0, 0.0),
        "masked fill": lambda m, a, b: a.masked_fill(m, -math.inf),
        "masked fill tensor": lambda m, a, b: a.masked_fill(m, b.sum()),
        "masked assignment": lambda m, a, b: _assigned(a, m),
        "clamp tensors": lambda m, a, b: torch.clamp(a, b, b + 1),
    }
    check(together(family), mask, floats(4, 5), floats(4, 5, seed=1))


def _assigned(a: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    a = a.clone()
    a[mask] = 7.0
    return a


def test_casts() -> None:
    types = (
        torch.bool,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float64,
    )
    # What a negative float becomes as an unsigned integer is undefined in PyTorch.
    check(lambda x: [x.to(t) for t in types] + [x.float(), x.type_as(x.double())], floats(40).abs() * 3)
    check(lambda x: [x.to(t) for t in types if t.is_signed], floats(40) * 3)
    check(lambda x: [x.to(t) for t in types], integers(-300, 300, 40))


# ---- reductions -------------------------------------------------------------------------------------

REDUCTIONS: Family = {
    "sum": lambda x: x.sum(),
    "sum axis": lambda x: x.sum(1),
    "sum axes": lambda x: x.sum((0, -1), keepdim=True),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin((0, 2)),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max with positions": lambda x: torch.max(x, 1),
    "min with positions": lambda x: torch.min(x, -1, keepdim=True),
    "argmax": lambda x: x.argmax(),
    "argmax axis": lambda x: x.argmax(2, keepdim=True),
    "argmin axis": lambda x: x.argmin(0),
    "any": lambda x: (x > 0).any(),
    "any axis": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -3).all(),
    "all axis": lambda x: (x > 0).all(-1, keepdim=True),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "prod": lambda x: x.prod(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: torch.cat([v.float() for v in x.cummax(1)]),
    "cummin": lambda x: torch.cat([v.float() for v in x.cummin(0)]),
    "diff": lambda x: torch.diff(x, n=2, dim=0),
}
MOMENTS: Family = {
    "mean": lambda x: x.mean(),
    "mean axes": lambda x: x.mean((0, 2)),
    "var": lambda x: x.var(),
    "var axis": lambda x: x.var(1, unbiased=False),
    "var correction": lambda x: x.var(2, correction=0, keepdim=True),
    "std": lambda x: x.std(),
    "std axis": lambda x: x.std(0),
    "var and mean": lambda x: torch.var_mean(x, 1, correction=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm 2": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, (0, 1)),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3, -1),
    "norm 0": lambda x: torch.linalg.vector_norm(x.round(), 0, -1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, math.inf, 0, keepdim=True),
    "norm -inf": lambda x: torch.linalg.vector_norm(x, -math.inf, 0),
    "normalize": lambda x: F.normalize(x, dim=1),
    "softmax": lambda x: x.softmax(1),
    "softmax last": lambda x: F.softmax(x * 50, -1),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "cosine similarity": lambda x: F.cosine_similarity(x, x.flip(0), 1),
}


ORDERS: Family = {
    "sort": lambda x: torch.sort(x),
    "sort, descending": lambda x: x.sort(1, descending=True),
    "sort, stable": lambda x: torch.sort(x.round(), stable=True, dim=0, descending=True),
    "argsort": lambda x: x.argsort(0),
    "argsort, stable": lambda x: torch.argsort(x.round(), stable=True, descending=True),
    "msort": lambda x: torch.msort(x),
    "topk": lambda x: x.topk(2),
    "topk, smallest": lambda x: x.topk(3, 0, largest=False),
    "topk, any order": lambda x: x.topk(2, sorted=False)[0].amin(-1),
    "kthvalue": lambda x: x.kthvalue(2, 1, keepdim=True),
    "median": lambda x: x.median(),
    "median axis": lambda x: x.median(1),
    "nanmedian": lambda x: x.nanmedian(),
    "nanmedian axis": lambda x: x.nanmedian(0, keepdim=True),
    "mode": lambda x: x.round().mode(1)[0],
    "quantile": lambda x: x.float().quantile(0.3, 1),
    "searchsorted": lambda x: torch.searchsorted(x.sort(-1)[0], x.flip(1), out_int32=True, side="right"),
    "searchsorted, unordered": lambda x: torch.searchsorted(x[0, 0], x[1, 0], sorter=x[0, 0].argsort()),
    "searchsorted, a number": lambda x: torch.searchsorted(x[0, 0].sort()[0], 1),
    "bucketize": lambda x: torch.bucketize(x, x.new_tensor([-1, 0, 1, 2]), right=True),
    "bucketize, a number": lambda x: torch.bucketize(0.5, x.new_tensor([-1, 0, 1, 2])),
    "isin": lambda x: torch.isin(x.round(), x.new_tensor([1, 0, 2, 0])),
    "isin, not": lambda x: torch.isin(x.round(), 1, invert=True),
    "isin, a number": lambda x: torch.isin(1, x.round()),
}


def test_orders() -> None:
    check(together(ORDERS), floats(4, 5, 6))
    whole = {name: f for name, f in ORDERS.items() if "stable" in name or name in ("msort", "mode", "isin", "median")}
    check(together(whole), integers(-4, 5, 4, 5, 6))
    special = torch.stack([SPECIAL, SPECIAL.flip(0), SPECIAL.roll(3)])
    check(lambda x: (x.sort(stable=True), x.sort(-1, True), x.topk(4), x.median(1)[0], x.nanmedian(0)[0]), special)


def test_histograms() -> None:
    x = floats(4, 50)
    x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    for dtype in (torch.float32, torch.float64):
        check(
            lambda x, weight: {
                "between numbers": torch.histc(x, 7, -1, 1.5),
                "between extremes": torch.histc(x[1:], 11),
                "of one number": torch.histc(x[1, :1].expand(3), 2),
                "around one number": torch.histogram(x[1, :1], 3),
                "of nothing": torch.histc(x[:0], 3),
                "with edges": torch.histogram(x[1:], 4),
                "weighed": torch.histogram(x, 5, range=(-2.0, 2.0), weight=weight, density=True),
                "given edges": torch.histogram(x, x.new_tensor([-1, -0.5, 0.1, 3])),
            },
            x.to(dtype),
            floats(4, 50, seed=1).abs().to(dtype),
        )
    edges = torch.linspace(-1, 1, 9)
    check(lambda x: torch.histogram(x, torch.linspace(-1, 1, 9)), torch.cat([edges, edges.nextafter(edges + 1)]))


def test_orders_of_any_length() -> None:
    dims = {"args_0": ("n", None), "n": (1, 9)}
    others = [(floats(n, 6, seed=n),) for n in (1, 2, 9)]
    check(lambda x: (x.sort(1), x.median(0)[0], x.argsort(0)), floats(4, 6), dims=dims, others=others)


def test_reductions() -> None:
    check(together(REDUCTIONS), floats(4, 5, 6))
    check(together(REDUCTIONS), integers(-4, 5, 4, 5, 6))
    check(together({**MOMENTS}), floats(4, 5, 6))


def test_a_safe_softmax_of_nothing_is_zero() -> None:
    x = floats(3, 4)
    x[1] = -math.inf
    x[2, 2:] = -math.inf
    check(lambda x: (torch.ops.aten._safe_softmax(x, -1), x[::2].softmax(-1)), x)


def test_reductions_of_narrow_floats() -> None:
    check(together({**MOMENTS, "sum": lambda x: x.sum(1)}), floats(4, 5, 6, dtype=torch.bfloat16))


def test_reductions_of_bools_and_bytes() -> None:
    check(lambda x: (x.sum(), x.sum(1), x.any(0), x.all(), x.sum(1, dtype=torch.float32)), integers(0, 2, 4, 5).bool())
    check(lambda x: (x.sum(), x.amax(0), x.prod(1)), integers(0, 200, 4, 5, dtype=torch.uint8))


def test_an_empty_list_of_axes() -> None:
    aten = torch.ops.aten
    for function in (aten.any.dims, aten.all.dims):  # these reduce nothing
        family: Family = {
            "empty": lambda x, f=function: f(x, []),
            "kept": lambda x, f=function: f(x, [], True),
            "none": lambda x, f=function: f(x, None),
        }
        check(together(family), integers(-1, 2, 3, 4))
        check(together(family), integers(0, 2, 3, 4, dtype=torch.uint8))
    others = (aten.sum.dim_IntList, aten.mean.dim, aten.amax, aten.amin, aten.var.dim, aten.std.correction)
    check(lambda x: [(f(x, []), f(x, [], keepdim=True)) for f in others], floats(3, 4))


def test_reductions_propagate_nan() -> None:
    family = {n: REDUCTIONS[n] for n in ("sum axis", "amax", "amin", "max with positions", "min with positions")}
    x = floats(4, 5, 6)
    x[1, 2, 3] = math.nan
    x[2, 0, 0] = math.inf
    check(together(family), x)


# ---- movement ---------------------------------------------------------------------------------------

MOVEMENT: Family = {
    "view": lambda x: x.view(6, -1),
    "reshape": lambda x: x.transpose(0, 1).reshape(-1),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(1, (3, -1)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, -1),
    "movedims": lambda x: x.movedim((0, 1), (1, 0)),
    "squeeze": lambda x: x[:1].squeeze(),
    "squeeze axis": lambda x: x[:, :1].squeeze(1),
    "squeeze wide axis": lambda x: x.squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1),
    "expand front": lambda x: x.expand(2, -1, -1, -1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat front": lambda x: x.repeat(2, 1, 1, 2),
    "tile": lambda x: torch.tile(x, (2, 2)),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "slice": lambda x: x[1:, :-1, ::2],
    "slice clamped": lambda x: x[:, 2:100],
    "slice empty": lambda x: x[:, 5:2],
    "select": lambda x: x[1],
    "select last": lambda x: x[..., -1],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "unbind": lambda x: x.unbind(0),
    "split": lambda x: x.split(4, 1),
    "split sizes": lambda x: x.split([1, 2, 3], 1),
    "chunk": lambda x: x.chunk(4, 1),
    "tensor_split": lambda x: torch.tensor_split(x, 4, 1),
    "diagonal": lambda x: x.diagonal(0, 0, 1),
    "diagonal offset": lambda x: torch.diagonal(x, 1, 1, 2),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "as_strided": lambda x: torch.as_strided(x.clone(), (3, 4), (5, 1), 2),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll(2, 1),
    "roll back": lambda x: torch.roll(x, (-1, 3), (0, 2)),
    "roll flat": lambda x: torch.roll(x, 5),
    "cat": lambda x: torch.cat([x, x[:, :2], x[:, 1:2]], 1),
    "cat types": lambda x: torch.cat([x.int(), x]),
    "cat empty": lambda x: torch.cat([torch.empty(0), x]),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3)),
    "pad value": lambda x: F.pad(x, (1, 2), value=1.5),
    "crop": lambda x: F.pad(x, (-1, 2, 1, -1)),
    "pad reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "pad replicate": lambda x: F.pad(x, (2, 3), mode="replicate"),
    "pad circular": lambda x: F.pad(x, (2, 3), mode="circular"),
    "crop and pad": lambda x: [
        F.pad(x, p, mode=m) for m in ("reflect", "replicate", "circular") for p in ((-1, 2), (2, -1), (-2, -1))
    ],
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "rot90": lambda x: torch.rot90(x, 1, (0, 1)),
    "pixel shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 4, 5, 6), 2),
    "channel halves": lambda x: torch.cat((-x[..., 2:], x[..., :2]), -1),
}


def test_movement() -> None:
    check(together(MOVEMENT), floats(4, 6, 5))


def test_movement_of_integers() -> None:
    check(together({n: f for n, f in MOVEMENT.items() if n != "pad value"}), integers(0, 99, 4, 6, 5))


def test_updates_in_place() -> None:
    def rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[1:3] = y
        x[0, 2] += 1
        x[:, ::2].mul_(3)
        x[..., -1] = 0
        return x

    def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.copy_(y[0])
        return x.add_(1).clamp_(-1, 1)

    check(lambda x, y: (rows(x, y), whole(x, y)), floats(4, 6), floats(2, 6, seed=1))


# ---- creation ---------------------------------------------------------------------------------------


def test_creation() -> None:
    family: Family = {
        "arange": lambda x: torch.arange(7),
        "arange step": lambda x: torch.arange(1, 10, 3),
        "arange down": lambda x: torch.arange(5, -5, -2),
        "arange float": lambda x: torch.arange(0.0, 1.0, 0.1),
        "arange type": lambda x: torch.arange(3, dtype=torch.float32),
        "full": lambda x: torch.full((2, 3), 4.5),
        "full int": lambda x: torch.full((2,), 4),
        "zeros": lambda x: torch.zeros(2, 3, dtype=torch.int32),
        "ones": lambda x: torch.ones(4),
        "full like": lambda x: torch.full_like(x, 2),
        "zeros like": lambda x: torch.zeros_like(x, dtype=torch.bool),
        "ones like": lambda x: torch.ones_like(x),
        "new ones": lambda x: x.new_ones(3),
        "new zeros": lambda x: x.new_zeros((3, 2), dtype=torch.int64),
        "new full": lambda x: x.new_full((2,), 7),
        "eye": lambda x: torch.eye(3),
        "eye wide": lambda x: torch.eye(3, 5),
        "scalar": lambda x: torch.tensor(3.5) + x,
        "literal": lambda x: torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "one hot": lambda x: F.one_hot(torch.tensor([1, 0, 2]), 4),
        "linspace": lambda x: torch.linspace(0, 1, 5),
        "fill": lambda x: x.clone().fill_(3),
        "mask": lambda x: torch.ones(4, 4, dtype=torch.bool).tril(),
    }
    check(together(family), floats(3, 4))


# ---- positions --------------------------------------------------------------------------------------


def test_positions() -> None:
    table = floats(7, 5)
    ids = integers(0, 7, 2, 3)
    family: Family = {
        "embedding": lambda t, i: F.embedding(i, t),
        "index_select": lambda t, i: t.index_select(0, i[0]),
        "index_select last": lambda t, i: t.index_select(1, i[0] % 5),
        "gather": lambda t, i: t.gather(1, i % 5),
        "take_along_dim": lambda t, i: torch.take_along_dim(t[:2], i % 5, 1),
        "index": lambda t, i: t[i],
        "index negative": lambda t, i: t[i - 7],
        "index two": lambda t, i: t[i, i % 5],
        "index column": lambda t, i: t[:, i[0] % 5],
        "index apart": lambda t, i: t.reshape(7, 5, 1)[i[0], :, torch.zeros_like(i[0])],
        "index broadcast": lambda t, i: t[i[:, :1], (i % 5)[:1]],
        "positions": lambda t, i: t[torch.arange(2)[:, None], torch.arange(3)],
    }
    check(together(family), table, ids)


def test_writing_at_positions() -> None:
    table, new = floats(7, 5), floats(2, 3, seed=1)
    rows = floats(3, 5, seed=2)
    ids = integers(0, 5, 2, 3)
    family: Family = {
        "scatter": lambda t, n, r, i: t.scatter(1, i[:1], n),
        "scatter_value": lambda t, n, r, i: t.scatter(0, i, 2.5),
        "scatter_reduce": lambda t, n, r, i: t.scatter(0, i, n, reduce="add"),
        "scatter_value_reduce": lambda t, n, r, i: t.scatter(0, i, 3, reduce="multiply"),
        "scatter_add": lambda t, n, r, i: t.scatter_add(0, i, n),
        "scatter_reduce mean": lambda t, n, r, i: t.scatter_reduce(0, i, n, "mean", include_self=False),
        "scatter_reduce amin": lambda t, n, r, i: t.scatter_reduce(1, i, n, "amin"),
        "index_copy": lambda t, n, r, i: t.index_copy(0, torch.arange(4, 1, -1), r),
        "index_add": lambda t, n, r, i: t.index_add(0, i[0], r, alpha=2),
        "index_fill": lambda t, n, r, i: t.index_fill(1, i[0], 7),
        "index_fill tensor": lambda t, n, r, i: t.index_fill(0, i[1], r[0, 0]),
        "put": lambda t, n, r, i: t.put(i, n, accumulate=True),
        "index_put": lambda t, n, r, i: t.index_put((i[0] + 1,), r, accumulate=True),
        "index_put two": lambda t, n, r, i: t.index_put((i, i), n, accumulate=True),
        "assignment": lambda t, n, r, i: assigned(t, (i[0, :1], slice(2, None)), 1.5),
        "assignment to columns": lambda t, n, r, i: assigned(t, (slice(None), i[0]), n[0]),
    }
    check(together(family), table, new, rows, ids)


def assigned(t: torch.Tensor, at: Any, value: torch.Tensor | float) -> torch.Tensor:
    t = t.clone()
    t[at] = value
    return t


MASK = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_writing_where_a_mask_holds(dtype: torch.dtype) -> None:
    def put(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor, accumulate: bool) -> torch.Tensor:
        return torch.ops.aten.index_put(x, [mask], values, accumulate)

    def function(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        rows, flags = values.reshape(2, 4)[:, :1], mask[:, 0]
        forms = {
            "each its own": lambda by: put(x, mask, values[:6], by),
            "one for all": lambda by: put(x, mask, values[:1], by),
            "rows": lambda by: put(x, flags, values.reshape(2, 4), by),
            "a row for all": lambda by: put(x, flags, values[:4], by),
            "numbers along rows": lambda by: put(x, flags, rows, by),
            "no axis": lambda by: put(x, flags, values[0], by),
        }
        found = {f"{name}, {by}": form(by) for name, form in forms.items() for by in (False, True)}
        return found | {"scattered": x.masked_scatter(mask, values), "along rows": x.masked_scatter(flags[:, None], x)}

    check(function, integers(0, 2, 3, 4).to(dtype), MASK, integers(0, 3, 8, seed=1).to(dtype))


def test_positions_without_axes() -> None:
    def function(x: torch.Tensor, vector: torch.Tensor, place: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "a number at positions": x.gather(0, place), "a position of a vector": vector.gather(0, place[0]),
            "no positions": vector.gather(0, torch.empty(2, 0, dtype=torch.int64)), "windows": x.unfold(0, 1, 1),
            "no windows": x.unfold(0, 0, 1), "of nothing": vector[:0].prod(),
            "reduced": x.index_reduce(0, place, vector[0], "prod"), "flipped": x.flip(0), "moved": x.movedim(0, -1),
        }  # fmt: skip

    check(function, floats(), floats(4), torch.tensor([0]))


def test_sums_and_products_of_truth_values_at_positions() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
        flipped = x.logical_not()
        return [x.scatter_add(0, index, flipped), x.scatter_reduce(0, index, flipped, "prod", include_self=False)]

    check(function, MASK, integers(0, 3, 3, 4))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_ranges_of_integers_with_fractions(dtype: torch.dtype) -> None:
    ranges = ((0, 5.9, 2.6), (-0.5, 4, 1.5), (5, -1, -1.5), (-2.7, 2.9, 1.0))
    check(lambda x: [x + torch.arange(*bounds, dtype=dtype).sum() for bounds in ranges], integers(0, 9, 2))


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.7, 2, 3, math.inf])
def test_distances(p: float) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        nothing = torch.cdist(x[..., :0], y[..., :0], p)
        return [torch.cdist(x, y, p), F.pdist(x[0], p), torch.dist(x, y[:, :3], p), nothing]

    check(function, floats(2, 3, 4), floats(2, 5, 4, seed=1), tolerance=4e-6)


def test_triangles_diagonals_and_numbers_beside_nan() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {
            "fmax": x.fmax(y), "fmin": x.fmin(y), "hypot": x.hypot(y), "signbit": x.signbit(), "angle": x.angle(),
            "diagonals": [torch.diagonal_scatter(x.reshape(2, 7), y[: n], k) for k, n in ((0, 2), (3, 2), (-1, 1))],
            "of the last axes": torch.diagonal_scatter(x.reshape(2, 7, 1), y[:2].reshape(1, 2), 0, 1, 0),
            "below": torch.tril_indices(3, 5, 1), "above": torch.triu_indices(4, 2, -1),
        }  # fmt: skip

    check(function, SPECIAL, SPECIAL.flip(0))
    check(lambda x, y: (torch.hypot(x, y), x.signbit()), floats(9) * 1e38, floats(9, seed=1) * 1e38)


# ---- contractions -----------------------------------------------------------------------------------


def test_matrix_products() -> None:
    a, b = floats(4, 6), floats(6, 5, seed=1)
    check(lambda a, b: (a @ b, torch.mm(a, b), a[0] @ b, a @ b[:, 0], a[0] @ b[:, 0], torch.outer(a[0], b[0])), a, b)
    bias = floats(5, seed=2)
    check(
        lambda a, b, c: (
            torch.addmm(c, a, b),
            torch.addmm(c, a, b, beta=0.5, alpha=2),
            F.linear(a, b.t(), c),
            F.linear(a, b.t()),
            F.linear(a[0], b.t(), c),
        ),
        a, b, bias,
    )  # fmt: skip
    x, y = floats(2, 3, 4, 6), floats(3, 6, 5, seed=1)
    check(lambda x, y: (x @ y, torch.bmm(x[0], y), torch.baddbmm(x[0] @ y, x[1], y)), x, y)


def test_a_sum_of_matrix_products() -> None:
    a, b, c = floats(2, 3, 4), floats(2, 4, 5, seed=1), floats(3, 5, seed=2)
    check(
        lambda a, b, c: (
            torch.addbmm(c, a, b),
            torch.addbmm(c, a, b, beta=0.5, alpha=2),
            torch.addbmm(c[0], a, b, beta=0),
            torch.addbmm(c.half(), a.half(), b.half()),
        ),
        a, b, c,
    )  # fmt: skip
    check(torch.addbmm, *(integers(-9, 10, *x.shape) for x in (c, a, b)))


def test_inner_products_pair_the_last_axes() -> None:
    a, b, square = floats(3, 4), floats(2, 5, 4, seed=1), floats(4, 4, seed=2)
    check(
        lambda a, b, square: (
            torch.inner(a, square),
            torch.inner(a, b),
            torch.inner(b, a[0]),
            torch.inner(a[0], square),
            torch.inner(a[0], a[1]),
            torch.inner(a, b[0, 0, 0]),
            torch.inner(b[0, 0, 0], b[0, 0, 1]),
        ),
        a, b, square,
    )  # fmt: skip


def test_einsum() -> None:
    x, y = floats(2, 3, 4), floats(2, 4, 5, seed=1)
    equations = ("bij,bjk->bik", "bij,bjk->ki", "bij,bjk->", "bij,bjk", "bij,cjk->bc", "...ij,...jk->...ik")
    check(lambda x, y: [torch.einsum(e, x, y) for e in equations], x, y)
    check(lambda x: [torch.einsum(e, x) for e in ("bij->bji", "bij->j", "...j->j...", "bij")], x)
    check(lambda x: [torch.einsum(e, x) for e in ("bii->bi", "bii->b", "bii")], floats(2, 3, 3))
    check(lambda x, y: torch.einsum("bij,bjk,bkl,il->bl", x, y, y.mT, x[0]), x, y, tolerance=1e-5)


CONVOLUTIONS = {
    "plain": ((2, 4, 9, 8), (6, 4, 3, 3), {}),
    "strided": ((2, 4, 9, 8), (6, 4, 3, 2), {"stride": (2, 1), "padding": (1, 2)}),
    "dilated": ((1, 4, 12, 11), (6, 4, 3, 3), {"dilation": 2, "padding": 1}),
    "grouped": ((2, 4, 9, 8), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((2, 4, 9, 8), (4, 1, 3, 3), {"groups": 4}),
    "same": ((2, 4, 9, 8), (6, 4, 4, 3), {"padding": "same"}),
    "unbatched": ((4, 9, 8), (6, 4, 1, 1), {}),
    "one axis": ((2, 4, 9), (6, 4, 3), {"stride": 2}),
    "three axes": ((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"padding": 1}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case: str) -> None:
    x_shape, w_shape, options = CONVOLUTIONS[case]
    function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(w_shape)]
    inputs = floats(*x_shape), floats(*w_shape, seed=1), floats(w_shape[0], seed=2)
    check(lambda x, w, b: (function(x, w, b, **options), function(x, w, **options)), *inputs)


TRANSPOSED = {
    "plain": ((2, 4, 5, 6), (4, 3, 3, 2), {}),
    "strided": ((2, 4, 5, 6), (4, 3, 3, 2), {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)}),
    "dilated": ((1, 4, 5, 6), (4, 3, 3, 3), {"dilation": (2, 3), "stride": 2, "padding": 2}),
    "grouped": ((2, 4, 5, 6), (4, 3, 3, 3), {"groups": 2, "stride": 2, "padding": 1, "output_padding": 1}),
    "unbatched": ((4, 5, 6), (4, 3, 2, 2), {"stride": 2}),
    "one axis": ((2, 4, 9), (4, 3, 4), {"stride": 2, "padding": 1}),
    "three axes": ((1, 2, 3, 4, 2), (2, 3, 2, 3, 2), {"stride": 2, "padding": (0, 1, 0)}),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolution(case: str) -> None:
    x_shape, w_shape, options = TRANSPOSED[case]
    function = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[len(w_shape)]
    inputs = floats(*x_shape), floats(*w_shape, seed=1), floats(w_shape[1] * options.get("groups", 1), seed=2)
    check(lambda x, w, b: (function(x, w, b, **options), function(x, w, **options)), *inputs)


def test_transposed_convolution_of_core_aten_and_of_any_size() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution(x, w, None, [2, 1], [1, 0], [1, 2], True, [1, 0], 1)

    w = floats(4, 3, 3, 2, seed=1)
    sizes = [(floats(2, 4, n, 6), w) for n in (2, 5, 9)]
    check(function, *sizes[0], dims={"args_0": (None, None, "height", None), "height": (1, 9)}, others=sizes[1:])


FOLDS: Family = {
    "apart": lambda x: F.fold(x[:, :, :6], (4, 6), (2, 2), stride=2),
    "overlapping": lambda x: F.fold(x, (4, 5), (2, 2)),
    "padded, dilated": lambda x: F.fold(x[0, :, :9], (6, 5), (2, 2), dilation=(3, 2), padding=(1, 1), stride=(2, 2)),
}


def test_fold() -> None:
    check(together(FOLDS), floats(2, 8, 12))


def test_attention() -> None:
    q, k, v = floats(2, 4, 5, 8), floats(2, 4, 7, 8, seed=1), floats(2, 4, 7, 6, seed=2)
    mask = integers(0, 2, 2, 1, 5, 7).bool()
    mask[..., 0] = True
    attend = F.scaled_dot_product_attention
    check(
        lambda q, k, v, mask: (
            attend(q, k, v),
            attend(q, k, v, is_causal=True),
            attend(q, k, v, attn_mask=mask),
            attend(q, k, v, attn_mask=mask.float() * -3, scale=0.7),
            attend(q, k[:, :2], v[:, :2], enable_gqa=True),
            attend(q, k[:, :2], v[:, :2], attn_mask=mask, enable_gqa=True),
        ),
        q, k, v, mask,
    )  # fmt: skip


# ---- layers -----------------------------------------------------------------------------------------


def test_normalisation() -> None:
    x, scale, shift = floats(3, 4, 6) * 2 + 1, floats(6, seed=1), floats(6, seed=2)
    family: Family = {
        "layer": lambda x, w, b: F.layer_norm(x, (6,), w, b),
        "layer, two axes": lambda x, w, b: F.layer_norm(x, (4, 6)),
        "rms": lambda x, w, b: F.rms_norm(x, (6,), w, 1e-5),
        "rms, default": lambda x, w, b: F.rms_norm(x, (6,)),
        "group": lambda x, w, b: F.group_norm(x.transpose(1, 2), 3, w, b),
        "instance": lambda x, w, b: F.instance_norm(x.transpose(1, 2), weight=w, bias=b),
        "batch": lambda x, w, b: F.batch_norm(x.transpose(1, 2), w, b.exp(), b, w),
        "of the batch": lambda x, w, b: F.batch_norm(x.transpose(1, 2), None, None, w, b, training=True, eps=0.01),
        "local response": lambda x, w, b: F.local_response_norm(x, 3),
    }
    check(together(family), x, scale, shift, tolerance=4e-6)


POOLING: Family = {
    "max": lambda x: F.max_pool2d(x, 3),
    "max, strided": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max, dilated": lambda x: F.max_pool2d(x, 2, (1, 2), dilation=2),
    "max, ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "average": lambda x: F.avg_pool2d(x, 3),
    "average, padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average, without padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average, ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average, divisor": lambda x: F.avg_pool2d(x, 3, divisor_override=5),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive to one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive, one axis kept": lambda x: F.adaptive_avg_pool2d(x, (None, 2)),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "one axis": lambda x: (F.max_pool1d(x[0], 2), F.avg_pool1d(x[0], 2, 1), F.adaptive_avg_pool1d(x[0], 3)),
    "three axes": lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 2), F.adaptive_avg_pool3d(x, 2)),
}


def test_pooling() -> None:
    check(together(POOLING), floats(2, 3, 10, 9))


def test_positions_of_maxima() -> None:
    x = integers(-2, 3, 2, 3, 10, 9, dtype=torch.float32)  # many equals
    x[:, :, 2:4, 2:5] = math.nan
    x[:, :, 6:, 5:] = -math.inf
    family: Family = {
        "plain": lambda x: F.max_pool2d(x, 3, return_indices=True),
        "padded": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        "ceil, dilated": lambda x: F.max_pool2d(x, 2, (1, 2), dilation=3, ceil_mode=True, return_indices=True),
        "one axis": lambda x: F.max_pool1d(x[0], 4, 3, 2, return_indices=True),
        "three axes": lambda x: F.max_pool3d(x, 2, return_indices=True),
        "adaptive": lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
        "adaptive, others": lambda x: (
            F.adaptive_max_pool1d(x[0], 2, return_indices=True),
            F.adaptive_max_pool3d(x, (2, 5, 4), return_indices=True),
        ),
    }
    check(together(family), x)


def test_determinants() -> None:
    x = floats(2, 3, 4, 4)
    x[0, 0, 0] = 0
    x[0, 1, 0, 0] = 0
    x[1, 1] *= 1e3
    x[1, 2] *= 1e12  # its determinant is beyond float32
    check(lambda x: (torch.linalg.det(x), torch.det(x[0, 1, :3, :3])), x[:, :2])
    check(lambda x: (torch.linalg.slogdet(x), torch.logdet(x @ x.mT), torch.det(x[:, :, :0, :0])), x)


def test_running_logarithms_of_sums() -> None:
    x = floats(6, 12) * 40
    x[0, :3] = -math.inf
    x[1, 4], x[1, 8] = math.inf, -math.inf
    x[2, 5] = math.nan
    x[3, 2:4] = math.inf
    check(lambda x: (x.logcumsumexp(1), x[4:].logcumsumexp(0), (x[4] / 40).half().logcumsumexp(-1)), x)


# ---- the forms that PyTorch's own decomposition leaves ------------------------------------------------


class Core(torch.nn.Module):
    """A little of everything that decomposes into core ATen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.batch_norm = torch.nn.BatchNorm2d(8)
        self.layer_norm = torch.nn.LayerNorm(8)
        self.group_norm = torch.nn.GroupNorm(2, 8)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        x = F.max_pool2d(F.gelu(self.batch_norm(self.conv(x))), 2)
        x = self.group_norm(F.hardswish(x))
        tokens = self.linear(self.layer_norm(x.flatten(2).transpose(1, 2)))
        heads = tokens.unflatten(2, (2, 4)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        return attended, F.adaptive_avg_pool2d(x, 1), F.log_softmax(tokens, -1), torch.var_mean(F.silu(tokens), 1)


def test_core_aten_forms() -> None:
    module = Core().eval()
    module.batch_norm.running_mean.normal_()
    module.batch_norm.running_var.uniform_(0.5, 2)
    mask = integers(0, 2, 2, 1, 9, 9).bool()
    mask[:, :, 4] = False  # a row that attends to nothing gives zeros
    inputs = floats(2, 3, 12, 12), mask
    program = torch.export.export(module, inputs).run_decompositions()
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"aten.convolution.default", "aten.native_layer_norm.default", "aten._softmax.default"} <= targets
    graph = importer.load(program)
    with torch.no_grad():
        expected = module(*inputs)
    for found, reference in zip(run(graph, inputs), pytree.tree_leaves(expected), strict=True):
        assert not difference(found, reference.numpy(), 4e-6)


def test_every_core_operator_is_taken() -> None:
    assert {taken_by(name) for name in core_operators()} == {"table", "complex", "rules"}


def _by_groups(gradient: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    moments = x.mean((1, 2))[:, None]
    rows, channels, length = x.shape
    return torch.ops.aten.native_group_norm_backward(
        gradient, x, moments, 1 / (moments.abs() + 1), torch.ones(channels), rows, channels, length, 1, [True] * 3
    )


def _normalised(x: torch.Tensor) -> torch.Tensor:
    zeros, ones = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
    return torch.ops.aten._native_batch_norm_legit(x, ones, zeros, zeros.clone(), ones.clone(), True, 0.1, 1e-5)[0]


BY_RULES = {
    "embedding_dense_backward": (
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 10, -1, False),
        (floats(3, 4), torch.tensor([1, 2, 2])),
    ),
    "native_layer_norm_backward": (
        lambda g, x: torch.ops.aten.native_layer_norm_backward(
            g, x, [5], x.mean(-1, True), 1 / x.std(-1, keepdim=True), torch.ones(5), torch.zeros(5), [True] * 3
        ),
        (floats(2, 6, 5), floats(2, 6, 5)),
    ),
    "native_group_norm_backward": (_by_groups, (floats(2, 6, 5), floats(2, 6, 5))),
    "_native_batch_norm_legit": (_normalised, (floats(2, 6, 5),)),
    "atan2.out": (lambda x, y: torch.atan2(x, y, out=torch.empty(7)), (floats(7), floats(7))),
}


@pytest.mark.parametrize("name", BY_RULES)
def test_what_pytorch_s_rules_decompose(name: str) -> None:
    function, inputs = BY_RULES[name]
    found = run(luminal.read(Call(function), inputs), inputs)
    for value, reference in zip(found, pytree.tree_leaves(function(*inputs)), strict=True):
        assert not difference(value, reference.numpy(), 4e-6)
