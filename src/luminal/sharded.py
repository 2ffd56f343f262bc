"""Checkpoints of a mesh: a file of safetensors for each rank, which load on any number of ranks.

The first rank's file has the name of the checkpoint; those of the others have their numbers behind it. A file says what
part of each state it holds, and after how many calls it was written. The file before it is kept: ranks that are
interrupted while they save leave the parts of one call or of the other whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from luminal import checkpoint
from luminal.core.data import Array
from luminal.core.errors import InputError
from luminal.core.mesh.partition import cut
from luminal.core.mesh.placement import Split
from luminal.core.ops import Group

Cuts: TypeAlias = Sequence[tuple[Group, Split]]

PREVIOUS = ".previous"
_RANKS, _RANK, _CUTS, CALLS = "ranks", "rank", "cuts", "calls"  # what a file says of itself


@dataclass(frozen=True)
class Sharding:
    """How the states of a library lie on ``ranks``, of which this process is number ``rank``: those of which a rank has
    a part have ``cuts``, and those that the ranks of one stage of a pipeline have a first rank in ``firsts``."""

    ranks: int
    rank: int
    cuts: Mapping[str, Cuts]
    firsts: Mapping[str, int] = field(default_factory=dict)

    def part(self, name: str, whole: Array) -> Array:
        """This rank's part of a state. Raises InputError where it cannot be split so."""
        cuts = self.cuts.get(name, ())
        try:
            return cut(whole, cuts, self.rank)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            how = ", ".join(f"{split} along {group.axis}" for group, split in cuts)
            raise InputError(f"{name}: {list(whole.shape)} cannot be split by {how}") from error

    def is_first(self, name: str) -> bool:
        """Whether no rank before this one has the same part."""
        at = sum(self.rank // group.stride % group.size * group.stride for group, _ in self.cuts.get(name, ()))
        return at + self.firsts.get(name, 0) == self.rank

    def save(self, path: Path, values: Mapping[str, Array], calls: int, said: Mapping[str, str]) -> None:
        """Write this rank's file. Raises InputError where it cannot be written."""
        own = _file(path, self.rank)
        if _said(own).get(CALLS) not in (None, str(calls)):
            try:
                os.replace(own, _previous(own))
            except OSError as error:
                raise InputError(f"cannot replace {str(own)!r}: {error.strerror or error}") from error
        kept = {name: array for name, array in values.items() if self.is_first(name)}
        numbers = {name: to_json(self.cuts[name]) for name in kept if name in self.cuts}
        about = {_RANKS: str(self.ranks), _RANK: str(self.rank), _CUTS: json.dumps(numbers), CALLS: str(calls)}
        checkpoint.save(own, kept, {**said, **about})


def load(path: str | Path) -> tuple[dict[str, Array], dict[str, str]]:
    """All states in a checkpoint of any number of ranks, whole, and what its first file says of itself. Raises
    InputError where it is none, or no call's is complete."""
    path = Path(path)
    found: dict[tuple[int, int], dict[int, Path]] = {}  # by calls and number of ranks, a file of each rank
    with suppress(InputError):  # a damaged file may have one before it
        if _RANKS not in checkpoint.said(path):
            return checkpoint.load(path)
    for rank in range(1 << 20):
        present = [file for file in (_file(path, rank), _previous(_file(path, rank))) if file.exists()]
        if not present:
            break
        for file in reversed(present):  # the newer one last
            said = _said(file)
            numbers = [said.get(what, "") for what in (CALLS, _RANKS)]
            if said.get(_RANK) == str(rank) and all(map(str.isdecimal, numbers)):
                found.setdefault((int(numbers[0]), int(numbers[1])), {})[rank] = file
    if not found:
        return checkpoint.load(path)
    whole = [files for (_, ranks), files in sorted(found.items()) if len(files) == ranks]
    if not whole:
        have = (f"after call {calls} {len(files)} of {ranks}" for (calls, ranks), files in sorted(found.items()))
        raise InputError(f"{str(path)!r}: expected the files of all ranks, found {', '.join(have)}")
    values: dict[str, Array] = {}
    first: dict[str, str] = {}
    for rank, file in sorted(whole[-1].items()):
        parts, said = checkpoint.load(file)
        first = first or said
        cuts = {name: from_json(rows) for name, rows in json.loads(said[_CUTS]).items()}
        for name, part in parts.items():
            _put(values, name, part, cuts.get(name, ()), rank)
    return values, first


def _put(values: dict[str, Array], name: str, part: Array, cuts: Cuts, rank: int) -> None:
    """Puts a rank's part where it belongs in the whole."""
    if not cuts:
        values[name] = part
        return
    shape = list(part.shape)
    for group, split in cuts:
        shape[split.axis] *= group.size
    whole = values.setdefault(name, np.zeros(shape, part.dtype))
    places = [np.arange(size) for size in shape]
    for group, split in cuts:
        places[split.axis] = cut(places[split.axis], [(group, Split(0, split.inner))], rank)
    whole[np.ix_(*places)] = part


def to_json(cuts: Cuts) -> list[list[Any]]:
    """``cuts`` as JSON has them: of each the mesh's axis, its size and stride, and the axis and the positions in turn
    of the value."""
    return [[group.axis, group.size, group.stride, split.axis, split.inner] for group, split in cuts]


def from_json(rows: Sequence[Sequence[Any]]) -> Cuts:
    return [(Group(axis, size, stride), Split(number, inner)) for axis, size, stride, number, inner in rows]


def _file(path: Path, rank: int) -> Path:
    return path if rank == 0 else path.with_name(f"{path.name}.{rank}")


def _previous(file: Path) -> Path:
    return file.with_name(file.name + PREVIOUS)


def _said(file: Path) -> Mapping[str, str]:
    """What a file says of itself; nothing where it is missing or damaged."""
    try:
        return checkpoint.said(file)
    except InputError:
        return {}
