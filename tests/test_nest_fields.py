"""The descriptions of statements: that none leaves out a field, and that traversals reach what they describe."""

from dataclasses import fields, replace
from typing import Any, get_args

import pytest

from luminal.core import ops, types
from luminal.core import symbolic as sym
from luminal.core.matrix import DOT_INT8
from luminal.core.ops import Failure
from luminal.core.schedule.nest import ir
from luminal.core.schedule.nest.rewrite import replace_scalars, replace_statements, substitute
from luminal.core.schedule.nest.walk import (
    arrays_touched,
    expressions,
    headers,
    inside,
    reads,
    statements,
    values,
    variables_bound,
)
from luminal.core.symbolic import Var

F32 = types.f32
AT, K = Var("i_7", 0, 9), Var("k_0", 0, 3)
VALUE = ir.load("read", sym.expr(AT), F32, (sym.expr(AT) - 2,), bytes(4))
LOOP = ir.Loop(K, sym.expr(AT) + 1, "serial", ())

STATEMENTS = get_args(ir.Statement)
DESCRIBED = (*STATEMENTS, ir.Prologue, ir.Scales)

# The types of the fields of each role; fields of any other type are "other".
ROLES = {
    "scalars": {"Scalar", "Scalar | None"},
    "terms": {"tuple[tuple[str, Scalar], ...]"},
    "indices": {"Int", "Int | None", "Indices"},
    "conditions": {"tuple[Int, ...]"},
    "nested": {"tuple[Loop, ...]", "Prologue | None", "Scales | None"},
    "body": {"tuple[Statement, ...]"},
    "binds": {"Var", "Var | None"},
    "reads": {"str"},
    "writes": {"str"},
}
NO_ARRAYS = {"Loop.kind", "Define.name", "Reduction.name", "Alloc.name", "Alloc.space", "Prefetch.array"}

# A value of each type of field, with ``AT`` in it where it can be.
SAMPLES = {
    "Var": K,
    "Int": sym.expr(AT),
    "Int | None": sym.expr(AT),
    "Indices": (sym.expr(AT), 3),
    "tuple[Int, ...]": (sym.expr(AT) - 1,),
    "Scalar": VALUE,
    "tuple[tuple[str, Scalar], ...]": (("x", VALUE),),
    "tuple[Loop, ...]": (LOOP,),
    "tuple[Statement, ...]": (ir.Define("y", VALUE),),
    "Prologue | None": ir.Prologue(Var("e1", 0, 3), VALUE),
    "Scales | None": None,  # a sum with scales has a unit, and no prologue: ``SCALED``
    "str": "array",
    "tuple[str, ...]": ("x",),
    "Op": ops.SUM_REDUCE,
    "DType": F32,
    "Failure": Failure.INDEX,
    "Failure | None": Failure.INDEX,
    "int": 1,
    "int | None": 1,
    "bool": False,
    "Fragment | None": None,
    "MatrixUnit | None": None,
}


def _sample(kind: Any) -> ir.Statement:
    given = {"outer": 0} if kind is ir.Contract else {}  # no blocks of terms, which have one loop more
    statement: ir.Statement = kind(**{f.name: given.get(f.name, SAMPLES[f.type]) for f in fields(kind)})
    return statement


SCALES = ir.Scales(Var("e2", 0, 3), VALUE, Var("e1", 0, 3), VALUE)
SCALED: Any = replace(_sample(ir.Contract), prologue=None, a_ahead=None, unit=DOT_INT8, scales=SCALES)
SAMPLED = [pytest.param(_sample(kind), id=kind.__name__) for kind in STATEMENTS]
SAMPLED.append(pytest.param(SCALED, id="Contract, scaled"))
OF_COLUMNS = replace(SCALES, row=None, left=None)
SAMPLED.append(pytest.param(replace(SCALED, unit=None, outer=1, scales=OF_COLUMNS), id="Contract, scaled in columns"))


