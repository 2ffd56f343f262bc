"""Precisions by source operator: ``precision={"*": "bf16", "head": "fp32"}``, or the text ``*=bf16,head=fp32``.

A name is that of an operator, its kind and name as ``luminal.diff`` prints them (``Conv 'conv1'``), or the path of a
module, which stands for all operators inside; ``*`` is every operator that nothing else names. Of several names that an
operator has, the last counts. Besides ``fp32`` there is one precision in a model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from luminal.core import precision as precisions
from luminal.core.errors import InputError, nearest
from luminal.core.ir import Graph
from luminal.core.origins import Approximation, Origin

Choice: TypeAlias = str | Mapping[str, str] | None

OTHERS = "*"
EXACT = precisions.FP32.name


def parse(given: Choice) -> dict[str, str]:
    """The precision of each name. Raises InputError for what is no precision, and for two besides ``fp32``."""
    if isinstance(given, str):
        pairs = [part.rpartition("=") for part in given.split(",")] if "=" in given else [(OTHERS, "", given)]
        found = {name.strip(): value.strip() for name, _, value in pairs}
    else:
        found = dict(given or {})
    for name, value in found.items():
        if value not in precisions.ALL:
            integers = "; integers are for weights, or come with a model that is quantised, which needs no precision"
            raise InputError(f"unknown precision {value!r}{'' if name == OTHERS else f' of {name!r}'}: expected "
                             f"{', '.join(precisions.ALL)}{integers if 'int' in str(value) else ''}")  # fmt: skip
    lower = sorted({value for value in found.values() if value != EXACT})
    if len(lower) > 1:
        raise InputError(f"precision: expected one besides {EXACT} in a model, found {' and '.join(lower)}")
    return found


def lowest(given: Choice) -> str | None:
    """The precision that operators have which do not keep ``fp32``; None where nothing is chosen."""
    found = parse(given)
    return next((value for value in found.values() if value != EXACT), EXACT if found else None)


def text(given: Choice) -> str | None:
    """The choice as a command line has it."""
    return given if given is None or isinstance(given, str) else ",".join(f"{k}={v}" for k, v in given.items())


def applied(graphs: Mapping[str, Graph], given: Choice) -> dict[str, Graph]:
    """``graphs``, by entry, with the operators that keep their operands as they are. Raises InputError for a name that
    no operator of any of them has, and where operators are to differ in a precision that kernels round to."""
    found = parse(given)
    named = [name for name in found if name != OTHERS]
    if not named:
        return dict(graphs)
    lower = lowest(given)
    if lower != EXACT and precisions.ALL[str(lower)].stored is None:
        kept = ", ".join(precision.name for precision in precisions.STORED)
        raise InputError(f"precision: {lower} is that of all operators, since kernels round to it; expected {kept}")
    every = {entry: _origins(graph) for entry, graph in graphs.items()}
    _check(named, {origin for origins in every.values() for origin in origins})
    usual = found.get(OTHERS, EXACT if lower != EXACT else "")

    def precision(origin: Origin) -> str:
        return next((found[name] for name in reversed(named) if is_named(origin, name)), usual)

    def chosen(entry: str, graph: Graph) -> Graph:
        by = {origin: precision(origin) for origin in every[entry]}
        exact = [origin for origin, value in by.items() if value == EXACT]
        if usual == EXACT:
            what, those = f"operands become {lower}", [origin for origin, value in by.items() if value == lower]
        else:
            what, those = f"operands stay {EXACT}", exact
        noted = (Approximation("precision", what, tuple(those)),) if those else ()
        return replace(graph, exact=frozenset(exact), approximations=(*graph.approximations, *noted))

    return {entry: chosen(entry, graph) for entry, graph in graphs.items()}


def is_named(origin: Origin, name: str) -> bool:
    """Whether ``name`` is that of a source operator, or of a module that it is in."""
    path = ".".join(origin.module)
    return name in (origin.name, f"{origin.op} {origin.name!r}", path) or path.startswith(f"{name}.")


def _origins(graph: Graph) -> list[Origin]:
    return sorted({origin for origins in graph.origins.values() for origin in origins}, key=str)


def _check(named: Collection[str], origins: Collection[Origin]) -> None:
    known = {origin.name for origin in origins}
    for name in named:
        if not any(is_named(origin, name) for origin in origins):
            raise InputError(f"precision: no operator is named {name!r}{nearest(name, known)}; "
                             "expected the name of an operator or of a module, or '*'")  # fmt: skip
