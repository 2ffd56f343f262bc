"""The whole operator table: importing this module enters every theme's lines."""

from __future__ import annotations

from luminal.frontends.fx import (  # noqa: F401 - imported for the lines that they enter
    complex,
    contraction,
    control,
    creation,
    image,
    indexing,
    linear_algebra,
    nn,
    pointwise,
    quantization,
    random,
    recurrent,
    reduction,
    scattering,
    selection,
    shape,
    sizes,
    sorting,
    vision,
)
from luminal.frontends.fx.registry import COMPLEX, TABLE

__all__ = ["COMPLEX", "TABLE"]
