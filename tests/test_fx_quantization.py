"""PyTorch's quantisation and grouped products, against PyTorch itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed

import luminal
from luminal.core.errors import UnsupportedError
from luminal.frontends.fx import importer
from tests.fx_support import check, floats, integers

Q = torch.ops.quantized_decomposed
X = floats(6, 8) * 3
BYTES = integers(-128, 128, 6, 8, dtype=torch.int8)
SCALES = torch.rand(6, generator=torch.Generator().manual_seed(1)) + 0.01
ZEROS = integers(-5, 5, 6)
SCALE, ZERO = torch.tensor(0.07), torch.tensor(3)
COLUMN, OFFSET = SCALES[:, None].double(), ZEROS[:, None]

PT2E: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "quantize": (lambda x: Q.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8), (X,)),
    "quantize to unsigned": (lambda x: Q.quantize_per_tensor(x, 0.013, 120, 3, 250, torch.uint8), (X,)),
    "quantize to 16 bits": (lambda x: Q.quantize_per_tensor(x, 0.001, 0, -2000, 2000, torch.int16), (X,)),
    "quantize halves": (lambda x: Q.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8), (X.half(),)),
    "quantize by tensors": (
        lambda x, s, z: Q.quantize_per_tensor.tensor(x, s, z, -128, 127, torch.int8), (X, SCALE, ZERO),
    ),
    "quantize by vectors": (
        lambda x, s, z: Q.quantize_per_tensor.tensor(x, s, z, -128, 127, torch.int8),
        (X, SCALE.double()[None], ZERO[None]),
    ),
    "quantize within tensors": (
        lambda x, s, z, a, b: Q.quantize_per_tensor.tensor2(x, s, z, a, b, torch.int8),
        (X, SCALE, ZERO, torch.tensor(-100), torch.tensor(90)),
    ),
    "dequantize": (lambda x: Q.dequantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8), (BYTES,)),
    "dequantize to bfloat16": (
        lambda x: Q.dequantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8, out_dtype=torch.bfloat16), (BYTES,),
    ),
    "dequantize by tensors": (
        lambda x, s, z: Q.dequantize_per_tensor.tensor(x, s, z, -128, 127, torch.int8), (BYTES, SCALE, ZERO),
    ),
    "channels": (lambda x, s, z: Q.quantize_per_channel(x, s, z, 0, -128, 127, torch.int8), (X, SCALES, ZEROS)),
    "last channels": (
        lambda x, s, z: Q.quantize_per_channel(x, s, z, 1, -128, 127, torch.int8), (X.t(), SCALES, ZEROS),
    ),
    "dequantize channels": (
        lambda x, s, z: Q.dequantize_per_channel(x, s, z, 0, -128, 127, torch.int8), (BYTES, SCALES, ZEROS),
    ),
    "dequantize without zero points": (
        lambda x, s: Q.dequantize_per_channel(x, s, None, 0, -128, 127, torch.int8), (BYTES, SCALES),
    ),
    "dequantize channels by doubles": (
        lambda x, s, z: Q.dequantize_per_channel(x, s, z, 0, -128, 127, torch.int8),
        (BYTES, SCALES.double(), ZEROS.int()),
    ),
    "tokens": (lambda x, s, z: Q.quantize_per_token(x, s, z, -128, 127, torch.int8), (X, COLUMN, OFFSET)),
    "tokens by floats": (
        lambda x, s, z: Q.quantize_per_token(x, s, z, -128, 127, torch.int8), (X, COLUMN.float(), OFFSET.float()),
    ),
    "dequantize tokens": (
        lambda x, s, z: Q.dequantize_per_token(x, s, z, -128, 127, torch.int8, torch.float32), (BYTES, COLUMN, OFFSET),
    ),
    "groups": (
        lambda x, s, z: Q.quantize_per_channel_group(x, s, z, -8, 7, torch.int8, 4),
        (X, SCALES.repeat(2).reshape(6, 2), ZEROS.repeat(2).reshape(6, 2)),
    ),
    "dequantize groups": (
        lambda x, s, z: Q.dequantize_per_channel_group(x, s, z, -8, 7, torch.int8, 4, torch.float32),
        (BYTES, SCALES.repeat(2).reshape(6, 2), ZEROS.repeat(2).reshape(6, 2)),
    ),
    "choose": (lambda x: Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8), (X + 4,)),
    "choose below zero": (lambda x: Q.choose_qparams.tensor(x, 0, 255, 1e-5, torch.uint8), (X - 20,)),
    "choose for zeros": (lambda x: Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8), (X * 0,)),
    "choose for halves": (lambda x: Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8), (X.half(),)),
    "choose symmetric": (lambda x: Q.choose_qparams_symmetric.tensor(x, -127, 127, 1e-5, torch.int8), (X,)),
    "choose symmetric unsigned": (lambda x: Q.choose_qparams_symmetric.tensor(x, 0, 255, 1e-5, torch.uint8), (X,)),
    "choose for tokens": (lambda x: Q.choose_qparams_per_token_asymmetric(x, torch.int8), (X,)),
    "choose for tokens, symmetric": (lambda x: Q.choose_qparams_per_token(x, torch.int8), (X,)),
    "fake channels": (lambda x, s, z: Q.fake_quant_per_channel(x, s, z, 0, -8, 7), (X, SCALES, ZEROS)),
    "convert": (lambda x: Q.convert_element_type.no_fuse(x, torch.float64), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("case", PT2E)
def test_operators_of_pt2e(case: str) -> None:
    function, inputs = PT2E[case]
    check(function, *inputs)


fake = torch.fake_quantize_per_tensor_affine
fake_channels = torch.fake_quantize_per_channel_affine
SPECIAL = torch.tensor([float("inf"), -float("inf"), 1e9, -1e9, 0.05, -0.05, 0.15])
FAKE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "numbers": (lambda x: fake(x, 0.1, 0, -128, 127), (X * 5,)),
    "a zero point": (lambda x: fake(x, 0.37, 7, 0, 255), (X,)),
    "tensors": (lambda x, s, z: fake(x, s, z, -128, 127), (X, SCALE, ZERO.int())),
    "channels": (lambda x, s, z: fake_channels(x, s, z, 0, -8, 7), (X, SCALES, ZEROS.int())),
    "last channels": (lambda x, s, z: fake_channels(x, s, z, 1, -8, 7), (X.t(), SCALES, ZEROS.int())),
    "mask": (lambda x: torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 0, -8, 7), (X,)),
    "far away": (lambda x: fake(x, 0.1, 0, -128, 127), (SPECIAL[2:],)),
    "learnable": (
        lambda x, s, z: torch._fake_quantize_learnable_per_tensor_affine(x, s, z, -8, 7, 1.0),
        (X, SCALE[None], torch.tensor([1.4])),
    ),
    "learnable channels": (
        lambda x, s, z: torch._fake_quantize_learnable_per_channel_affine(x, s, z, 0, -8, 7, 1.0),
        (X, SCALES, ZEROS + 0.5),
    ),
}


@pytest.mark.parametrize("case", FAKE)
def test_quantisation_that_is_undone_at_once(case: str) -> None:
    function, inputs = FAKE[case]
    check(function, *inputs)


GROUPED: dict[str, tuple[torch.Tensor, torch.Tensor, list[int]]] = {
    "rows": (floats(16, 32), floats(3, 32, 16), [5, 5, 16]),
    "few rows": (floats(2, 32), floats(4, 32, 16), [0, 1, 1, 2]),
    "rows transposed": (floats(16, 32), floats(3, 16, 32).transpose(1, 2), [4, 9, 16]),
    "columns": (floats(3, 16, 32), floats(32, 16), [4, 8, 16]),
    "terms": (floats(16, 32), floats(32, 16), [8, 8, 24, 32]),
}


@pytest.mark.parametrize("case", GROUPED)
def test_grouped_products(case: str) -> None:
    """PyTorch exports them of bfloat16 alone."""
    a, b, ends = GROUPED[case]
    a, b = a.bfloat16(), b.bfloat16()
    offsets = torch.tensor(ends, dtype=torch.int32)
    moved = torch.tensor([*(min(ends[-1], end + 1) for end in ends[:-1]), ends[-1]], dtype=torch.int32)

    def product(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(a, b, offs=offs)

    check(product, a, b, offsets, others=[(a, b, moved)])


def test_grouped_products_of_transformers() -> None:
    moe = pytest.importorskip("transformers.integrations.moe")
    assert moe
    product = torch.ops.transformers.grouped_mm_fallback
    check(product, floats(16, 32), floats(3, 32, 16), torch.tensor([5, 5, 16]))


def test_a_batch_of_products_has_no_offsets() -> None:
    check(torch.nn.functional.grouped_mm, floats(3, 8, 16).bfloat16(), floats(3, 16, 8).bfloat16())


def test_an_infinite_weight_of_one_group_stays_there() -> None:
    b = floats(2, 8, 8).bfloat16()
    b[1, 3, 2] = float("inf")
    a, ends = floats(6, 8).bfloat16(), torch.tensor([4, 6], dtype=torch.int32)
    check(lambda a, b, ends: torch.nn.functional.grouped_mm(a, b, offs=ends), a, b, ends)


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "int8": (
        torch._int_mm,
        (integers(-128, 128, 32, 64, dtype=torch.int8), integers(-128, 128, 64, 16, dtype=torch.int8)),
    ),
    "int8 weight": (
        torch._weight_int8pack_mm,
        (floats(4, 64).bfloat16(), integers(-128, 128, 32, 64, dtype=torch.int8), floats(32).bfloat16()),
    ),
    "int8 weight, float32": (
        torch._weight_int8pack_mm, (floats(4, 64), integers(-128, 128, 32, 64, dtype=torch.int8), floats(32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PRODUCTS)
def test_products_of_integers(case: str) -> None:
    function, inputs = PRODUCTS[case]
    check(function, *inputs)


def test_a_layout_of_one_machine_is_refused_by_name() -> None:
    """Int4 weights are packed as the CPU's vector instructions have it."""
    packed = torch.zeros(16, 32, dtype=torch.uint8)

    def product(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 32, scales)

    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
            return product(x, scales)

    with pytest.raises(UnsupportedError, match=r"aten\._weight_int4pack_mm_for_cpu"):
        importer.load(Product(), (floats(2, 64).bfloat16(), floats(2, 16, 2).bfloat16()))


