"""Every line of the PyTorch table: its handler fits the schema, and an example of it agrees with PyTorch."""

from __future__ import annotations

import builtins
import inspect
import math
import operator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from luminal.core import ir, types
from luminal.core import symbolic as sym
from luminal.core.errors import UnsupportedError
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import to_numpy
from luminal.frontends.fx.export import export
from luminal.frontends.fx.importer import PLACEMENT
from luminal.frontends.fx.registry import Entry, aten_name
from luminal.frontends.fx.sizes import Condition
from luminal.frontends.fx.tables import TABLE
from tests.fx_support import check, difference, run

SCHEMAS = {
    f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}": schema
    for schema in torch._C._jit_get_all_schemas()
}
ATEN = {name: entry for name, entry in TABLE.items() if name.startswith("aten.")}

# ---- signatures -------------------------------------------------------------------------------------------------


def test_every_aten_name_is_an_operator() -> None:
    assert ATEN.keys() <= SCHEMAS.keys()


@pytest.mark.parametrize("name", ATEN)
def test_a_handler_takes_what_its_schema_says(name: str) -> None:
    """Positional arguments in the schema's order, the others by their names; and tracing leaves out arguments that
    equal the schema's defaults, so the handler's must be the same."""
    assert not _disagreements(ATEN[name], SCHEMAS[name])


def _disagreements(entry: Entry, schema: Any) -> list[str]:
    parameters = inspect.signature(entry.handler).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    takes_rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_named = any(p.kind is p.VAR_KEYWORD for p in parameters)
    found: list[str] = []
    places = iter(positional)
    for argument in schema.arguments:
        if argument.kwarg_only:
            parameter = by_name.get(argument.name)
            known = takes_named or argument.name in PLACEMENT
        else:
            parameter = next(places, None)
            known = takes_rest
        if parameter is None:
            if not known:
                found.append(f"no parameter for {argument.name}")
        elif argument.has_default_value() and not _same(argument.default_value, parameter.default):
            found.append(f"{argument.name} is {argument.default_value!r} by default, not {parameter.default!r}")
    required = [p.name for p in places if p.default is p.empty]
    return found + [f"{name} is never given" for name in required]


def _same(schema: Any, ours: Any) -> bool:
    """Whether two defaults mean the same: one number stands for as many equal ones, and an empty list for None."""
    if isinstance(schema, list):
        return (not schema and ours in (None, ())) or all(value == ours for value in schema)
    return bool(ours == schema)


# ---- examples ---------------------------------------------------------------------------------------------------


def _floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).clamp(-2, 2) * 0.45


