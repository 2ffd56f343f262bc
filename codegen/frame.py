"""Where generated text goes: nested scopes, their names, and the outermost scope in which a value can be computed.

A scope is a block of C++: the function, a loop's body, a lambda. A block's text is appended to its parent's when the
block is closed, so a line added to an outer scope in the meantime precedes the block: this is how loop-invariant
values are hoisted.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from luminal.codegen.cpp import Names
from luminal.codegen.dialect import Dialect
from luminal.codegen.dialect_cpp import CPP
from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.schedule.nest.ir import Access, Scalar, Temporary, postorder
from luminal.core.schedule.nest.walk import leaf_expressions
from luminal.core.symbolic import Atom, FloorDiv, Int, Mod, Var
from luminal.core.types import DType

INDENT = "    "


@dataclass(frozen=True)
class Value:
    """The C++ text of a scalar, and whether it differs between the lanes of the open vector group. With ``rounds``, the
    scalar is the text rounded to that type."""

    text: str
    varying: bool = False
    rounds: DType | None = None


@dataclass(frozen=True)
class Group:
    """The lanes that an open vector loop runs at once. ``axis`` is the first lane's index. ``count`` is the text of the
    number of active lanes in the partial group at the loop's end, None in a full group. ``only``: this is the loop's
    only group, in which ``axis`` is 0 and has no name."""

    axis: Var
    lanes: int
    count: str | None = None
    only: bool = False


def words(lines: Iterable[str]) -> set[str]:
    """The names and numbers in lines of text: what is declared before them is declared only where they use it."""
    return set(re.findall(r"\w+", "\n".join(lines)))


@dataclass
class Scope:
    """An open block. ``certain``: it is entered whenever its parent is. ``writes``: the arrays that a loop writes in
    any iteration. ``unrolled``: its axis is a constant."""

    certain: bool = True
    writes: frozenset[str] = frozenset()
    unrolled: bool = False
    lines: list[str] = field(default_factory=list)
    known: dict[Hashable, Value] = field(default_factory=dict)
    variables: dict[Var, Value] = field(default_factory=dict)
    temporaries: dict[str, Value] = field(default_factory=dict)
    definitions: dict[Var, Int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    aliases: list[Var] = field(default_factory=list)


@dataclass(frozen=True)
class Needs:
    """What a scalar depends on: variables, temporaries, the arrays that it reads. ``guarded``: it must not be computed
    speculatively (it reads memory, or divides by a value that may be zero)."""

    variables: frozenset[Var]
    temporaries: frozenset[str]
    arrays: frozenset[str]
    guarded: bool


class Frame:
    """The scopes that are open at one point of the emission, the innermost last.

    ``dialect`` is the language of the text, ``integer`` the type in which it computes indices.
    """

    def __init__(self, names: Names, dialect: Dialect = CPP, integer: str = "int64_t") -> None:
        self.names = names
        self.dialect = dialect
        self.integer = integer
        self.scopes: list[Scope] = []
        self.group: Group | None = None
        self._aliases: dict[Var, Int] = {}
        self._versions: dict[str, int] = {}
        self._needs: dict[Scalar, Needs] = {}

    # ---- scopes ----------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """The number of the innermost scope."""
        return len(self.scopes) - 1

    @contextmanager
    def open(
        self, head: str, *, certain: bool = True, writes: frozenset[str] = frozenset(), tail: str = "}"
    ) -> Iterator[Scope]:
        """Opens a block after the lines ``head``, which end in an opening brace, for the duration of the ``with``."""
        with self._opened(Scope(certain, writes)) as scope:
            yield scope
        for name in scope.names:
            self.names.release(name)
        if self.scopes:
            inner = (INDENT + line if line else line for line in scope.lines)
            self.scopes[-1].lines += [*head.splitlines(), *inner, tail]

    @contextmanager
    def unbraced(self, *, writes: frozenset[str] = frozenset()) -> Iterator[Scope]:
        """A scope of the nest whose text belongs to the block around it."""
        with self._opened(Scope(True, writes)) as scope:
            yield scope
        self.scopes[-1].lines += scope.lines
        self.scopes[-1].names += scope.names

    @contextmanager
    def _opened(self, scope: Scope) -> Iterator[Scope]:
        self._invalidate(scope.writes)
        self.scopes.append(scope)
        yield scope
        self.scopes.pop()
        self._invalidate(scope.writes)
        for axis in scope.aliases:
            del self._aliases[axis]

    @contextmanager
    def vector(self, group: Group) -> Iterator[None]:
        """``group`` is open for the duration of the ``with``. Raises SpecError inside another vector loop."""
        if self.group is not None:
            raise SpecError(f"vector loop {group.axis} inside vector loop {self.group.axis}")
        self.group = group
        yield
        self.group = None

    def line(self, text: str, depth: int | None = None) -> None:
        """Adds a line to the scope number ``depth`` (the innermost, where None)."""
        self.scopes[self.depth if depth is None else depth].lines.append(text)

    def wrote(self, array: str) -> None:
        """Notes a write to ``array``: values read from it before are no longer reused."""
        self._invalidate((array,))

    def _invalidate(self, arrays: Iterable[str]) -> None:
        for array in arrays:
            self._versions[array] = self._versions.get(array, 0) + 1

    # ---- names in scope --------------------------------------------------------------------------------------------

    def bind(self, axis: Var, value: Value) -> None:
        """Gives ``axis`` the text ``value`` in the innermost scope. Raises SpecError where it is already defined."""
        if any(axis in scope.variables for scope in self.scopes) or axis in self._aliases:
            raise SpecError(f"loop nest: variable {axis} is defined again in its own scope")
        self.scopes[-1].variables[axis] = value

    def declare(self, axis: Var, *, varying: bool = False) -> str:
        """A new name for ``axis``, in scope as long as the innermost scope."""
        name = self.names.like(axis.name)
        self.scopes[-1].names.append(name)
        self.bind(axis, Value(name, varying))
        return name

    def define(self, axis: Var, value: Int) -> str:
        """As ``declare``; also notes that ``axis`` is defined as ``value``."""
        self.scopes[-1].definitions[axis] = value
        return self.declare(axis)

    @property
    def definitions(self) -> dict[Var, Int]:
        """The values of the variables in scope that ``define`` introduced."""
        return {axis: value for scope in self.scopes for axis, value in scope.definitions.items()}

    def alias(self, axis: Var, value: Int) -> None:
        """Has ``axis`` replaced by ``value`` in the innermost scope: the form of indices that differ between lanes
        decides how they are accessed."""
        self._aliases[axis] = self.resolve(value)
        self.scopes[-1].aliases.append(axis)

    def resolve(self, value: Int) -> Int:
        """``value`` with aliases replaced by what they stand for."""
        return sym.substitute(value, self._aliases) if self._aliases else value

    def variable(self, var: Var) -> Value:
        """The name of a variable. Raises SpecError where it is not in scope."""
        return self.scopes[self._variable_depth(var)].variables[var]

    def temporary(self, name: str) -> Value:
        """The value of a temporary. Raises SpecError where it is not in scope."""
        return self.scopes[self._temporary_depth(name)].temporaries[name]

    def _variable_depth(self, var: Var) -> int:
        for depth in range(self.depth, -1, -1):
            if var in self.scopes[depth].variables:
                return depth
        raise SpecError(f"loop nest: variable {var} is used out of its scope")

    def _temporary_depth(self, name: str) -> int:
        for depth in range(self.depth, -1, -1):
            if name in self.scopes[depth].temporaries:
                return depth
        raise SpecError(f"loop nest: temporary {name} is used out of its scope")

    # ---- placement -------------------------------------------------------------------------------------------------

    def place(self, value: Int) -> int:
        """The outermost scope in which an index expression can be computed."""
        depth = max((self._variable_depth(v) for v in sym.variables(value)), default=0)
        return max(depth, self._guard()) if _may_trap(value) else depth

    def place_scalar(self, value: Scalar) -> int:
        """The outermost scope in which a scalar can be computed."""
        needs = self.needs(value)
        depth = max((self._variable_depth(v) for v in needs.variables), default=0)
        depth = max([depth, *(self._temporary_depth(name) for name in needs.temporaries)])
        for number, scope in enumerate(self.scopes):
            if scope.writes & needs.arrays:
                depth = max(depth, number)
        return max(depth, self._guard()) if needs.guarded else depth

    def _guard(self) -> int:
        return max((number for number, scope in enumerate(self.scopes) if not scope.certain), default=0)

    def key(self, value: Scalar) -> Hashable:
        """``value`` with the versions of the arrays, and the names of the temporaries, that it reads."""
        needs = self.needs(value)
        versions = sorted((a, self._versions[a]) for a in needs.arrays if a in self._versions)
        return (value, *versions, *sorted((name, self.temporary(name).text) for name in needs.temporaries))

    def find(self, key: Hashable) -> Value | None:
        """The value that ``remember`` recorded for ``key`` in a scope that is still open, or None."""
        return next((scope.known[key] for scope in reversed(self.scopes) if key in scope.known), None)

    def find_depth(self, key: Hashable) -> int:
        """The number of the scope in which ``find`` finds ``key``."""
        return max(depth for depth, scope in enumerate(self.scopes) if key in scope.known)

    def remember(self, key: Hashable, value: Value, depth: int) -> Value:
        """Has ``find`` return ``value`` for ``key`` while the scope number ``depth`` is open; returns ``value``."""
        self.scopes[depth].known[key] = value
        return value

    def needs(self, value: Scalar) -> Needs:
        """What ``value`` depends on, itself and through its operands."""
        found = self._needs.get(value)
        if found is None:
            for scalar in postorder(value):
                if scalar not in self._needs:
                    self._needs[scalar] = self._own_needs(scalar)
            found = self._needs[value]
        return found

    def _own_needs(self, value: Scalar) -> Needs:
        leaf = value.leaf
        resolved = [self.resolve(i) for i in leaf_expressions(leaf)]
        below = [self._needs[operand] for operand in value.operands]
        return Needs(
            frozenset[Var]().union(*(sym.variables(i) for i in resolved), *(n.variables for n in below)),
            frozenset({leaf.name} if isinstance(leaf, Temporary) else ()).union(*(n.temporaries for n in below)),
            frozenset({leaf.array} if isinstance(leaf, Access) else ()).union(*(n.arrays for n in below)),
            isinstance(leaf, Access) or any(map(_may_trap, resolved)) or any(n.guarded for n in below),
        )


def _may_trap(value: Int) -> bool:
    return any(_atom_may_trap(atom) for atom in sym.atoms(value))


def _atom_may_trap(atom: Atom) -> bool:
    if isinstance(atom, FloorDiv | Mod):
        return not sym.always(atom.den - 1) or _may_trap(atom.num)
    if isinstance(atom, sym.MinMax):
        return _may_trap(atom.a) or _may_trap(atom.b)
    return False