class Quantised(torch.nn.Module):
    """A linear layer and its input as PT2E leaves them: integers, and what undoes them before the product."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        weight = floats(outputs, inputs)
        self.register_buffer("scales", weight.abs().amax(1) / 127)
        self.register_buffer("zeros", torch.zeros(outputs, dtype=torch.int64))
        quantised = Q.quantize_per_channel(weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        self.register_buffer("weight", quantised)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Q.quantize_per_tensor(x, 0.05, 4, -128, 127, torch.int8)
        x = Q.dequantize_per_tensor(x, 0.05, 4, -128, 127, torch.int8)
        weight = Q.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        return torch.nn.functional.linear(x, weight)


def test_a_quantised_weight_stays_int8_in_the_library() -> None:
    module, x = Quantised(512, 384), floats(4, 384, seed=3)
    compiled = luminal.compile(module, (x,), name="quantised")
    expected = module(x)
    # 384 terms in float32.
    assert torch.allclose(compiled(x), expected, rtol=0, atol=384 * 2**-24 * float(expected.abs().max()))
    assert (compiled.folder / "quantised.weights").stat().st_size < 1.1 * 512 * 384


def test_an_operator_that_was_defined_in_python_is_what_its_kernel_does() -> None:
    @torch.library.custom_op("luminal_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.relu(x * factor) + 1

    scaled.register_fake(lambda x, factor: torch.empty_like(x))
    check(lambda x: torch.ops.luminal_tests.scaled(x, 1.5) * 2, X)


def test_an_operator_whose_kernel_reads_values_is_refused_by_name() -> None:
    @torch.library.custom_op("luminal_tests::opaque", mutates_args=())
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() + 1)

    opaque.register_fake(torch.empty_like)

    class Opaque(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.luminal_tests.opaque(x) * 2

    with pytest.raises(UnsupportedError, match=r"luminal_tests\.opaque\.default"):
        importer.load(Opaque(), (X,))