def _whole(low: int, high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


X, Y, Z = _floats(3, 4), _floats(3, 4, seed=1), _floats(3, 4, seed=2)  # within -0.9 .. 0.9
POSITIVE = X.abs() + 1.1
SQUARE, BATCH, OTHER_BATCH = _floats(4, 4), _floats(2, 3, 4), _floats(2, 4, 5, seed=1)
ROW, ROW2, COLUMN, ONE = _floats(4), _floats(4, seed=1), _floats(3, seed=2), torch.tensor(0.5)
INTEGERS, SMALL = _whole(-9, 10, 3, 4), _whole(1, 6, 3, 4, seed=1)
ORDERED = ROW.sort()[0]
PLACES, LIST = _whole(0, 3, 2, 4), _whole(0, 3, 5)
MASK = _whole(0, 2, 3, 4).bool()
IMAGE = {axes: _floats(2, 4, *(7, 6, 5)[:axes]) for axes in (1, 2, 3)}
KERNEL = {axes: _floats(4, 2, *(3, 2, 2)[:axes], seed=1) for axes in (1, 2, 3)}
CHANNELS, CHANNELS2, VARIANCE = _floats(4), _floats(4, seed=1), _floats(4, seed=2).abs() + 0.1


def _example(*arguments: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return arguments, named


def _names(overloads: str) -> set[str]:
    return {aten_name(overload) for overload in overloads.split()}


Call = tuple[tuple[Any, ...], dict[str, Any]]

# By the overloads that take the same arguments. Trailing arguments are left out wherever the schema allows it.
POINTWISE: dict[str, Call] = {
    """acos arccos asin arcsin asinh arcsinh atan arctan atanh arctanh cos cosh erf special_erf erfc special_erfc exp
    exp2 special_exp2 expm1 special_expm1 digamma special_digamma special_psi lgamma special_gammaln
    reciprocal sigmoid special_expit sin sinh tan tanh abs absolute frac neg
    negative relu relu6 sign sgn hardsigmoid hardswish mish selu silu square isfinite isinf isnan isposinf isneginf
    logical_not ceil floor trunc fix round nan_to_num gelu hardtanh leaky_relu elu celu softplus hardshrink softshrink
    log_sigmoid glu""": _example(X),
    "signbit angle": _example(X),
    "ldexp.Tensor": _example(X, SMALL),
    "fmax fmin hypot": _example(X, Y),
    "prelu": _example(BATCH, COLUMN),
    "threshold": _example(X, 0.1, 2.0),
    "acosh arccosh log log10 log1p special_log1p log2 rsqrt sqrt": _example(POSITIVE),
    "bitwise_not": _example(INTEGERS),
    "gcd lcm": _example(INTEGERS, SMALL),
    "nextafter": _example(X, Y),
    "frexp.Tensor": _example(X),
    "round.decimals": _example(X, decimals=1),
    """atan2 arctan2 copysign.Tensor div.Tensor true_divide.Tensor divide.Tensor floor_divide fmod.Tensor maximum
    max.other minimum min.other remainder.Tensor mul.Tensor multiply.Tensor add.Tensor sub.Tensor subtract.Tensor
    rsub.Tensor eq.Tensor ge.Tensor greater_equal.Tensor gt.Tensor greater.Tensor le.Tensor less_equal.Tensor lt.Tensor
    less.Tensor ne.Tensor not_equal.Tensor logical_and logical_or logical_xor clamp.Tensor clip.Tensor clamp_min.Tensor
    clamp_max.Tensor""": _example(X, Y),
    """copysign.Scalar div.Scalar true_divide.Scalar divide.Scalar floor_divide.Scalar fmod.Scalar remainder.Scalar
    mul.Scalar multiply.Scalar add.Scalar sub.Scalar subtract.Scalar rsub.Scalar eq.Scalar ge.Scalar
    greater_equal.Scalar gt.Scalar greater.Scalar le.Scalar less_equal.Scalar lt.Scalar less.Scalar ne.Scalar
    not_equal.Scalar clamp clip clamp_min clamp_max fill.Scalar full_like""": _example(X, 0.25),
    "remainder.Scalar_Tensor": _example(0.7, X),
    "div.Tensor_mode divide.Tensor_mode": _example(X, Y, rounding_mode="floor"),
    "div.Scalar_mode divide.Scalar_mode": _example(X, 0.25, rounding_mode="trunc"),
    "pow.Tensor_Scalar": _example(POSITIVE, 1.7),
    "pow.Tensor_Tensor": _example(POSITIVE, X),
    "pow.Scalar": _example(2.5, X),
    "addcmul addcdiv": _example(X, Y, POSITIVE),
    "lerp.Scalar": _example(X, Y, 0.3),
    "lerp.Tensor": _example(X, Y, Z),
    """bitwise_and.Tensor __and__.Tensor bitwise_or.Tensor __or__.Tensor bitwise_xor.Tensor __xor__.Tensor
    bitwise_left_shift.Tensor __lshift__.Tensor bitwise_right_shift.Tensor __rshift__.Tensor""": _example(
        INTEGERS, SMALL
    ),
    """bitwise_and.Scalar __and__.Scalar bitwise_or.Scalar __or__.Scalar bitwise_xor.Scalar __xor__.Scalar
    bitwise_left_shift.Tensor_Scalar __lshift__.Scalar bitwise_right_shift.Tensor_Scalar __rshift__.Scalar""": _example(
        INTEGERS, 3
    ),
    "bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor": _example(5, INTEGERS),
    "where.self": _example(MASK, X, Y),
    "where.ScalarOther": _example(MASK, X, 0.5),
    "where.ScalarSelf": _example(MASK, 0.5, X),
    "where.Scalar": _example(MASK, 0.5, 2.0),
    "masked_fill.Scalar": _example(X, MASK, 0.5),
    "masked_fill.Tensor": _example(X, MASK, ONE),
    "dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout": _example(X, 0.5, False),
}

REDUCTIONS: dict[str, Call] = {
    """sum mean prod amax amin any all max min argmax argmin aminmax var var.correction std std.correction
    var_mean.correction linalg_vector_norm""": _example(X),
    "_is_any_true _is_all_true": _example(MASK),
    "sum.dim_IntList mean.dim logsumexp any.dims all.dims var.dim std.dim": _example(X, [1]),
    "prod.dim_int any.dim all.dim max.dim min.dim": _example(X, 1),
    "softmax.int special_softmax _safe_softmax log_softmax.int special_log_softmax": _example(X, 0),
    "cumsum cumprod cummax cummin logcumsumexp _logcumsumexp": _example(X, 0),
    "_softmax _log_softmax": _example(X, 0, False),
    "diff": _example(X),
    "dist": _example(X, Y),
    "_cdist_forward": _example(BATCH, BATCH + 1, 1.5, None),
    "_pdist_forward": _example(X),
}

ORDERS: dict[str, Call] = {
    "sort argsort msort mode median nanmedian": _example(X),
    "sort.stable argsort.stable": _example(X, stable=True),
    "topk kthvalue": _example(X, 2),
    "median.dim nanmedian.dim": _example(X, 0),
    "searchsorted.Tensor": _example(ORDERED, X),
    "searchsorted.Scalar": _example(ORDERED, 0.5),
    "bucketize.Tensor": _example(X, ORDERED),
    "bucketize.Scalar": _example(0.5, ORDERED),
    "histc histogram.bin_ct": _example(X, 5),
    "histogram.bins_tensor": _example(X, ORDERED),
    "isin.Tensor_Tensor": _example(INTEGERS, LIST),
    "isin.Tensor_Scalar": _example(INTEGERS, 2),
    "isin.Scalar_Tensor": _example(2, LIST),
}

MOVEMENT: dict[str, Call] = {
    """alias alias_copy clone contiguous detach detach_ lift lift_fresh_copy resolve_conj resolve_neg
    positive _to_copy to.dtype_layout t numpy_T t_copy mT squeeze flatten.using_ints unbind.int diagonal diagonal_copy
    unbind_copy.int slice.Tensor slice_copy.Tensor tril triu zeros_like empty_like ones_like""": _example(X),
    "to.dtype": _example(X, torch.float64),
    "to.device": _example(X, torch.device("cpu"), torch.float16),
    "type_as to.other": _example(X, INTEGERS),
    "copy view_as reshape_as expand_as": _example(X, Y),
    "view reshape _unsafe_view _reshape_copy view_copy": _example(X, [2, -1]),
    "unflatten.int": _example(X, 1, [2, -1]),
    "permute permute_copy": _example(X, [1, 0]),
    "transpose.int transpose_copy.int swapaxes swapdims movedim.int moveaxis.int": _example(BATCH, 0, 2),
    "movedim.intlist moveaxis.intlist": _example(BATCH, [0, 1], [2, 0]),
    "squeeze.dim unsqueeze": _example(X, -1),
    "squeeze.dims flip": _example(X, [0, 1]),
    "expand expand_copy": _example(X, [2, -1, -1]),
    "broadcast_tensors": _example([X, ROW]),
    "repeat tile": _example(X, [2, 3]),
    "repeat_interleave.self_int": _example(X, 2),
    "repeat_interleave.Tensor": _example(torch.tensor([2, 0, 1]), output_size=3),
    "narrow narrow_copy": _example(X, 1, 1, 2),
    "select.int select_copy.int": _example(X, 1, -2),
    "split_with_sizes split.sizes split_with_sizes_copy": _example(X, [1, 2]),
    "split.Tensor split_copy.Tensor chunk": _example(X, 2),
    "roll": _example(X, [2]),
    "unfold unfold_copy": _example(X, 1, 2, 2),
    "as_strided as_strided_copy": _example(X, [2, 3], [4, 1]),
    "cat concat concatenate stack": _example([X, Y]),
    "constant_pad_nd pad": _example(X, [1, 2]),
    "reflection_pad1d replication_pad1d": _example(X, [1, 2]),
    "reflection_pad2d replication_pad2d": _example(BATCH, [1, 2, 2, 0]),
    "reflection_pad3d replication_pad3d": _example(IMAGE[2], [1, 2, 0, 1, 2, 0]),
    "slice_scatter": _example(X, Y),
    "select_scatter": _example(X, ROW, 0, 1),
    "embedding": _example(X, PLACES),
    "_embedding_bag _embedding_bag_forward_only": _example(X, LIST, torch.tensor([0, 2, 2])),
    "index_select": _example(X, 0, LIST),
    "take_along_dim": _example(X, PLACES),
    "gather": _example(X, 0, PLACES),
    "index.Tensor _unsafe_index.Tensor": _example(X, [LIST]),
    "index_put _unsafe_index_put": _example(X, [MASK], ONE),
    "scatter.src scatter_add": _example(X, 0, PLACES, X),
    "scatter.value": _example(X, 0, PLACES, 2.5),
    "scatter.reduce": _example(X, 0, PLACES, X, reduce="add"),
    "scatter.value_reduce": _example(X, 0, PLACES, 2.0, reduce="multiply"),
    "scatter_reduce.two": _example(X, 0, PLACES, X, "amax"),
    "masked_scatter": _example(X, MASK, Y),
    "index_copy": _example(X, 0, torch.tensor([2, 0]), X[:2]),
    "as_strided_scatter": _example(X, SQUARE[:2, :3].clone(), [2, 3], [4, 1]),
    "diagonal_scatter": _example(X, ROW[:3]),
    "index_reduce": _example(X, 0, torch.tensor([1, 1]), X[:2], "amax"),
    "index_add": _example(X, 0, torch.tensor([1, 1]), X[:2]),
    "index_fill.int_Scalar": _example(X, 0, LIST, 1.5),
    "index_fill.int_Tensor": _example(X, 0, LIST, ONE),
    "put": _example(X, PLACES, Y.reshape(-1)[:8].reshape(2, 4)),
}

CREATION: dict[str, Call] = {
    "full": _example([2, 3], 4.5),
    "new_full": _example(X, [2, 3], 4.5),
    "fill.Tensor": _example(X, ONE),
    "zeros ones empty.memory_format": _example([2, 3], dtype=torch.int32),
    "new_zeros new_ones new_empty": _example(INTEGERS, [2, 3]),
    "empty_permuted": _example([2, 3], [1, 0]),
    "empty_strided": _example([2, 3], [1, 2]),
    "new_empty_strided": _example(INTEGERS, [2, 3], [1, 2]),
    "scalar_tensor": _example(3.5),
    "arange": _example(5),
    "arange.start arange.start_step": _example(1, 5),
    "eye": _example(3),
    "eye.m": _example(3, 5),
    "tril_indices triu_indices": _example(3, 5),
}

PRODUCTS: dict[str, Call] = {
    "matmul linalg_matmul mm": _example(X, SQUARE),
    "inner linear": _example(X, SQUARE),
    "bmm": _example(BATCH, OTHER_BATCH),
    "mv": _example(X, ROW),
    "dot outer ger": _example(ROW, ROW2),
    "addmm": _example(X, X, SQUARE),
    "baddbmm": _example(ONE, BATCH, OTHER_BATCH),
    "addbmm": _example(ONE, BATCH, OTHER_BATCH),
    "addmv": _example(COLUMN, X, ROW),
    "_trilinear": _example(X, OTHER_BATCH, OTHER_BATCH[0, :3], [1, 3], [0], [1, 2], [2, 3]),
    "det linalg_det _linalg_det slogdet linalg_slogdet _linalg_slogdet": _example(SQUARE),
    "einsum": _example("ij,kj->ik", [X, Y]),
    "scaled_dot_product_attention": _example(BATCH, BATCH, BATCH),
    "convolution": _example(IMAGE[2], KERNEL[2], CHANNELS, [1, 2], [1, 0], [1, 2], False, [0, 0], 2),
    "conv_transpose1d": _example(IMAGE[1], KERNEL[1]),
    **{f"conv_transpose{axes}d.input": _example(IMAGE[axes], KERNEL[axes]) for axes in (2, 3)},
    "convolution_backward": _example(
        IMAGE[2][..., :4, :5], IMAGE[2], KERNEL[2], [4], [2, 1], [1, 0], [1, 1], False, [0, 0], 2, [True, True, True]
    ),
    "col2im": _example(BATCH[:, :, :2], [2, 3], [1, 3], [1, 1], [0, 0], [1, 1]),
    "_convolution": _example(IMAGE[1], KERNEL[1], None, [2], [1], [1], False, [0], 2, False, False, False, False),
    **{f"conv{axes}d": _example(IMAGE[axes], KERNEL[axes].repeat(1, 2, *[1] * axes)) for axes in (1, 2, 3)},
    **{
        f"conv{axes}d.padding": _example(IMAGE[axes], KERNEL[axes], CHANNELS, [1], "same", [1], 2) for axes in (1, 2, 3)
    },
}

TIMED, STATE, STATE2 = _floats(5, 3, 4), _floats(1, 3, 2), _floats(1, 3, 2, seed=1)
RUN = True, 1, 0.0, False, False, False  # biases, one layer, no dropout, no training, one direction, time first

LAYERS: dict[str, Call] = {
    "layer_norm rms_norm": _example(X, [4]),
    "native_layer_norm": _example(X, [4], ROW, ROW2, 1e-3),
    "batch_norm": _example(IMAGE[1], CHANNELS, CHANNELS2, CHANNELS, VARIANCE, False, 0.1, 1e-3, False),
    "_native_batch_norm_legit_functional": _example(IMAGE[1], CHANNELS, CHANNELS2, CHANNELS, VARIANCE, True, 0.1, 1e-3),
    "_native_batch_norm_legit_no_training": _example(IMAGE[1], CHANNELS, CHANNELS2, CHANNELS, VARIANCE, 0.1, 1e-3),
    "group_norm": _example(IMAGE[1], 2),
    "native_group_norm": _example(IMAGE[1], CHANNELS, CHANNELS2, 2, 4, 7, 2, 1e-3),
    "instance_norm": _example(IMAGE[1], CHANNELS, CHANNELS2, None, None, True, 0.1, 1e-3, False),
    "_native_batch_norm_legit.no_stats": _example(IMAGE[1], CHANNELS, CHANNELS2, True, 0.1, 1e-3),
    "max_pool2d_with_indices_backward": _example(
        POSITIVE[None, None, :2, 1:], IMAGE[2][:1, :1], [2, 2], [3, 2], [0, 0], [1, 1], False, _whole(0, 42, 1, 1, 2, 3)
    ),
    "avg_pool2d_backward": _example(IMAGE[2][..., :3, :5], IMAGE[2], [3, 2], [2, 1], [0, 0], False, False, None),
    "_adaptive_avg_pool2d_backward": _example(IMAGE[2][..., :3, :4], IMAGE[2]),
    "lstm.input": _example(
        TIMED, [STATE, STATE2], [_floats(8, 4), _floats(8, 2), _floats(8), _floats(8, seed=1)], *RUN
    ),
    "gru.input": _example(TIMED, STATE, [_floats(6, 4), _floats(6, 2), _floats(6), _floats(6, seed=1)], *RUN),
    "rnn_tanh.input rnn_relu.input": _example(
        TIMED, STATE, [_floats(2, 4), _floats(2, 2), _floats(2), _floats(2, seed=1)], *RUN
    ),
    **{f"max_pool{axes}d avg_pool{axes}d": _example(IMAGE[axes], [2] * axes) for axes in (1, 2, 3)},
    **{f"max_pool{axes}d_with_indices": _example(IMAGE[axes], [2] * axes) for axes in (2, 3)},
    **{f"adaptive_avg_pool{axes}d adaptive_max_pool{axes}d": _example(IMAGE[axes], [3] * axes) for axes in (1, 2, 3)},
    **{f"_adaptive_avg_pool{axes}d": _example(IMAGE[axes], [3] * axes) for axes in (2, 3)},
}

IMAGES: dict[str, Call] = {
    **{
        f"upsample_nearest{axes}d _upsample_nearest_exact{axes}d": _example(IMAGE[axes], [9, 4, 5][:axes])
        for axes in (1, 2, 3)
    },
    **{
        f"upsample_nearest{axes}d.vec _upsample_nearest_exact{axes}d.vec": _example(IMAGE[axes], None, [1.7] * axes)
        for axes in (1, 2, 3)
    },
    "upsample_linear1d": _example(IMAGE[1], [9], False),
    "upsample_linear1d.vec": _example(IMAGE[1], None, False, [1.7]),
    "upsample_trilinear3d": _example(IMAGE[3], [9, 4, 5], False),
    "upsample_trilinear3d.vec": _example(IMAGE[3], None, False, [1.7, 0.6, 1.0]),
    "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa": _example(
        IMAGE[2], [9, 4], True
    ),
    "upsample_bilinear2d.vec upsample_bicubic2d.vec _upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec": _example(
        IMAGE[2], None, False, [1.7, 0.6]
    ),
    "grid_sampler grid_sampler_2d": _example(IMAGE[2], _floats(2, 3, 5, 2, seed=1) * 1.5, 0, 0, False),
    "grid_sampler_3d": _example(IMAGE[3], _floats(2, 3, 5, 2, 3, seed=1) * 1.5, 0, 0, False),
}

# Their further results (statistics and factors for training) are not computed.
FIRST_RESULT = _names(
    """_native_batch_norm_legit_no_training _linalg_det _linalg_slogdet _embedding_bag
    _embedding_bag_forward_only"""
)
FAMILIES = {"pointwise": POINTWISE, "reductions": REDUCTIONS, "orders": ORDERS, "movement": MOVEMENT,
            "creation": CREATION, "products": PRODUCTS, "layers": LAYERS, "images": IMAGES}  # fmt: skip
# What PyTorch leaves unwritten is zero.
UNWRITTEN = _names("empty.memory_format empty_like empty_permuted empty_strided new_empty new_empty_strided")


def by_name(family: dict[str, Call]) -> dict[str, Call]:
    return {name: call for overloads, call in family.items() for name in sorted(_names(overloads))}


def overload(name: str) -> Any:
    _, packet, kind = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), kind)


