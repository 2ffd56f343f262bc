"""Factors of matrices and linear equations, against eager PyTorch."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import luminal
from luminal.core import interp, ir, types
from luminal.core import symbolic as sym
from luminal.core.decompose import factorisation
from luminal.core.errors import InputError, UnsupportedError
from luminal.frontends.fx import importer
from luminal.runtime.loader import LibraryError
from tests import fx_support

aten = torch.ops.aten


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


SQUARE, COLUMNS = normal(2, 4, 4), normal(2, 4, 3, seed=1)
POSITIVE = SQUARE @ SQUARE.mT + torch.eye(4, dtype=torch.float64)
SINGULAR = SQUARE.clone()
SINGULAR[1, :, 2] = 0
SHAPES = [(2, 4, 4), (2, 5, 3), (2, 3, 5), (3, 3), (0, 2, 2), (0, 0), (1, 1)]


def agrees(function: Callable[..., Any], *tensors: torch.Tensor, **named: Any) -> None:
    """Results of ``function``, in their types and shapes."""

    def called(*tensors: torch.Tensor) -> Any:
        return function(*tensors, **named)

    wanted = called(*tensors)
    graph = importer.load(make_fx(called)(*tensors))
    given = {node.attr.name: tensor.numpy() for node, tensor in zip(graph.inputs, tensors, strict=True)}
    with np.errstate(all="ignore"):
        found = interp.run(graph, given).outputs
    for a, b in zip(found, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        assert a.shape == tuple(b.shape) and a.dtype == b.numpy().dtype
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_factors(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    agrees(aten.linalg_lu_factor_ex, x)
    agrees(aten.linalg_lu, x)
    agrees(aten.lu_unpack, *aten.linalg_lu_factor_ex(x)[:2])
    agrees(aten.geqrf, x)
    for mode in ("reduced", "complete"):
        agrees(aten.linalg_qr, x, mode=mode)
    agrees(lambda x: aten.linalg_qr(x, "r")[1], x)
    if shape[-2] >= shape[-1]:
        agrees(aten.linalg_householder_product, *aten.geqrf(x))


def test_factors_of_zeros_and_of_singular_matrices() -> None:
    """A pivot of 0 has only zeros below it."""
    agrees(aten.linalg_lu_factor_ex, torch.zeros(2, 3, 3, dtype=torch.float64))
    agrees(aten.geqrf, torch.zeros(2, 3, 3, dtype=torch.float64))
    agrees(lambda x: aten.linalg_lu_factor_ex(x)[2], SINGULAR)


def test_roots_of_positive_matrices() -> None:
    agrees(aten.linalg_cholesky_ex, POSITIVE)
    agrees(aten.linalg_cholesky_ex, POSITIVE, upper=True)
    agrees(aten.linalg_cholesky_ex, torch.zeros(0, 2, 2, dtype=torch.float64))
    wrong = POSITIVE.clone()
    wrong[1, 2, 2] = -5
    agrees(lambda x: aten.linalg_cholesky_ex(x)[1], wrong)
    root = torch.linalg.cholesky(POSITIVE)
    for upper in (False, True):
        factor = root.mT.contiguous() if upper else root
        agrees(aten.cholesky_solve, COLUMNS, factor, upper=upper)
        agrees(aten.cholesky_inverse, factor, upper=upper)


def test_triangular_equations() -> None:
    for upper, left, unit in itertools.product([False, True], repeat=3):
        sides = COLUMNS if left else COLUMNS.mT.contiguous()
        agrees(aten.linalg_solve_triangular, SQUARE, sides, upper=upper, left=left, unitriangular=unit)
        agrees(aten.triangular_solve, COLUMNS, SQUARE, upper=upper, transpose=left, unitriangular=unit)


def test_equations() -> None:
    def solve(a: torch.Tensor, b: torch.Tensor, left: bool = True) -> Any:
        solution, _, _, info = aten._linalg_solve_ex(a, b, left=left)
        return solution, info

    packed, places, _ = aten.linalg_lu_factor_ex(SQUARE)
    for left in (False, True):
        sides = COLUMNS if left else COLUMNS.mT.contiguous()
        agrees(solve, SQUARE, sides, left=left)
        for turned in (False, True):
            agrees(aten.linalg_lu_solve, packed, places, sides, left=left, adjoint=turned)
    agrees(solve, SQUARE, normal(2, 4))  # a vector for each
    agrees(solve, SQUARE[0], COLUMNS)  # one matrix for all
    agrees(aten.linalg_inv_ex, SQUARE)


def test_failures_of_traced_functions_say_why() -> None:
    with pytest.raises(UnsupportedError, match=r"asserts on the data of a call .*linalg\.inv"):
        importer.load(make_fx(lambda x: torch.linalg.inv(x))(SQUARE))


class Inverses(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        root = torch.linalg.cholesky(x @ x.mT + torch.eye(4))
        return torch.inverse(x), root, torch.linalg.solve(x, root), *torch.linalg.qr(x)


def test_a_compiled_model_inverts_and_fails_as_pytorch() -> None:
    x = SQUARE.float()
    module = luminal.compile(Inverses(), (x,))
    for found, wanted in zip(module(x), Inverses()(x), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(LibraryError, match=r"a matrix is singular, or not positive definite in step .*linalg_"):
        module(SINGULAR.float())
    graph = importer.load(Inverses(), (x,))
    with pytest.raises(InputError, match=r"linalg_.* a matrix is singular"):
        fx_support.run(graph, (SINGULAR.float(),))


def test_determinants_of_a_size_that_the_call_gives() -> None:
    n = sym.var("n", 0, 6)
    x = ir.input_("x", (2, n, n), types.f32)
    nodes = [factorisation.det(x), *factorisation.slogdet(x)]
    for size in (0, 1, 5):
        given = np.random.default_rng(size).standard_normal((2, size, size)).astype(np.float32)
        wanted = (np.linalg.det(given), *np.linalg.slogdet(given))
        for found, expected in zip(interp.evaluate(nodes, {"x": given}), wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
