"""Nested arguments and results: from what a caller passes to a list of arrays, and back.

A compiled model carries a JSON description of its nested inputs and outputs, written by the front end::

    {"leaf": k}                      the k-th tensor        {"size": k}     the k-th output, as a Python int
    {"leaf": k, "complex": True}     the k-th tensor, whose pairs of a last axis are complex numbers to the caller
    {"leaf": k, "maps": [..]}        the k-th output, whose columns have these keys: a list of a dict for each row
    {"leaf": k, "left": j}           the k-th input, which is written into: it is left the j-th output
    {"value": v}                     a constant         {"fixed": name} an input whose value was given when compiling
    {"list": [..]}  {"tuple": [..]}  {"dict": [..], "keys": [..]}
    {"object": [..], "keys": [..], "type": "module:name"}      a named tuple, dataclass or mapping class

``inputs`` has the arguments by position and those by name, as the model was compiled with them; ``parameters`` names
all that a call may give by position, in order; ``defaults`` is what parameters are where a call leaves them out.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luminal import tensors
from luminal.core.errors import InputError

Description = Mapping[str, Any]


@dataclass(frozen=True)
class Argument:
    """A tensor argument of a call; ``path`` is its place in the nested arguments, as in ``caches.0.keys``."""

    path: str
    value: Any
    description: Description

    @property
    def numbers(self) -> Any:
        """The library's argument: complex numbers as pairs. Raises InputError where it should be complex and is not."""
        return tensors.pairs(self.value, self.path) if "complex" in self.description else self.value


def bind(
    structure: Mapping[str, Any], names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Argument]:
    """The arguments of a call in the order of the inputs ``names``.

    Arguments by position go to the parameters of the model's own signature, in order. A parameter that the model was
    compiled without, or an argument that the call leaves out, must have the signature's default value.

    Raises InputError where they do not fit the model's signature.
    """
    parameters: Sequence[str] = structure.get("parameters", names)
    if len(args) > len(parameters):
        raise InputError(
            f"expected at most {len(parameters)} arguments by position ({', '.join(parameters)}), found {len(args)}; "
            f"the inputs are {', '.join(names) or '(none)'}"
        )
    given = dict(zip(parameters, args, strict=False))
    twice = sorted(set(given) & set(kwargs))
    if twice:
        raise InputError(f"{', '.join(twice)} given by position and by name")
    given |= kwargs
    if "parameters" not in structure:
        return _by_name(names, given)
    positional, named = structure["inputs"]["tuple"]
    compiled = dict(zip(parameters, positional["tuple"], strict=False)) | dict(
        zip(named["keys"], named["dict"], strict=True)
    )
    defaults: Mapping[str, Description] = structure.get("defaults", {})
    unknown = sorted(set(given) - set(compiled) - set(defaults))
    if unknown:
        raise InputError(f"unknown arguments {', '.join(unknown)}; the model was compiled for {', '.join(compiled)}")
    leaves: dict[int, Argument] = {}
    for name, value in given.items():
        _collect(compiled.get(name, defaults.get(name, {})), value, name, leaves)
    for name in compiled:
        if name not in given:
            _check_left_out(compiled[name], defaults.get(name), name)
    return [leaves[k] for k in range(len(names))]


def _by_name(names: Sequence[str], given: Mapping[str, Any]) -> list[Argument]:
    missing = [n for n in names if n not in given]
    unknown = [n for n in given if n not in names]
    if missing or unknown:
        raise InputError(
            f"expected the inputs {', '.join(names) or '(none)'}"
            + (f"; missing {', '.join(missing)}" if missing else "")
            + (f"; unknown {', '.join(unknown)}" if unknown else "")
        )
    return [Argument(n, given[n], {}) for n in names]


def _check_left_out(description: Description, default: Description | None, name: str) -> None:
    """Raises InputError where the argument ``name`` has to be given."""
    leaves = list(_leaves(description))
    if any("leaf" in leaf for leaf in leaves):
        raise InputError(f"the argument {name} is missing")
    if default is None or any("fixed" in leaf for leaf in leaves):
        return  # an argument with only one possible value may be left out
    standard = list(_leaves(default))
    if len(leaves) != len(standard) or not all(
        _same(a["value"], b["value"]) for a, b in zip(leaves, standard, strict=True)
    ):
        raise InputError(f"the argument {name} is missing: the model was compiled with another value than its default")