class Calls(torch.nn.Module):
    """Every call of a family; the tensors among their arguments are the inputs, in the order of ``tensors``."""

    def __init__(self, calls: dict[str, Call]) -> None:
        super().__init__()
        self.calls = calls
        leaves = [leaf for leaf in pytree.tree_leaves(list(calls.values())) if isinstance(leaf, torch.Tensor)]
        self.tensors = {id(leaf): leaf for leaf in leaves}

    def forward(self, *tensors: torch.Tensor) -> dict[str, Any]:
        given = dict(zip(self.tensors, tensors, strict=True))
        results = {}
        for name, call in self.calls.items():
            arguments, named = pytree.tree_map(lambda leaf: given.get(id(leaf), leaf), call)
            result = overload(name)(*arguments, **named)
            results[name] = result[0] if name in FIRST_RESULT else result
        return results


@pytest.mark.parametrize("family", FAMILIES)
def test_examples_agree_with_pytorch(family: str) -> None:
    calls = Calls(by_name(FAMILIES[family]))
    inputs = tuple(tensor.clone() for tensor in calls.tensors.values())
    program = export(calls, inputs)
    assert not calls.calls.keys() - {str(node.target) for node in program.graph.nodes}
    expected = calls(*inputs)
    expected |= {name: torch.zeros_like(expected[name]) for name in UNWRITTEN & expected.keys()}
    keyed = pytree.tree_flatten_with_path(expected)[0]
    wrong = [
        f"{pytree.keystr(path)}: {problem}"
        for (path, leaf), found in zip(keyed, run(importer.load(program), inputs), strict=True)
        if (problem := difference(found, to_numpy(leaf)))
    ]
    assert not wrong, "\n".join(wrong)


