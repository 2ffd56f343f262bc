"""PyTorch's element types and rules of promotion, against PyTorch itself."""

import itertools

import numpy as np
import pytest
import torch

from luminal.core import interp, types
from luminal.core.errors import DTypeError
from luminal.core.ir import constant, input_
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import FROM_TORCH, from_torch, join, to_numpy
from luminal.frontends.fx.promotion import result_type
from tests import fx_support

WIDE_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
ORDINARY = [t for t in FROM_TORCH if t not in WIDE_UNSIGNED and t.itemsize > 0 and "float8" not in str(t)]

EIGHT_BITS = [t for t in FROM_TORCH if "float8" in str(t)]


@pytest.mark.parametrize("a", FROM_TORCH)
def test_join_is_promote_types_wherever_that_is_defined(a: torch.dtype) -> None:
    for b in FROM_TORCH:
        try:
            expected = from_torch(torch.promote_types(a, b))
        except RuntimeError:
            continue
        assert join(from_torch(a), from_torch(b)) == expected, (a, b)


def test_types_without_a_common_one() -> None:
    with pytest.raises(DTypeError, match="no common type"):
        join(types.f8e5m2, types.f8e4m3fn)


def test_result_type_over_tensors_scalar_tensors_and_numbers() -> None:
    for a, b in itertools.product(ORDINARY, repeat=2):
        if "complex" in f"{a}{b}":
            continue
        for a_rank, b_rank in itertools.product((0, 1), repeat=2):
            expected = torch.result_type(torch.ones([1] * a_rank, dtype=a), torch.ones([1] * b_rank, dtype=b))
            x, y = input_("x", [1] * a_rank, from_torch(a)), input_("y", [1] * b_rank, from_torch(b))
            assert result_type(x, y) == from_torch(expected), (a, a_rank, b, b_rank)
        for rank, number in itertools.product((0, 1), (True, 2, 2.5)):
            expected = torch.result_type(torch.ones([1] * rank, dtype=a), number)
            assert result_type(input_("x", [1] * rank, from_torch(a)), number) == from_torch(expected), (a, number)


@pytest.mark.parametrize("dtype", FROM_TORCH)
def test_arrays_keep_every_bit(dtype: torch.dtype) -> None:
    row = from_torch(dtype)
    tensor = torch.arange(24, dtype=torch.float32).reshape(2, 12).to(dtype).t()
    array = to_numpy(tensor)
    assert array.dtype == row.numpy and array.shape == (12, 2)
    assert np.array_equal(array.astype(np.complex128), tensor.to(torch.complex128).numpy())
    assert constant(array).dtype == row


def test_contiguous_tensors_share_their_memory() -> None:
    tensor = torch.zeros(4)
    to_numpy(tensor)[0] = 1
    assert tensor[0] == 1


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_eight_bits_as_pytorch_converts_to_them(dtype: torch.dtype) -> None:
    """Every float16 and integers of all sizes; beyond the largest each type has its own way."""
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    whole = torch.arange(-70000, 70000, 7)
    near = halves.float() * 1.0009765625
    check(Convert(dtype), (halves, near, halves.bfloat16(), halves.to(torch.float8_e5m2), whole, whole > 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint16], ids=str)
