"""Measurements in a file: each part that is measured joins those of other runs, and the page is written from all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks import machine


class Results:
    """Parts by name, each a value that JSON holds, with the machine and the day that it was measured on.

    They lie in the file ``path``, where one is given; it is written after each change, whole or not at all.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._parts: dict[str, dict[str, Any]] = {}
        if path is not None and path.is_file():
            self._parts = json.loads(path.read_text(encoding="utf-8"))

    def put(self, name: str, value: Any) -> None:
        """Replace a part, and note machine and day."""
        self._parts[name] = {"machine": machine.name(), "day": machine.today(), "value": value}
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_name(self.path.name + ".part")
        written.write_text(_text(self._parts), encoding="utf-8")
        os.replace(written, self.path)

    def get(self, name: str, here: bool = False) -> Any:
        """The value of a part; None where there is none, or, with ``here``, none of this machine."""
        found = self._parts.get(name)
        return None if found is None or (here and found["machine"] != machine.name()) else found["value"]

    def under(self, prefix: str) -> dict[str, Any]:
        """The values of all parts whose names begin with ``prefix``, by the rest of their names, in order."""
        return {
            name.removeprefix(prefix): self._parts[name]["value"]
            for name in sorted(self._parts)
            if name.startswith(prefix)
        }

    @property
    def machines(self) -> list[str]:
        """Every machine that parts were measured on, each with the first and the last day."""
        days: dict[str, list[str]] = {}
        for part in self._parts.values():
            days.setdefault(part["machine"], []).append(part["day"])
        return [f"{name}; {' to '.join(dict.fromkeys((min(found), max(found))))}" for name, found in days.items()]


def _text(parts: dict[str, Any]) -> str:
    """A line for each part, in the order of their names: changes are seen as lines."""
    lines = (f"{json.dumps(name)}: {json.dumps(_rounded(parts[name]))}" for name in sorted(parts))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _rounded(value: Any) -> Any:
    """``value`` with six digits of every number that is not whole: more is noise."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {key: _rounded(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_rounded(inner) for inner in value]
    return value
