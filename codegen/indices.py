"""Index expressions as C++: an integer for one lane, a ``vec`` of them where lanes differ, masks for conditions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from luminal.codegen.frame import Frame, Value
from luminal.core import symbolic as sym
from luminal.core.symbolic import Atom, Expr, FloorDiv, Int, MinMax, Mod, Var


class Indices:
    """Renders index expressions into a frame. Quotients, and parts invariant in an inner loop, get names."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    # ---- how an expression moves from lane to lane -----------------------------------------------------------------

    def stride(self, value: Int) -> int | Expr | None:
        """The difference of ``value`` between neighbouring lanes; None where that is not the same for all lanes.

        Every group starts at a multiple of the number of lanes, which is used in the proof.
        """
        group = self.frame.group
        value = self.frame.resolve(value)
        variables = sym.variables(value)
        if group is None:
            return 0
        if any(self.frame.variable(v).varying for v in variables if v != group.axis):
            return None
        linear = sym.coefficient(value, group.axis)
        if linear is not None:
            return linear[0]
        lane = Var("lane of group", 0, group.lanes - 1)
        return _slope(self._in_lane(value, sym.expr(lane)), lane)

    def groups(self, value: Int) -> tuple[int, int] | None:
        """``(size, stride)`` where ``value`` grows by 1 per lane in runs of ``size`` lanes, and by ``stride`` per run,
        for the longest such runs; None where there are none."""
        group = self.frame.group
        assert group is not None
        value = self.frame.resolve(value)
        if any(self.frame.variable(v).varying for v in sym.variables(value) if v != group.axis):
            return None
        sizes = [size for size in (32, 16, 8, 4, 2) if size < group.lanes and group.lanes % size == 0]
        for size in sizes:
            inside, outside = Var("lane of run", 0, size - 1), Var("run of lanes", 0, group.lanes // size - 1)
            found = self._in_lane(value, sym.expr(outside) * size + sym.expr(inside))
            stride = _slope(found, outside)
            if _slope(found, inside) == 1 and stride is not None:
                return size, stride
        return None

    def _in_lane(self, value: Int, lane: Int) -> Int:
        """``value`` in one lane of a group, which starts at a multiple of the number of lanes."""
        group = self.frame.group
        assert group is not None
        step = Var("lane group", 0, sym.ceildiv(group.axis.hi + 1, group.lanes) - 1)
        return sym.substitute(value, {group.axis: sym.expr(step) * group.lanes + lane})

    def aligned(self, value: Int) -> bool:
        """Whether ``value`` of the first lane is a multiple of the number of lanes, in every group."""
        group = self.frame.group
        assert group is not None
        groups = Var("lane group", 0, sym.ceildiv(group.axis.hi + 1, group.lanes) - 1)
        first: Int = 0 if group.only else sym.expr(groups) * group.lanes
        return sym.mod(sym.substitute(self.frame.resolve(value), {group.axis: first}), group.lanes) == 0

    # ---- one lane --------------------------------------------------------------------------------------------------

    def text(self, value: Int, scope: int | None = None) -> str:
        """``value`` for the first lane, as a sum whose terms can be added to a pointer; for a line in the ``scope`` of
        that number, if it is given, in which names of inner ones are not known."""
        value = self._first_lane(self.frame.resolve(value))
        if isinstance(value, int):
            return self._integer(value)
        key = ("index", value)
        known = self.frame.find(key)
        if known is not None and (scope is None or self.frame.find_depth(key) <= scope):
            return known.text
        levels: dict[int, Int] = {}
        for monomial, coefficient in value.terms:
            term: Int = Expr(((monomial, coefficient),)) if monomial else coefficient
            depth = self.frame.place(term) if monomial else -1
            if depth >= 0 and self.frame.scopes[depth].unrolled:
                depth = self.frame.depth  # a number, which needs no name
            levels[depth] = levels.get(depth, 0) + term
        constant = levels.pop(-1, 0)
        *outer, innermost = sorted(levels)
        invariant: Int = 0
        name = ""
        for depth in outer:
            invariant = invariant + levels[depth]
            name = self._named(invariant, self._sum(levels[depth], name), depth)
        return self._sum(levels[innermost] + constant, name)

    def expression(self, value: Int) -> str:
        """``value`` as the whole right side of a definition: if it is a quotient, that gets no name of its own."""
        value = self.frame.resolve(value)
        if isinstance(value, Expr) and len(value.terms) == 1:
            (monomial, coefficient), *_ = value.terms
            if coefficient == 1 and len(monomial) == 1 and not isinstance(monomial[0], Var):
                return self._quotient(monomial[0])
        return self.text(value)

    def factor(self, value: Int) -> str:
        """``value`` as an operand of a product or comparison: in parentheses if it is a sum."""
        return _grouped(self.text(value))

    def name(self, value: Int) -> str:
        """The name of a variable that holds ``value``, or its text where that is one variable or number."""
        value = self.frame.resolve(value)
        text = self.text(value)
        return text if _simple(text) else self._named(value, text, self.frame.place(value))

    def named(self, value: Int, name: str) -> None:
        """Notes that the variable ``name`` holds ``value`` in the innermost scope."""
        value = self.frame.resolve(value)
        if isinstance(value, Expr) and self.frame.find(("index", value)) is None:
            self.frame.remember(("index", value), Value(name), self.frame.depth)

    def rounded(self, value: Expr, step: int) -> str:
        """``value``, which is not negative, rounded down to a multiple of ``step``, by name."""
        key = ("rounded", value, step)
        known = self.frame.find(key)
        if known is None:
            depth = self.frame.place(value)
            text = f"{self.factor(value)} / {step} * {step}"
            name = self.frame.names.fresh("full")
            self.frame.line(f"const {self.frame.integer} {name} = {text};", depth)
            known = self.frame.remember(key, Value(name), depth)
        return known.text

    def _first_lane(self, value: Int) -> Int:
        """``value`` with the axis replaced by 0 where the group is the only one of its loop."""
        group = self.frame.group
        return sym.substitute(value, {group.axis: 0}) if group is not None and group.only else value

    def _integer(self, value: int) -> str:
        if abs(value) < 1 << 31:
            return str(value)
        return f"INT64_C({value})" if self.frame.dialect.block is None else f"int64_t{{{value}}}"

    def _typed(self, value: Int) -> str:
        """``value`` for the first lane; a number is written with the type of indices."""
        value = self._first_lane(self.frame.resolve(value))
        return f"{self.frame.integer}{{{value}}}" if isinstance(value, int) else self.text(value)

    def _named(self, value: Int, text: str, depth: int) -> str:
        if _simple(text):
            return text
        known = self.frame.find(("index", value))
        if known is None:
            name = self.frame.names.fresh("n")
            self.frame.line(f"const {self.frame.integer} {name} = {text};", depth)
            known = self.frame.remember(("index", value), Value(name), depth)
        return known.text

    def _sum(self, value: Int, start: str = "") -> str:
        """``start`` plus ``value``; positive terms first."""
        if isinstance(value, int):
            return (
                f"{start} {'-' if value < 0 else '+'} {abs(value)}"
                if start and value
                else start or self._integer(value)
            )
        text = start
        for monomial, coefficient in sorted(value.terms, key=lambda t: (t[1] < 0, not t[0])):
            factors = [self._atom(atom) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, self._integer(abs(coefficient)))
            product = "*".join(factors)
            if text:
                text += f" {'-' if coefficient < 0 else '+'} {product}"
            else:
                text = f"-{product}" if coefficient < 0 else product
        return text

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Var):
            return self.frame.variable(atom).text
        whole = sym.expr(atom)
        known = self.frame.find(("index", whole))
        return known.text if known else self._named(whole, self._quotient(atom), self.frame.place(whole))

    def _quotient(self, atom: Atom) -> str:
        if isinstance(atom, MinMax):
            return f"{atom.which}imum({self.text(atom.a)}, {self.text(atom.b)})"
        assert isinstance(atom, FloorDiv | Mod)
        if sym.always(atom.num):
            operator = "/" if isinstance(atom, FloorDiv) else "%"
            return f"{self.factor(atom.num)} {operator} {self.factor(atom.den)}"
        function = "floor_div" if isinstance(atom, FloorDiv) else "floor_mod"
        return f"{function}({self.text(atom.num)}, {self.text(atom.den)})"

    # ---- all lanes of the group ------------------------------------------------------------------------------------

    def vector(self, value: Int) -> str:
        """``value`` of every lane, by name: a ``vec<int64_t, lanes>``."""
        value = self.frame.resolve(value)
        group = self.frame.group
        assert group is not None
        key = ("vector index", value, group.lanes)
        known = self.frame.find(key)
        if known is None:
            depth = self.frame.place(value)
            text = self._vector(value, group.lanes)
            name = self.frame.names.fresh("at")
            self.frame.line(f"const vec<{self.frame.integer}, {group.lanes}> {name} = {text};", depth)
            known = self.frame.remember(key, Value(name, True), depth)
        return known.text

    def narrow(self, axis: Var, text: str) -> None:
        """``text`` is the ``axis``, which was looked up, in elements of 32 bits."""
        self.frame.remember(("narrow", sym.expr(axis)), Value(text, True), self.frame.place(sym.expr(axis)))

    def positions(self, value: Int) -> str:
        """``value`` of every lane, by name, in elements of 32 bits where such are known, else as ``vector``."""
        known = self.frame.find(("narrow", self.frame.resolve(value)))
        return self.vector(value) if known is None else known.text

    def _vector(self, value: Int, lanes: int) -> str:
        stride = self.stride(value)
        if stride is not None:
            first = self._typed(value)
            if stride == 0:
                return f"broadcast<{lanes}>({first})"
            if stride == 1:
                return f"iota<{lanes}>({first})"
            start, numbers = f"broadcast<{lanes}>({first})", f"iota<{lanes}>({self._typed(0)})"
            return f"add({start}, mul({numbers}, broadcast<{lanes}>({self._typed(stride)})))"
        assert isinstance(value, Expr)
        uniform: Int = 0
        terms: list[str] = []
        for monomial, coefficient in value.terms:
            varying = [atom for atom in monomial if self.stride(sym.expr(atom)) != 0]
            scale: Int = coefficient
            for atom in monomial:
                if atom not in varying:
                    scale = scale * sym.expr(atom)
            if not varying:
                uniform = uniform + scale
                continue
            text = self._vector_atom(varying[0], lanes)
            for atom in varying[1:]:
                text = f"mul({text}, {self._vector_atom(atom, lanes)})"
            terms.append(text if scale == 1 else f"mul({text}, {self._broadcast(scale, lanes)})")
        if uniform != 0:
            terms.append(self._broadcast(uniform, lanes))
        text = terms[0]
        for term in terms[1:]:
            text = f"add({text}, {term})"
        return text

    def _broadcast(self, value: Int, lanes: int) -> str:
        return f"broadcast<{lanes}>({self._typed(value)})"

    def _vector_atom(self, atom: Atom, lanes: int) -> str:
        group = self.frame.group
        assert group is not None
        if isinstance(atom, Var):
            atom_value = sym.expr(atom)
            return f"iota<{lanes}>({self._typed(atom_value)})" if atom == group.axis else (
                self.frame.variable(atom).text
            )  # fmt: skip
        if isinstance(atom, MinMax):
            a, b = self.vector(atom.a), self.vector(atom.b)
            return f"max({a}, {b})" if atom.which == "max" else f"neg(max(neg({a}), neg({b})))"
        assert isinstance(atom, FloorDiv | Mod)
        number = self.vector(atom.num)
        if isinstance(atom.den, int) and atom.den & (atom.den - 1) == 0:  # shift and mask round down for any sign
            if isinstance(atom, Mod):
                return f"bit_and({number}, {self._broadcast(atom.den - 1, lanes)})"
            return f"shr({number}, {self._broadcast(atom.den.bit_length() - 1, lanes)})"
        divisor = self._broadcast(atom.den, lanes) if self.stride(atom.den) == 0 else self.vector(atom.den)
        if isinstance(atom, Mod):
            return f"mod({number}, {divisor})"
        if not sym.always(atom.num):
            number = f"add({number}, neg(mod({number}, {divisor})))"  # div truncates
        return f"div({number}, {divisor})"

    # ---- conditions ------------------------------------------------------------------------------------------------

    def split(self, valid: Sequence[Int]) -> tuple[list[Int], list[Int]]:
        """The conditions that are the same for all lanes, and those that differ between lanes."""
        uniform = [v for v in valid if self.stride(v) == 0]
        return uniform, [v for v in valid if self.stride(v) != 0]

    def holds(self, valid: Sequence[Int]) -> str:
        """Whether every condition is at least zero; for conditions that all lanes share."""
        return " && ".join(f"{self.text(v)} >= 0" for v in valid)

    def mask(self, valid: Sequence[Int], *, active: bool) -> str:
        """The lanes in which every condition is at least zero, by name; with ``active``, only active lanes."""
        group = self.frame.group
        assert group is not None
        partial = active and group.count is not None
        terms = [self._condition(self.frame.resolve(v)) for v in valid] + ([self.active()] if partial else [])
        mask = terms[0]
        for term in terms[1:]:
            depth = max(self.frame.find_depth(("mask", mask)), self.frame.find_depth(("mask", term)))
            mask = self._mask(("and", mask, term), f"bit_and({mask}, {term})", depth)
        return mask

    def _condition(self, value: Int) -> str:
        """The name of the mask of lanes where ``value >= 0``."""
        group, stride = self.frame.group, self.stride(value)
        assert group is not None
        if stride == 1:
            text = f"lanes_from<{group.lanes}>({self.text(value * -1)})"
        elif stride == -1:
            text = f"lanes_below<{group.lanes}>({self.text(value + 1)})"
        else:
            text = f"less({self._broadcast(-1, group.lanes)}, {self.vector(value)})"
        return self._mask(("holds", value, group.lanes), text, self.frame.place(value))

    def active(self) -> str:
        """The active lanes of a partial group, by name."""
        group = self.frame.group
        assert group is not None and group.count is not None
        return self._mask("active", f"lanes_below<{group.lanes}>({group.count})", self._group_depth())

    def _group_depth(self) -> int:
        group = self.frame.group
        assert group is not None
        return self.frame.place(sym.expr(group.axis))

    def _mask(self, key: Hashable, text: str, depth: int) -> str:
        """The name of the mask ``text``, defined once for each ``key``."""
        known = self.frame.find(key)
        if known is None:
            assert self.frame.group is not None
            name = self.frame.names.fresh("m")
            self.frame.line(f"const vec<bool, {self.frame.group.lanes}> {name} = {text};", depth)
            known = self.frame.remember(key, Value(name, True), depth)
            self.frame.remember(("mask", name), known, depth)
        return known.text


def _simple(text: str) -> bool:
    return text.replace("_", "a").isalnum()


def _slope(value: Int, variable: Var) -> int | None:
    """The coefficient of ``variable`` in ``value``, where ``value`` is linear in it and that is a number, else None."""
    linear = sym.coefficient(value, variable)
    return linear[0] if linear is not None and isinstance(linear[0], int) else None


def _grouped(text: str) -> str:
    return text if _simple(text) else f"({text})"
