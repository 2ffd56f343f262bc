"""The errors a user can meet. Each says where, what was expected, what was found, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple


class LuminalError(Exception):
    """Base of every error that luminal raises on purpose."""

    def saying(self, message: str) -> LuminalError:
        """The same error with another ``message``."""
        same = copy(self)
        same.args = (message,)
        same.__cause__ = self.__cause__
        return same


@dataclass(frozen=True)
class Unsupported:
    """One place of a model that luminal cannot compile.

    ``op`` is the source operator and ``node`` its name in the model; ``operands`` describes what it is applied to, as
    ``float32[batch, 384]`` where types and shapes are known; ``location`` is the user's ``file:line``, where known.
    """

    op: str
    node: str
    operands: tuple[str, ...] = ()
    location: str = ""
    advice: str = ""

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        advice = f": {self.advice}" if self.advice else ""
        return f"{self.op} {self.node!r}({', '.join(self.operands)}){where}{advice}"


class Survey(NamedTuple):
    """What a model is made of: how many nodes it has of each operator and version, every place of it that luminal
    cannot compile, and what it needs of the sizes of its inputs, in words."""

    used: Mapping[tuple[str, Any], int]
    places: Sequence[Unsupported]
    relations: Sequence[str]


class UnsupportedError(LuminalError):
    """The model holds something that luminal cannot compile; ``places`` lists every such place at once."""

    def __init__(self, message: str, places: Sequence[Unsupported] = ()) -> None:
        super().__init__("\n  ".join([message, *map(str, places)]))
        self.places = tuple(places)


class ShapeError(LuminalError):
    """Operand shapes do not fit the operation. ``unequal`` are pairs of sizes that would have to be equal for them to
    fit."""

    def __init__(self, message: str, unequal: Sequence[tuple[Any, Any]] = ()) -> None:
        super().__init__(message)
        self.unequal = tuple(unequal)


class DTypeError(LuminalError):
    """Operand element types do not fit the operation."""


class ModelError(LuminalError):
    """The model file or module is malformed, truncated or cannot be read."""


class InputError(LuminalError, ValueError):
    """The arguments of a call do not fit the compiled model."""


class TargetError(LuminalError):
    """This machine cannot run code for the chosen target, or the target does not support the chosen option."""


class BuildError(LuminalError):
    """No usable compiler was found, or it rejected generated source."""


class ArtifactError(LuminalError, OSError):
    """A compiled model, or a file of one, is missing, cut, damaged, or another model's."""


class ScheduleError(LuminalError):
    """A schedule transform is not legal here; the message says which condition fails."""


class SpecError(LuminalError):
    """A stage handed on something that its specification forbids: a defect in luminal itself."""


def nearest(unknown: str, known: Collection[str]) -> str:
    """A clause that says which of the ``known`` names are like one that is not; empty where none is."""
    near = difflib.get_close_matches(unknown, [*known], n=3, cutoff=0.5)
    folded = [name for name in known if name.lower() == unknown.lower() and name not in near]
    near = [*folded, *near][:3]
    return f"; the nearest to {unknown!r} are {', '.join(map(repr, near))}" if near else ""
