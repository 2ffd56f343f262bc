"""The errors a user can meet. Each says where, what was expected, what was found, and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

_LONG, _ENDS = 100, 36  # characters of an expression that is shortened, and of its beginning and end that are left
_TOKEN = re.compile(r"\w+|//|\s+|.", re.DOTALL)


def short(text: str) -> str:
    """``text`` with the middle of every long expression of sizes left out, and the names in it said."""
    return "".join(_shortened(part) for part in _expressions(text)) if len(text) > _LONG else text


def _shortened(part: str) -> str:
    if len(part.strip()) <= _LONG:
        return part
    names = sorted(set(re.findall(r"[A-Za-z_]\w*", part)) - {"min", "max"})
    return f"{part[:_ENDS].rstrip()} ... {part[-_ENDS:].lstrip()} (of {', '.join(names)})"


def _expressions(text: str) -> Iterator[str]:
    """``text`` in parts, of which each expression is one: names and numbers with operators between them, which words
    of a sentence do not have. A comma belongs to one within ``min`` and ``max`` alone."""
    part, follows, open_ = (
        "",
        False,
        list[bool](),
    )  # whether an operand came last; by parenthesis, whether of a function
    before = ""
    for token in _TOKEN.findall(text):
        if token.isspace():
            part += token
            continue
        function = before in ("min", "max")
        fits = (
            (not follows or function) if token == "(" else
            follows and bool(open_) if token == ")" else
            follows and bool(open_) and open_[-1] if token == "," else
            follows or token == "-" if token in ("+", "-", "*", "//", "%") else
            not follows and token.isidentifier() | token.isdecimal()
        )  # fmt: skip
        if not fits:
            yield part
            part, follows, open_ = "", False, []
            if not (token == "(" or token.isidentifier() or token.isdecimal()):
                yield token
                before = ""
                continue
        if token == "(":
            open_.append(function)
        elif token == ")":
            open_.pop()
        follows = token == ")" or token.isidentifier() or token.isdecimal()
        part, before = part + token, token
    yield part


class LuminalError(Exception):
    """Base of every error that luminal raises on purpose. Long expressions of sizes in its message are shortened.

    ``condition`` is what a model requires of sizes, where that is what failed: it has ``holds``, from sizes by name to
    whether they are allowed, and ``variables``. ``deciding`` are the inputs of a model whose values decide shapes or
    branches: if they were known, it might be compiled."""

    condition: Any = None
    deciding: tuple[str, ...] = ()

    def __init__(self, message: str = "") -> None:
        super().__init__(short(message))

    def saying(self, message: str) -> LuminalError:
        """The same error with another ``message``."""
        same = copy(self)
        same.args = (short(message),)
        same.__cause__ = self.__cause__
        return same


@dataclass(frozen=True)
class Unsupported:
    """One place of a model that luminal cannot compile.

    ``op`` is the source operator and ``node`` its name in the model; ``operands`` describes what it is applied to, as
    ``float32[batch, 384]`` where types and shapes are known; ``location`` is the user's ``file:line``, where known.
    ``deciding`` is as that of ``LuminalError``.
    """

    op: str
    node: str
    operands: tuple[str, ...] = ()
    location: str = ""
    advice: str = ""
    deciding: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        advice = f": {self.advice}" if self.advice else ""
        return f"{self.op} {self.node!r}({', '.join(map(short, self.operands))}){where}{short(advice)}"


class Survey(NamedTuple):
    """What a model is made of: how many nodes it has of each operator and version, every place of it that luminal
    cannot compile, and what it needs of the sizes of its inputs, in words."""

    used: Mapping[tuple[str, Any], int]
    places: Sequence[Unsupported]
    relations: Sequence[str]


def decided_by(places: Sequence[Unsupported]) -> tuple[str, ...]:
    """The inputs on whose values all of ``places`` depend, of each some; none where one depends on none."""
    if not all(place.deciding for place in places):
        return ()
    return tuple(dict.fromkeys(name for place in places for name in place.deciding))


class UnsupportedError(LuminalError):
    """The model holds something that luminal cannot compile; ``places`` lists every such place at once."""

    def __init__(self, message: str, places: Sequence[Unsupported] = ()) -> None:
        super().__init__("\n  ".join([message, *map(str, places)]))
        self.places = tuple(places)
        self.deciding = decided_by(places)


class ShapeError(LuminalError):
    """Operand shapes do not fit the operation. ``unequal`` are pairs of sizes that would have to be equal for them to
    fit."""

    def __init__(self, message: str, unequal: Sequence[tuple[Any, Any]] = ()) -> None:
        super().__init__(message)
        self.unequal = tuple(unequal)


class RankError(ShapeError):
    """Two branches of a model have results of different ranks."""


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