@pytest.mark.parametrize("kind", DESCRIBED)
def test_a_description_has_every_field_in_its_place(kind: Any) -> None:
    found = {f.name: f.type for f in fields(kind)}
    roles = {f.name: getattr(kind.fields, f.name) for f in fields(ir.Fields)}
    assert set(roles) == {*ROLES, "other"}
    placed = [name for role, names in roles.items() for name in names if role != "reads"]
    placed += [name for name in kind.fields.reads if name not in kind.fields.writes]
    assert sorted(placed) == sorted(found), f"{kind.__name__}.fields: fields that are missing, or described twice"
    for role, allowed in ROLES.items():
        assert all(found[name] in allowed for name in roles[role]), f"{kind.__name__}.fields.{role}"
    for name in kind.fields.other:
        described = any(found[name] in allowed for allowed in ROLES.values())
        assert not described or f"{kind.__name__}.{name}" in NO_ARRAYS, f"{kind.__name__}.fields: {name} is no other"


@pytest.mark.parametrize("statement", SAMPLED)
def test_every_index_expression_is_found_and_replaced(statement: ir.Statement) -> None:
    found = {v for s in statements((statement,)) for e in expressions(s) for v in sym.variables(e)}
    assert (AT in found) == (AT.name in repr(statement))
    assert AT.name not in repr(substitute((statement,), {AT: 5}))


@pytest.mark.parametrize("statement", SAMPLED)
def test_every_scalar_is_found_and_replaced(statement: ir.Statement) -> None:
    found = [access for s in statements((statement,)) for access in reads(s)]
    assert len(found) == repr(statement).count("read[")
    other = ir.load("another", 0, F32)
    (replaced,) = replace_scalars((statement,), lambda value: other)
    assert repr(replaced).count("another[") == len(found) and "read[" not in repr(replaced)
    assert {value for s in statements((replaced,)) for value in values(s)} <= {other}
    assert replace_scalars((replaced,), lambda value: VALUE) == (statement,)


@pytest.mark.parametrize("statement", SAMPLED)
def test_statements_inside_are_found_and_replaced(statement: ir.Statement) -> None:
    body = inside(statement)
    assert statements((statement,)) == [statement, *body]
    barrier = ir.Barrier()
    (replaced,), count = replace_statements((statement,), lambda s: (barrier, barrier) if s in body else None)
    assert count == len(body) and inside(replaced) == (barrier, barrier) * count
    assert replace_statements((statement,), lambda s: None) == ((statement,), 0)


def test_what_statements_touch_and_bind() -> None:
    every = {kind: _sample(kind) for kind in STATEMENTS}
    alone = {kind: arrays_touched((statement,)) for kind, statement in every.items()}
    assert alone[ir.Store] == ({"read"}, {"array"})
    assert alone[ir.Sort] == ({"array"}, {"array"})
    assert alone[ir.KeepLeast] == ({"read", "array"}, {"array"})
    assert alone[ir.Contract] == ({"read", "array"}, {"array"})
    assert alone[ir.Prefetch] == (set(), set())
    others = {kind: arrays for kind, arrays in alone.items() if arrays[1] == set() and kind is not ir.Prefetch}
    assert all(arrays[0] <= {"read"} for arrays in others.values())
    binding = {kind: {v.name for v in variables_bound((statement,))} for kind, statement in every.items()}
    assert {kind for kind, names in binding.items() if names} == {
        ir.Loop, ir.Let, ir.Assign, ir.Reduction, ir.Reductions, ir.Contract,
    }  # fmt: skip
    assert binding[ir.Contract] == {"k_0", "e1"}
    assert headers(every[ir.Contract]) == headers(every[ir.Reductions]) == (LOOP,)
    assert headers(every[ir.Loop]) == (every[ir.Loop],) and headers(every[ir.If]) == ()


def test_conditions_that_always_hold_are_left_out() -> None:
    inner = ir.Store("array", sym.expr(AT), VALUE, (sym.expr(AT) - 1, sym.expr(K) - 1))
    body = (ir.If((sym.expr(AT) - 3,), (inner,)),)
    value = ir.load("read", 3, F32)
    assert substitute(body, {AT: 3}) == (ir.Store("array", 3, value, (sym.expr(K) - 1,)),)
    assert isinstance(substitute(body, {AT: 2})[0], ir.If)