def _leaves(description: Description) -> Iterator[Description]:
    children = next((description[kind] for kind in ("list", "tuple", "dict", "object") if kind in description), None)
    if children is None:
        yield description
    else:
        for child in children:
            yield from _leaves(child)


def _collect(description: Description, value: Any, path: str, leaves: dict[int, Argument]) -> None:
    if "leaf" in description:
        if value is None:
            raise InputError(f"the argument {path} is missing")
        leaves[description["leaf"]] = Argument(path, value, description)
    elif "fixed" in description:
        pass  # its value is part of the library; a caller may leave it out
    elif "value" in description:
        expected = description["value"]
        if not _same(value, expected):
            found = repr(value) if isinstance(value, bool | int | float | str | None) else type(value).__name__
            raise InputError(f"{path} was {expected!r} when the model was compiled, found {found}")
    else:
        for key, child, item in _children(description, value, path):
            _collect(child, item, f"{path}.{key}", leaves)


def _same(value: Any, expected: Any) -> bool:
    """Whether two numbers are equal, with type and sign of zero: 2, 2.0 and True give results of different types."""
    return type(value) is type(expected) and repr(value) == repr(expected)


def _children(description: Description, value: Any, path: str) -> Iterator[tuple[Any, Description, Any]]:
    for kind in ("list", "tuple"):
        if kind in description:
            items = description[kind]
            if not isinstance(value, Sequence) or len(value) != len(items):
                raise InputError(f"{path}: expected a {kind} of {len(items)}, found {type(value).__name__}")
            yield from ((k, child, value[k]) for k, child in enumerate(items))
            return
    if "dict" in description and isinstance(value, Mapping):
        unknown = sorted(str(key) for key in value if key not in description["keys"])
        if unknown:
            raise InputError(f"{path}: unknown keys {', '.join(unknown)}; expected {', '.join(description['keys'])}")
    children = description["dict"] if "dict" in description else description["object"]
    for key, child in zip(description["keys"], children, strict=True):
        found = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
        yield key, child, found


def rebuild(structure: Mapping[str, Any], leaves: Sequence[Any]) -> Any:
    """The results of a run, nested as the model's own; without a description, one tensor or a tuple of several."""
    outputs = structure.get("outputs")
    if not isinstance(outputs, Mapping):
        return leaves[0] if len(leaves) == 1 else tuple(leaves)
    return _built(outputs, leaves)


def keys(structure: Mapping[str, Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """The keys of the columns of those outputs, called ``names``, that are maps to a caller."""
    outputs = structure.get("outputs")
    found = list(_leaves(outputs)) if isinstance(outputs, Mapping) else []
    return {names[leaf["leaf"]]: leaf["maps"] for leaf in found if "maps" in leaf}


def _built(description: Description, leaves: Sequence[Any]) -> Any:
    if "leaf" in description:
        leaf = leaves[description["leaf"]]
        if "maps" in description:
            return [dict(zip(description["maps"], row, strict=True)) for row in leaf.tolist()]
        return tensors.complex_numbers(leaf) if "complex" in description else leaf
    if "size" in description:
        return int(leaves[description["size"]])
    if "value" in description:
        return description["value"]
    for kind, build in (("list", list), ("tuple", tuple)):
        if kind in description:
            return build(_built(child, leaves) for child in description[kind])
    children = description["dict"] if "dict" in description else description["object"]
    values = {k: _built(child, leaves) for k, child in zip(description["keys"], children, strict=True)}
    if "dict" in description:
        return values
    module, _, name = description["type"].partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return values  # the class lives in a package that this machine lacks: its fields as a dictionary
    if hasattr(found, "n_sequence_fields"):  # a struct sequence, as torch.return_types are, takes all its fields as one
        return found(values.values())
    return found(**values)
