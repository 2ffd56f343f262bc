"""Rules of Select."""

from __future__ import annotations

from luminal.core import ir, ops
from luminal.core.rules.match import FALSE, TRUE, P, X, Y, Z, apply
from luminal.core.rules.pattern import BOOL, NUMBERS, rule

SELECT = ops.SELECT
_TYPES = NUMBERS + BOOL

RULES = (
    rule("Select(true, x, y) = x", apply(SELECT, TRUE, X, Y), lambda x, y: x, _TYPES),
    rule("Select(false, x, y) = y", apply(SELECT, FALSE, X, Y), lambda x, y: y, _TYPES),
    rule("Select(p, x, x) = x", apply(SELECT, P, X, X), lambda p, x: x, _TYPES),
    rule("Select(not p, x, y) = Select(p, y, x)", apply(SELECT, apply(ops.XOR, P, TRUE), X, Y),
         lambda p, x, y: ir.select(p, y, x), _TYPES),
    rule("Select(p, true, false) = p", apply(SELECT, P, TRUE, FALSE), lambda p: p, BOOL),
    rule("Select(p, false, true) = p ^ true", apply(SELECT, P, FALSE, TRUE), lambda p: p ^ 1, BOOL),
    rule("Select(p, Select(p, x, y), z) = Select(p, x, z)", apply(SELECT, P, apply(SELECT, P, X, Y), Z),
         lambda p, x, y, z: ir.select(p, x, z), _TYPES),
    rule("Select(p, x, Select(p, y, z)) = Select(p, x, z)", apply(SELECT, P, X, apply(SELECT, P, Y, Z)),
         lambda p, x, y, z: ir.select(p, x, z), _TYPES),
)  # fmt: skip