# ---- sizes, and what has no result ------------------------------------------------------------------------------

N = sym.var("n", 1, 9)
MANY = TABLE["operator.gt"].handler(N, 3)  # undecided
OPERANDS: dict[str, tuple[Any, ...]] = {
    """operator.add operator.sub operator.mul operator.floordiv operator.mod operator.eq operator.ne operator.lt
    operator.le operator.gt operator.ge torch.sym_max torch.sym_min""": (N * 2, 7),
    """operator.neg operator.pos torch.sym_int torch.sym_float math.ceil math.floor math.trunc
    builtins.round""": (N * 3,),
    "operator.truediv": (N * 6, 3),
    "operator.pow": (N, 2),
    "torch._sym_sqrt math.sqrt": (16,),
    "operator.and_ operator.or_": (MANY, True),
    "operator.not_ torch.sym_not": (MANY,),
    "torch.sym_ite": (True, N, 2),
    "operator.getitem": ([5, 6], 1),
}
PYTHON = {name: operands for names, operands in OPERANDS.items() for name in names.split()}


@pytest.mark.parametrize("name", PYTHON)
def test_functions_of_sizes_agree_with_python(name: str) -> None:
    module, _, function = name.rpartition(".")
    reference = getattr({"operator": operator, "math": math, "builtins": builtins, "torch": torch}[module], function)
    result = TABLE[name].handler(*PYTHON[name])
    for n in range(1, 10):
        assert _at(result, n) == reference(*(_at(operand, n) for operand in PYTHON[name]))


