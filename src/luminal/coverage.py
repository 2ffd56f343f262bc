"""What a model is made of, operator by operator, beside what the suites of ``docs/coverage.md`` say of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from luminal.api import front_end
from luminal.core.errors import Unsupported


@dataclass(frozen=True)
class Operator:
    """An operator of a model.

    ``nodes`` are so many of it; ``opset`` is the version of its meaning, None for PyTorch's; ``places`` are those that
    cannot be compiled. ``cases`` says how many cases of its suite pass, and how many there are; None where it has none.
    """

    name: str
    opset: int | None
    nodes: int
    places: tuple[Unsupported, ...]
    cases: tuple[int, int] | None


@dataclass(frozen=True)
class Coverage:
    """The operators of a model by name, every place of it that luminal cannot compile, and what it needs of the sizes
    of its inputs, in words."""

    operators: tuple[Operator, ...]
    places: tuple[Unsupported, ...]
    relations: tuple[str, ...] = ()


def coverage(
    model: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Coverage:
    """What ``model`` is made of; arguments, and errors, as for ``luminal.check``."""
    suite, importer, program = front_end(model)
    arguments = (program,) if suite == "onnx" else (program, inputs)
    used, places, relations = importer.survey(*arguments, dims=dims, constants=constants)
    tables = _tables()[suite]
    operators = [
        Operator(
            name,
            opset,
            nodes,
            tuple(place for place in places if place.op == name),
            (tables[name][0], tables[name][1]) if name in tables else None,
        )
        for (name, opset), nodes in sorted(used.items(), key=lambda item: item[0][0])
    ]
    return Coverage(tuple(operators), tuple(places), tuple(relations))


@lru_cache
def _tables() -> Mapping[str, Mapping[str, Sequence[int]]]:
    """By suite and operator, how many cases pass, and how many there are."""
    tables: dict[str, dict[str, list[int]]] = json.loads(
        resources.files("luminal").joinpath("coverage.json").read_text(encoding="utf-8")
    )
    return tables
