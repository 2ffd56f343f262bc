"""The values of constants, equal by content; large ones are in memory only while they are read, if possible."""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from luminal.core.types import from_numpy

Array: TypeAlias = np.ndarray[Any, Any]

LARGE = 1 << 20  # bytes; smaller values are held
DEPTH = 3  # longest chain of values computed from each other that is computed again for each read


class Data:
    """The value of a ``Constant``, equal by type, shape and content: an array, or a function that makes it.

    ``make`` reads the array from a file, or computes it from other constants. It is called whenever the array is read
    and no longer in memory, so that a model's weights need not all be in memory at once; it must return the same array
    each time. ``depth`` is the length of the chain of values it is made from. The array is kept in memory if that is
    above ``DEPTH``, or if the array is small."""

    __slots__ = ("_finite", "_held", "_make", "_seen", "depth", "digest", "dtype", "shape")

    def __init__(self, array: Array | None = None, make: Callable[[], Array] | None = None, depth: int = 0) -> None:
        if array is None:
            assert make is not None
            array = make()
        if make is not None and array.nbytes < LARGE:
            array = array.copy()  # else it might keep a file open
        is_held = make is None or array.nbytes < LARGE or depth > DEPTH
        self._make = None if is_held else make
        self._held = array if is_held else None
        self._seen = weakref.ref(array)
        self._finite: bool | None = None
        self.depth = 0 if is_held else depth
        self.dtype = from_numpy(array.dtype)
        self.shape: tuple[int, ...] = array.shape
        self.digest = digest(array)

    @property
    def array(self) -> Array:
        """The value. A caller that reads it more than once should keep a reference meanwhile."""
        if self._make is None:
            assert self._held is not None
            return self._held
        found = self._seen()
        if found is None:
            found = self._make()
            self._seen = weakref.ref(found)
        return found

    def renew(self, equal: Data) -> None:
        """Take the array of ``equal`` where one's own has changed since its digest was made: it may be memory of
        somebody else, such as the parameters of a model that is trained."""
        if self is equal or self._held is None or self._held.flags.owndata or equal._held is None:
            return
        if digest(self._held) != self.digest:
            self._held, self._finite = equal._held, None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_finite(self) -> bool:
        """Whether no element is infinite or NaN."""
        if self._finite is None:
            self._finite = bool(np.isfinite(self.array).all())
        return self._finite

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Data)
            and (self.digest, self.dtype, self.shape) == (other.digest, other.dtype, other.shape)
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"{self.array.reshape(-1)[0]}" if math.prod(self.shape) == 1 else f"#{self.digest.hex()[:8]}"


def digest(array: Array) -> bytes:
    """A hash of the elements of ``array``, in row-major order."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b""
    return hashlib.blake2b(content, digest_size=16).digest()


class Arrays(Mapping[str, Array]):
    """The arrays of constants by name, each with its axes permuted as given, and made when it is read."""

    def __init__(self, values: Mapping[str, tuple[Data, tuple[int, ...]]]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Array:
        data, order = self._values[name]
        return data.array.transpose(order)

    def __contains__(self, name: object) -> bool:
        return name in self._values  # without making the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Renamed(Mapping[str, Array]):
    """Some of ``arrays`` by other names: ``names`` says of each the name there."""

    def __init__(self, arrays: Mapping[str, Array], names: Mapping[str, str]) -> None:
        self._arrays, self._names = arrays, names

    def __getitem__(self, name: str) -> Array:
        return self._arrays[self._names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