def _at(value: Any, n: int) -> Any:
    if isinstance(value, Condition):
        return value.holds({"n": n})
    return sym.evaluate(value, {"n": n}) if isinstance(value, sym.Expr) else value


SIZED = ir.input_("x", (N, 4), types.f32)
OF_TENSORS: dict[str, tuple[Any, Call]] = {
    "sym_size.int": (N, _example(SIZED, 0)),
    "sym_numel": (N * 4, _example(SIZED)),
    "sym_stride.int": (4, _example(SIZED, 0, contiguous=True)),
    "sym_storage_offset": (0, _example(SIZED, contiguous=True)),
    "item _local_scalar_dense": (7, _example(ir.constant(7, types.i64))),
    "lift_fresh": (SIZED, _example(SIZED)),  # programs of older versions have it
}
# Their tests are in test_fx_importer.
ASSERTIONS = _names(
    """_assert_scalar _assert_async _assert_async.msg _functional_assert_async.msg _assert_tensor_metadata
    sym_constrain_range sym_constrain_range_for_size"""
)
HIGHER = {  # tested in test_fx_control and test_grad
    "cond", "while_loop", "scan", "map_impl", "associative_scan", "wrap_with_set_grad_enabled",
}  # fmt: skip
TRAINING = _names("native_batch_norm")
SIZED = _names(
    "nonzero nonzero_numpy masked_select _unique2 unique_dim unique_consecutive nonzero_static"
)  # tested in test_fx_selection
FACTORS = _names(  # tested in test_fx_linear_algebra
    """linalg_lu_factor_ex linalg_lu lu_unpack linalg_cholesky_ex linalg_cholesky cholesky geqrf linalg_qr
    linalg_householder_product linalg_solve_triangular triangular_solve _linalg_solve_ex linalg_solve linalg_lu_solve
    linalg_inv_ex linalg_inv inverse cholesky_solve cholesky_inverse _linalg_check_errors"""
)
ELSEWHERE = {  # tested in test_fx_quantization, test_fx_vision, test_fx_types and test_fx_gradients
    name
    for name in TABLE
    if name.startswith(("quantized_decomposed.", "torchvision.", "transformers.")) or "fake_quantize" in name
} | _names(
    """_int_mm _weight_int8pack_mm _grouped_mm view.dtype view_copy.dtype _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward"""
)
RANDOM = {name for name, entry in TABLE.items() if "random" in entry.wants}  # tested in test_random


