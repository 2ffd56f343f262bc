"""The roles of the fields of statements: all that traversals of a nest know of a kind of statement."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fields:
    """The roles of the fields of a kind of statement, by field name: all that traversals (``walk``, ``rewrite``) know
    of it. Every field has one role; an array that is both read and written has two.

    A field of ``scalars``, ``indices``, ``nested``, ``reads``, ``writes`` or ``binds`` is one such value, a tuple of
    them or None.
    """

    scalars: tuple[str, ...] = ()  # values that it computes
    terms: tuple[str, ...] = ()  # pairs of a name and such a value
    indices: tuple[str, ...] = ()  # index expressions
    conditions: tuple[str, ...] = ()  # masks: tuples of index expressions that are at least zero where they hold
    nested: tuple[str, ...] = ()  # loop headers, and others with a ``Fields`` of their own
    body: tuple[str, ...] = ()  # the statements inside
    reads: tuple[str, ...] = ()  # names of arrays that it reads other than in scalars
    writes: tuple[str, ...] = ()  # names of arrays that it writes
    binds: tuple[str, ...] = ()  # index variables
    other: tuple[str, ...] = ()  # names that it defines, types, numbers and flags: traversals ignore them
