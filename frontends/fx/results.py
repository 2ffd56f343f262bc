"""What PyTorch says of the values of a program, beside what is built of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.ir import Node
from luminal.frontends.fx.complex import Complex
from luminal.frontends.fx.dtypes import from_torch

_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


def check(expected: Any, result: Any) -> None:
    """Raises SpecError unless ``result`` has the type, rank and known sizes that PyTorch computed for it."""
    pairs = zip(result, expected, strict=True) if isinstance(expected, tuple | list) else [(result, expected)]
    for found, tensor in pairs:
        if not isinstance(tensor, torch.Tensor) or found is None:
            continue
        sizes, dtype = list(tensor.shape), tensor.dtype
        if dtype.is_complex and isinstance(found, Complex):
            found, sizes, dtype = found.pairs, [*sizes, 2], _REAL[dtype]
        fits = isinstance(found, Node) and found.dtype == from_torch(dtype) and found.rank == len(sizes)
        if not fits or any(
            isinstance(d, int) and isinstance(n, int) and d != n for d, n in zip(found.shape, sizes, strict=True)
        ):
            raise SpecError(f"PyTorch gives {tensor.dtype}{sizes}, but {found} was built")


def storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Tensors that are the same memory read the same way have the same."""
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))


def dims(inputs: Sequence[Node]) -> tuple[sym.Var, ...]:
    """Every symbol of the inputs' shapes, in the order of first occurrence."""
    found = (sorted(sym.variables(size), key=str) for node in inputs for size in node.shape)
    return tuple(dict.fromkeys(variable for group in found for variable in group))