@pytest.mark.parametrize("overloads", OF_TENSORS)
def test_sizes_of_tensors(overloads: str) -> None:
    expected, (arguments, named) = OF_TENSORS[overloads]
    for name in _names(overloads):
        assert TABLE[name].handler(*arguments, **named) == expected


@pytest.mark.parametrize("name", sorted(TRAINING))
def test_training_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="evaluation mode"):
        TABLE[name].handler(SIZED, None, None, None, None, True, 0.1, 1e-5)


def test_every_line_of_the_table_has_an_example() -> None:
    examples = set().union(*map(by_name, FAMILIES.values()))
    of_tensors = set().union(*map(_names, OF_TENSORS))
    drawn = RANDOM - examples
    known = examples | of_tensors | ASSERTIONS | TRAINING | HIGHER | SIZED | FACTORS | ELSEWHERE | drawn
    assert known | PRIMS.keys() | PYTHON.keys() == TABLE.keys()


# What PyTorch's own decompositions leave behind of their primitives.
PRIMS = {"prims.convert_element_type.default": _example(X, torch.float16)}


@pytest.mark.parametrize("name", PRIMS)
def test_primitives_of_pytorch_agree(name: str) -> None:
    _, packet, kind = name.split(".")
    (x, *rest), named = PRIMS[name]
    check(lambda x: getattr(getattr(torch.ops.prims, packet), kind)(x, *rest, **named), x)
