"""Reading a nest: its statements, the scalars and the index expressions in them, and the arrays that they touch."""

from __future__ import annotations

from luminal.core.schedule.nest import ir as ln
from luminal.core.symbolic import Int, Var

Body = tuple[ln.Statement, ...]


def accesses(value: ln.Scalar) -> list[ln.Access]:
    """Every array element that a scalar reads, once each."""
    return list(dict.fromkeys(s.leaf for s in ln.postorder(value) if isinstance(s.leaf, ln.Access)))


def values(statement: ln.Statement) -> tuple[ln.Scalar, ...]:
    """The scalars that a statement computes itself (not those of statements inside it)."""
    match statement:
        case ln.Store() | ln.Define() | ln.Let() | ln.Keep() | ln.Reduction():
            return (statement.value,)
        case ln.Reductions():
            return tuple(value for _, value in statement.terms)
        case ln.Contract():
            return () if statement.prologue is None else (statement.prologue.value,)
        case ln.Loop() | ln.If() | ln.Sort() | ln.Alloc() | ln.Barrier() | ln.Assign() | ln.Prefetch():
            return ()


def touched(body: tuple[ln.Statement, ...]) -> tuple[set[str], set[str]]:
    """The arrays that ``body`` reads, and those that it writes."""
    read: set[str] = set()
    written: set[str] = set()
    for statement in statements(body):
        read |= {x.array for value in values(statement) for x in accesses(value)}
        match statement:
            case ln.Store():
                written.add(statement.array)
            case ln.Sort() | ln.Keep():
                read.add(statement.array)
                written.add(statement.array)
            case ln.Contract():
                read |= {statement.a, statement.b}
                written.add(statement.tile)
            case _:
                pass
    return read, written


def stack_bytes(nest: ln.LoopNest) -> int:
    """Bytes of the arrays that a task has to itself, all at once."""
    arrays = (s for s in statements(nest.body) if isinstance(s, ln.Alloc) and s.space == "local")
    return sum(array.extent * array.dtype.itemsize for array in arrays)


def statements(body: tuple[ln.Statement, ...]) -> list[ln.Statement]:
    """Every statement of a body, nested ones included."""
    found: list[ln.Statement] = []
    for statement in body:
        found.append(statement)
        found += statements(inside(statement))
    return found


def bound(body: tuple[ln.Statement, ...]) -> set[Var]:
    """The variables that statements of ``body`` bind."""
    found: set[Var] = set()
    for statement in statements(body):
        if isinstance(statement, ln.Loop | ln.Let | ln.Assign):
            found.add(statement.axis)
        if isinstance(statement, ln.Reduction | ln.Reductions | ln.Contract):
            found |= {loop.axis for loop in statement.loops}
        if isinstance(statement, ln.Contract) and statement.prologue is not None:
            found.add(statement.prologue.column)
    return found


def expressions(statement: ln.Statement) -> list[Int]:
    """Every index expression that a statement holds itself (not those of statements inside it)."""
    own: list[Int] = []
    match statement:
        case ln.Loop() | ln.Let():
            own = [statement.extent]
        case ln.Store():
            own = [statement.offset, *statement.valid]
        case ln.Sort() | ln.Keep():
            own = [statement.offset, statement.extent]
        case ln.Assign():
            own = [statement.value]
        case ln.Prefetch():
            own = [statement.offset]
        case ln.Reduction() | ln.Reductions():
            own = [loop.extent for loop in statement.loops]
        case ln.Contract():
            own = [statement.a_offset, statement.a_row, statement.b_offset, statement.b_column, statement.rows]
            own += [statement.tile_offset]
            own += [offset for offset in (statement.a_ahead, statement.b_ahead) if offset is not None]
            own += [loop.extent for loop in statement.loops]
        case ln.If():
            own = list(statement.valid)
        case ln.Define() | ln.Alloc() | ln.Barrier():
            pass
    return own + [e for value in values(statement) for e in scalar_expressions(value)]


def scalar_expressions(value: ln.Scalar) -> list[Int]:
    """Every index expression inside a scalar."""
    found: dict[Int, None] = {}
    for scalar in ln.postorder(value):
        leaf = scalar.leaf
        if isinstance(leaf, ln.Access):
            found |= dict.fromkeys((leaf.offset, *leaf.valid))
        elif isinstance(leaf, ln.Index):
            found[leaf.value] = None
        elif isinstance(leaf, ln.Holds):
            found |= dict.fromkeys(leaf.valid)
    return list(found)


def inside(statement: ln.Statement) -> Body:
    """The statements that a statement holds."""
    if isinstance(statement, ln.Loop | ln.If):
        return statement.body
    return statement.before if isinstance(statement, ln.Reduction) else ()


def prefix(body: Body) -> tuple[list[ln.Loop], Body]:
    """The perfectly nested loops at the top of a body, outermost first, and what is inside them."""
    loops: list[ln.Loop] = []
    while len(body) == 1 and isinstance(body[0], ln.Loop):
        loops.append(body[0])
        body = body[0].body
    return loops, body
