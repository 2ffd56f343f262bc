"""The statement by which the warps of a block that copy hand stages to those that compute, and get them back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from luminal.core.schedule.nest.fields import Fields


@dataclass(frozen=True)
class HandOver:
    """A ``slot``, which is a number for shared arrays that are filled and used together, changes hands.

    Where it is ``filled``, the boxes that were copied since the last such statement are in it, and whoever computes may
    read them. Else it is given back: it may be filled again, and the products that read it, the last ``products``
    groups in the background left out, have ended. Groups end here."""

    slot: int
    filled: bool
    products: int = 0
    fields: ClassVar[Fields] = Fields(other=("slot", "filled", "products"))
