"""How large a value may be, and how much is computed when compiling: a file of a few bytes can ask for anything."""

from __future__ import annotations

import math
from collections.abc import Sequence

from luminal.core.errors import ShapeError
from luminal.core.symbolic import Int

AXES = 24  # of one value: more than models have; scheduling loops over them takes the cube of their number
BYTES = 1 << 60  # of one value: positions and sizes in bytes are computed in 64 bits
TABLE = 1 << 25  # elements of a value that is made when compiling and is larger than the constants it is made from
PARTS = 1 << 14  # values that one value is split into
PRODUCTS = 1 << 33  # multiplications of one sum of products that is computed when compiling


def check_extents(shape: Sequence[Int], itemsize: int, what: object) -> None:
    """Raises ShapeError where a value of ``shape`` cannot exist: a negative extent, too many axes or too many bytes.

    For an empty value the extents other than 0 are counted. Symbolic extents are checked where their bounds are used.
    """
    if len(shape) > AXES:
        raise ShapeError(f"{what}: expected at most {AXES} axes, found {len(shape)}")
    known = [extent for extent in shape if isinstance(extent, int)]
    if any(extent < 0 for extent in known):
        raise ShapeError(f"{what}: expected extents of 0 or more, found {list(shape)}")
    if math.prod(extent for extent in known if extent) * itemsize > BYTES:
        raise ShapeError(f"{what}: expected a value of at most {BYTES:.0e} bytes, found the shape {list(shape)}")


def check_parts(count: int, what: str) -> None:
    """Raises ShapeError where a value is taken apart into more pieces than a model can have."""
    if count > PARTS:
        raise ShapeError(f"{what}: expected at most {PARTS} parts, found {count}")


def check_table(elements: int, what: str) -> None:
    """Raises ShapeError where a table that an operator needs would be too large to be made when compiling."""
    if elements > TABLE:
        raise ShapeError(f"{what}: expected at most {TABLE} numbers to be computed when compiling, found {elements}")
