"""What a ``config.json`` says, each value checked as it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from luminal.core.errors import ModelError, UnsupportedError

_MOST = (1 << 31) - 1  # of anything


@dataclass(frozen=True)
class Settings:
    """The values of a config; ``context`` are the positions of the library that is to be made. Every function raises
    ModelError where a value lacks, or is not what it must be."""

    given: Mapping[str, Any]
    context: int

    def has(self, name: str) -> bool:
        return self.given.get(name) is not None

    def count(self, *names: str, default: int | None = None, most: int = 0) -> int:
        """A number of things, 1 or more, at ``most`` so many if that is given, under the first of the names that has a
        value."""
        found = self._first(names, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 < found <= (most or _MOST):
            raise self._wrong(names, f"a number from 1 to {most}" if most else "a number of 1 or more", found)
        return found

    def real(self, *names: str, default: float | None = None) -> float:
        """A finite number."""
        found = self._first(names, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise self._wrong(names, "a finite number", found)
        return float(found)

    def positive(self, *names: str, default: float | None = None) -> float:
        """A finite number above 0."""
        found = self.real(*names, default=default)
        if found <= 0:
            raise self._wrong(names, "a number above 0", found)
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        found = self.given.get(name)
        found = default if found is None else found
        if not isinstance(found, bool):
            raise self._wrong((name,), "true or false", found)
        return found

    def one_of(self, choices: Mapping[str, str], *names: str) -> str:
        """What the ``choices`` have for the value."""
        found = self._first(names, None)
        if found not in choices:
            raise UnsupportedError(f"the config's {names[0]!r}: expected {', '.join(choices)}, found {found!r}")
        return choices[found]

    def mapping(self, name: str) -> Mapping[str, Any]:
        found = self.given.get(name)
        found = {} if found is None else found
        if not isinstance(found, Mapping):
            raise self._wrong((name,), "an object", found)
        return found

    def items(self, name: str) -> list[Any]:
        found = self.given.get(name)
        found = [] if found is None else found
        if not isinstance(found, list | tuple):
            raise self._wrong((name,), "a list", found)
        return list(found)

    def _first(self, names: tuple[str, ...], default: Any) -> Any:
        found = next((self.given[name] for name in names if self.given.get(name) is not None), default)
        if found is None:
            raise ModelError(f"the config lacks {' or '.join(map(repr, names))}")
        return found

    def _wrong(self, names: tuple[str, ...], expected: str, found: Any) -> ModelError:
        return ModelError(f"the config's {names[0]!r}: expected {expected}, found {found!r}")
