"""Arguments for several entries of one library: what is given for all of them, and what for one by its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from luminal.core.errors import InputError, nearest


class Names(NamedTuple):
    """The names of an entry's inputs, and of the sizes that it has without dims."""

    inputs: Collection[str]
    sizes: Collection[str]


def check(argument: str, given: Collection[str], entries: Collection[str]) -> None:
    """Raises InputError where ``given`` names what is none of the ``entries``."""
    unknown = sorted(set(given) - set(entries))
    if unknown:
        raise InputError(
            f"{argument}: there is no entry {', '.join(map(repr, unknown))}{nearest(unknown[0], entries)}; the entries "
            f"are {', '.join(map(repr, entries))}"
        )


def option(argument: str, given: Any, entries: Collection[str]) -> dict[str, Any]:
    """What each entry is given of an option: all the same, or what a mapping has for it."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(entries, given)
    check(argument, given, entries)
    return {entry: given.get(entry) for entry in entries}


def constants(given: Mapping[str, Any] | None, entries: Mapping[str, Names]) -> dict[str, dict[str, Any]]:
    """The constants of each entry. Raises InputError for a name that none of them has."""
    return _each("constants", given, entries, lambda entry, names: set(entries[entry].inputs) & names)


def dims(given: Mapping[str, Any] | None, entries: Mapping[str, Names]) -> dict[str, dict[str, Any]]:
    """The dims of each entry: names that are given for all of them hold where there are such an input or such a size.
    Raises InputError for a name that no entry has."""
    shared, own = _parted("dims", given, entries)

    def known(entry: str, names: set[str]) -> set[str]:
        inputs = set(entries[entry].inputs)
        declared = {**{name: axes for name, axes in shared.items() if name in inputs}, **own[entry]}
        named = {name for axes in declared.values() for name in _named(axes)}
        return (inputs | set(entries[entry].sizes) | named) & names

    return _each("dims", given, entries, known)


def _each(
    argument: str, given: Mapping[str, Any] | None, entries: Mapping[str, Names],
    known: Callable[[str, set[str]], set[str]],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """``known`` are those of some names that an entry has."""
    shared, own = _parted(argument, given, entries)
    of_all = {name for names in entries.values() for name in (*names.inputs, *names.sizes)}
    found = {entry: {n: shared[n] for n in shared if n in known(entry, {*shared})} | own[entry] for entry in entries}
    for entry in entries:
        _reject(argument, f"entry {entry!r} has no", set(own[entry]) - known(entry, {*own[entry]}), entries[entry])
    unused = set(shared) - {name for names in found.values() for name in names}
    _reject(argument, "no entry has", unused, Names(of_all, ()))
    return found


def _parted(
    argument: str, given: Mapping[str, Any] | None, entries: Collection[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What is given for all entries, and what for each: a mapping of names, under the entry's own."""
    if not isinstance(given, Mapping | None):
        raise InputError(f"{argument}: expected a mapping, found {given!r}")
    by_entry = {name for name, value in (given or {}).items() if isinstance(value, Mapping) and not _is_axes(value)}
    check(argument, by_entry, entries)
    shared = {name: value for name, value in (given or {}).items() if name not in by_entry}
    return shared, {entry: dict((given or {})[entry]) if entry in by_entry else {} for entry in entries}


def _is_axes(value: Mapping[Any, Any]) -> bool:
    """Whether it names the axes of an input, and not what belongs to an entry."""
    return any(isinstance(key, int) for key in value)


def _named(axes: Any) -> list[str]:
    """The names in the axes of an input."""
    values = axes.values() if isinstance(axes, Mapping) else axes if isinstance(axes, tuple | list) else ()
    names = [getattr(value, "__name__", value) for value in values]  # a Dim has a name
    return [name for name in names if isinstance(name, str)]


def _reject(argument: str, where: str, unknown: Collection[str], names: Names) -> None:
    if unknown:
        wrong = sorted(unknown)
        known = sorted({*names.inputs, *names.sizes})
        raise InputError(
            f"{argument}: {where} {', '.join(map(repr, wrong))}{nearest(wrong[0], known)}; there are "
            f"{', '.join(map(repr, known)) or 'none'}"
        )