def test_eight_bits_are_read_exactly(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    held = [every.view(eight) for eight in EIGHT_BITS]
    if not dtype.is_floating_point:  # C leaves numbers that no integer is to the compiler
        held = [x[(x.float() >= 0) & (x.float() < 65536)] for x in held]
    check(Convert(dtype), tuple(held))


class Convert(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(self.dtype) for x in tensors]


def check(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Equal bits, but that any NaN is as good as another."""
    graph = importer.load(module, inputs)
    names = [node.attr.name for node in graph.inputs]
    found = interp.run(graph, dict(zip(names, map(to_numpy, inputs), strict=True))).outputs
    for array, expected in zip(found, map(to_numpy, module(*inputs)), strict=True):
        assert array.dtype == expected.dtype
        with np.errstate(invalid="ignore"):  # a NaN that signals
            wide, wanted = array.astype(np.float64), expected.astype(np.float64)
        same = (wide == wanted) & (np.signbit(wide) == np.signbit(wanted)) | (np.isnan(wide) & np.isnan(wanted))
        assert same.all(), [(array[i], expected[i]) for i in np.flatnonzero(~same)[:5]]


def test_a_type_that_luminal_lacks() -> None:
    with pytest.raises(DTypeError, match="complex32"):
        from_torch(torch.complex32)


MIXED = {
    "outer": lambda a, b: torch.outer(a[0], b[0]),
    "ger": lambda a, b: torch.ger(a[0], b[1]),
    "kron": torch.kron,
    "multiply": torch.multiply,
    "hypot": torch.hypot,
    "ldexp": torch.ldexp,
    "quotient": lambda a, b: torch.div(a, b + 1, rounding_mode="trunc"),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "stack": lambda a, b: torch.stack([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "remainder": lambda a, b: torch.remainder(a, b + 1),
    "copied": lambda a, b: a.clone().copy_(b),
}


@pytest.mark.parametrize("case", MIXED)
def test_operands_of_two_types_meet_where_pytorch_has_them_meet(case: str) -> None:
    floats = torch.rand(4, 4, generator=torch.Generator().manual_seed(2))
    whole = torch.arange(16).reshape(4, 4)
    operands = [floats, floats.double(), floats.half(), floats.bfloat16(), whole, whole.to(torch.uint8), floats > 0.5]
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for a, b in itertools.permutations(operands, 2):
        try:
            MIXED[case](a, b)
        except RuntimeError:  # PyTorch does not mix them
            continue
        pairs.append((a, b))
    assert len(pairs) > 5
    fx_support.check(
        lambda *both: [MIXED[case](a, b) for a, b in zip(both[::2], both[1::2], strict=True)], *itertools.chain(*pairs)
    )


VIEWED: dict[str, tuple[torch.dtype, torch.dtype]] = {
    "as wide": (torch.float32, torch.int32),
    "back": (torch.int32, torch.float32),
    "halves": (torch.float16, torch.int16),
    "narrower": (torch.float32, torch.int16),
    "bytes": (torch.bfloat16, torch.uint8),
    "bytes of integers": (torch.int64, torch.int8),
    "wider": (torch.int16, torch.float64),
    "from bytes": (torch.uint8, torch.int32),
    "words": (torch.uint8, torch.float16),
    "truth": (torch.bool, torch.uint8),
    "of eight bits": (torch.float8_e4m3fn, torch.int8),
    "to eight bits": (torch.float32, torch.float8_e5m2),
}


@pytest.mark.parametrize("case", VIEWED)
def test_bytes_are_read_as_another_type(case: str) -> None:
    source, target = VIEWED[case]
    x = torch.randint(0, 256, (3, 2, 16), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    x = x.view(source) if source is not torch.bool else x > 100
    fx_support.check(lambda x: x.view(target), x)


def test_bytes_of_complex_numbers() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        z = torch.view_as_complex(x)
        return [z.view(torch.float32), z.view(torch.int32), torch.view_as_real(x.view(torch.complex64))]

    fx_support.check(function, torch.rand(3, 4, 2))


EMPTY = {
    "means over no parts": lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 0),
    "along an axis": lambda x: torch.nn.functional.adaptive_avg_pool1d(x[0], 0),
    "along one of three": lambda x: torch.nn.functional.adaptive_avg_pool3d(x[None], (2, 0, 3)),
    "maxima": lambda x: torch.nn.functional.adaptive_max_pool2d(x, (0, 3), return_indices=True),
    "differences": lambda x: x[..., :0].diff(),
    "products": lambda x: x[:, :, :0].mT @ x[:, :, :0],
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x[:, :, :0], x[:, :, :0]),
    "sums": lambda x: x[:0].sum(0),
    "a convolution": lambda x: torch.nn.functional.conv2d(x[:0], torch.ones(2, 3, 3, 3)),
    "none of many": lambda x: x[:, torch.zeros(0, dtype=torch.int64)].amax(2),
}


@pytest.mark.parametrize("case", EMPTY)
def test_results_without_elements(case: str) -> None:
    fx_support.check(EMPTY[case], torch.rand(2, 3, 8, 8))
