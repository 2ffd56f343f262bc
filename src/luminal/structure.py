"""Nested arguments and results: from what a caller passes to a list of arrays, and back.

A compiled model carries a JSON description of its nested inputs and outputs, written by the front end::

    {"leaf": k}                      the k-th tensor        {"size": k}     the k-th output, as a Python int
    {"value": v}                     a constant         {"fixed": name} an input whose value was given when compiling
    {"list": [..]}  {"tuple": [..]}  {"dict": [..], "keys": [..]}
    {"object": [..], "keys": [..], "type": "module:name"}      a named tuple, dataclass or mapping class
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luminal.core.errors import InputError

Description = Mapping[str, Any]


def bind(
    structure: Mapping[str, Any], names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The arguments of a call as a list in the order of the inputs ``names``.

    Raises InputError where they do not fit the model's signature.
    """
    if "parameters" not in structure:
        return _by_name(names, args, kwargs)
    parameters: list[str] = structure["parameters"]
    if len(args) > len(parameters):
        raise InputError(f"expected at most {len(parameters)} arguments ({', '.join(parameters)}), found {len(args)}")
    given = dict(zip(parameters, args, strict=False))
    twice = sorted(set(given) & set(kwargs))
    if twice:
        raise InputError(f"{', '.join(twice)} given by position and by name")
    given |= kwargs
    positional, named = structure["inputs"]["tuple"]
    wanted = dict(zip(parameters, positional["tuple"], strict=False)) | dict(
        zip(named["keys"], named["dict"], strict=True)
    )
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise InputError(f"unknown arguments {', '.join(unknown)}; the model was compiled for {', '.join(wanted)}")
    leaves: dict[int, Any] = {}
    for name, description in wanted.items():
        _collect(description, given.get(name), name, leaves)
    return [leaves[k] for k in range(len(names))]


def _by_name(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    missing = [n for n in names if n not in given]
    unknown = [n for n in kwargs if n not in names]
    if len(args) > len(names) or missing or unknown:
        raise InputError(
            f"expected the inputs {', '.join(names) or '(none)'}, found {len(args)} by position"
            + (f"; missing {', '.join(missing)}" if missing else "")
            + (f"; unknown {', '.join(unknown)}" if unknown else "")
        )
    return [given[n] for n in names]


def _collect(description: Description, value: Any, path: str, leaves: dict[int, Any]) -> None:
    if "leaf" in description:
        if value is None:
            raise InputError(f"the argument {path} is missing")
        leaves[description["leaf"]] = value
    elif "fixed" in description:
        pass  # its value is part of the library; a caller may leave it out
    elif "value" in description:
        expected = description["value"]
        if value is not None and value != expected:
            raise InputError(f"{path} was {expected!r} when the model was compiled, found {value!r}")
    else:
        for key, child, item in _children(description, value, path):
            _collect(child, item, f"{path}.{key}", leaves)


def _children(description: Description, value: Any, path: str) -> Iterator[tuple[Any, Description, Any]]:
    for kind in ("list", "tuple"):
        if kind in description:
            items = description[kind]
            if not isinstance(value, Sequence) or len(value) != len(items):
                raise InputError(f"{path}: expected a {kind} of {len(items)}, found {type(value).__name__}")
            yield from ((k, child, value[k]) for k, child in enumerate(items))
            return
    children = description["dict"] if "dict" in description else description["object"]
    for key, child in zip(description["keys"], children, strict=True):
        found = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
        yield key, child, found


def rebuild(structure: Mapping[str, Any], leaves: Sequence[Any]) -> Any:
    """The results of a run nested as the model's own; without a description, one tensor is itself, several a tuple."""
    outputs = structure.get("outputs")
    if not isinstance(outputs, Mapping):
        return leaves[0] if len(leaves) == 1 else tuple(leaves)
    return _built(outputs, leaves)


def _built(description: Description, leaves: Sequence[Any]) -> Any:
    if "leaf" in description:
        return leaves[description["leaf"]]
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
    return found(**values)
