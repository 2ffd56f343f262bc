"""Faults planted in the compiler by mechanical mutation, and what ``luminal.diff`` says of each.

    python -m tests.mutations --seed 1 --each 14 --model cnn --model gpt --model minilm=FILE.onnx -o FOLDER

A mutation changes one place of a function of a rule, of a transform or of a dialect: it drops a condition, swaps two
operands, shifts an index or skips a write. All such places are enumerated from the sources and drawn in a random order
by the seed. Each is tried in a child of its own, which mutates the functions in memory. Where the compiler refuses, or
makes the same sources as without the fault, or every output agrees, the mutation is counted apart. Of the others
``luminal.diff`` has to name the operator, and the rule, transform or pass.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import hashlib
import json
import os
import pickle
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import luminal
from luminal.codegen import render
from luminal.comparison import bisection, locate
from luminal.comparison import inputs as drawing
from luminal.comparison.oracle import Oracle
from luminal.comparison.references import Interpreter
from luminal.core import interp, pipeline
from luminal.core import target as targets
from luminal.core.errors import BuildError
from luminal.core.ir import Graph
from tests import mutated_models

ROOT = Path(luminal.__file__).resolve().parent
PLACES = {
    "rule": ("core/rules/arithmetic.py", "core/rules/cast.py", "core/rules/constant.py", "core/rules/functions.py",
             "core/rules/logic.py", "core/rules/quantised.py", "core/rules/quotient.py", "core/rules/select.py",
             "core/rules/view.py", "core/rules/pattern.py"),
    "transform": tuple(f"core/schedule/transform/{name}.py" for name in (
        "accumulate", "block_terms", "carry", "fetch", "loops", "split_regions", "stream", "tensorise", "transpose",
        "unpack", "unroll_jam")),
    "dialect": ("codegen/dialect.py", "codegen/dialect_cpp.py", "codegen/cpp.py"),
}  # fmt: skip
TARGET = targets.parse("avx2")
CHANGED = ("found", "crashed", "hung")  # what becomes of mutations that change a library's outputs
SECONDS = 1200  # for one mutation, on a machine that others use as well


@dataclass(frozen=True)
class Mutation:
    """The ``number``-th change that is possible in the function at ``line`` of ``file``; ``how`` says what it does, to
    what stands in the lines of ``span``."""

    group: str
    file: str
    function: str
    line: int
    column: int
    number: int
    how: str
    span: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.how}"


# ---- changes of a syntax tree ----------------------------------------------------------------------------------------

Function = ast.FunctionDef | ast.Lambda
Lines = tuple[int, int]  # the first and the last
Change = tuple[str, Callable[[], None], Lines]


def changes(function: Function) -> list[Change]:
    """What may be changed in ``function``, in words, how to do so in place, and in which lines that is."""
    found: list[Change] = []
    body: Sequence[ast.AST] = function.body if isinstance(function, ast.FunctionDef) else [function]
    for statement in body:
        for node in _own(statement):
            found += [(*change, _lines(node)) for change in _of(node)]
    return found


def _lines(node: Any) -> Lines:
    """The lines of what is changed of ``node``."""
    changed = node.test if isinstance(node, ast.If | ast.IfExp) else node
    changed = node.ifs[0] if isinstance(node, ast.comprehension) and node.ifs else changed
    return getattr(changed, "lineno", 0), getattr(changed, "end_lineno", 0)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own(child)


def _of(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    text = ast.unparse(node).partition("\n")[0][:70]
    match node:
        case ast.If() | ast.IfExp():
            for value in (True, False):
                yield (
                    f"the condition {ast.unparse(node.test)[:60]!r} is {value}",
                    _setting(node, "test", ast.Constant(value)),
                )
        case ast.BoolOp():
            for k in range(len(node.values)):
                yield f"{ast.unparse(node.values[k])[:60]!r} is dropped of {text!r}", _dropping(node, k)
        case ast.comprehension() if node.ifs:
            yield f"the condition {ast.unparse(node.ifs[0])[:60]!r} is dropped", _setting(node, "ifs", [])
        case ast.BinOp() if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow | ast.LShift):
            yield f"operands are swapped in {text!r}", _swapping(node)
        case ast.Call() if len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args):
            yield f"the last arguments are swapped in {text!r}", _swapping_arguments(node)
        case ast.Subscript() if isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant):
            if isinstance(node.slice.value, int):
                shifted = ast.Constant(node.slice.value + 1)
                yield f"the index is one more in {text!r}", _setting(node, "slice", shifted)
        case ast.BinOp() if isinstance(node.op, ast.Add | ast.Mult):
            yield f"{text!r} is one more", _setting(node, "right", ast.BinOp(node.right, ast.Add(), ast.Constant(1)))
        case ast.Expr() if isinstance(node.value, ast.Call):
            yield f"{text!r} is skipped", _setting(node, "value", ast.Constant(None))
        case ast.AugAssign():
            yield f"{text!r} is skipped", _setting(node, "value", _neutral(node.op))
        case ast.Tuple() | ast.List() if isinstance(node.ctx, ast.Load) and len(node.elts) >= 2:
            yield f"the last element of {text!r} is left out", _setting(node, "elts", node.elts[:-1])


def _setting(node: Any, field: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(node, field, value)


def _dropping(node: ast.BoolOp, k: int) -> Callable[[], None]:
    return lambda: node.values.__setitem__(k, ast.Constant(isinstance(node.op, ast.And)))


def _swapping(node: ast.BinOp) -> Callable[[], None]:
    def swap() -> None:
        node.left, node.right = node.right, node.left

    return swap


def _swapping_arguments(node: ast.Call) -> Callable[[], None]:
    def swap() -> None:
        node.args[-2:] = node.args[-1], node.args[-2]

    return swap


def _neutral(op: ast.operator) -> ast.expr:
    return (
        ast.Constant(1 if isinstance(op, ast.Mult) else 0) if not isinstance(op, ast.Add) else ast.Tuple([], ast.Load())
    )


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """The functions of a module in the order of the source, by qualified name."""

    def inside(node: ast.AST, path: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.Lambda):
                name = f"{path}{getattr(child, 'name', '<lambda>')}"
                yield name, child
                yield from inside(child, f"{name}.<locals>.")
            else:
                yield from inside(child, f"{path}{child.name}." if isinstance(child, ast.ClassDef) else path)

    return inside(tree, "")


def mutations() -> list[Mutation]:
    """Every mutation of every function, in the order of the sources."""
    found = []
    for group, files in PLACES.items():
        for file in files:
            for name, function in functions(ast.parse((ROOT / file).read_text())):
                place = function.lineno, function.col_offset
                for number, (how, _, span) in enumerate(changes(function)):
                    found.append(Mutation(group, file, name, *place, number, how, span))
    return found


# ---- functions in memory ---------------------------------------------------------------------------------------------


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _place(code: CodeType) -> tuple[int, str, tuple[int | None, ...]]:
    """The first line of a function, its name, and the column at which its first instruction begins."""
    columns = tuple(column for _, _, column, _ in code.co_positions() if column is not None)[:1]
    return code.co_firstlineno, code.co_qualname, columns


def plant(mutation: Mutation) -> int:
    """Replaces the code of the mutated function in every object that has it; the number of these. Raises ValueError
    where it cannot be replaced."""
    path = ROOT / mutation.file
    tree = ast.parse(path.read_text())
    order = [function for _, function in functions(tree)]
    whole = compile(copy.deepcopy(tree), str(path), "exec")
    at = next(k for k, f in enumerate(order) if (f.lineno, f.col_offset) == (mutation.line, mutation.column))
    changes(order[at])[mutation.number][1]()
    mutant = compile(ast.fix_missing_locations(tree), str(path), "exec")
    before, after = list(_codes(whole)), list(_codes(mutant))
    if len(before) != len(after):
        raise ValueError("the change removes a function")
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    live = {}
    for function in gc.get_objects():
        # Not isinstance, which a proxy of an object that is gone answers by an error.
        if type(function) is FunctionType and function.__code__.co_filename.endswith(mutation.file):
            live.setdefault(_place(function.__code__), []).append(function)
    count = 0
    # Of a function and those around it, the innermost is the mutated one; those around it hold its code as a constant.
    for old, new in reversed(changed):
        for function in live.get(_place(old), ()):
            function.__code__ = new
            count += 1
    return count


# ---- one mutation ----------------------------------------------------------------------------------------------------

Row = dict[str, Any]  # an outcome as JSON holds it


@dataclass
class Outcome:
    """What became of a mutation: ``kind`` is ``unreached``, ``refused``, ``unchanged``, ``agrees``, ``crashed``,
    ``hung`` or ``found``."""

    mutation: Mutation
    model: str
    kind: str
    detail: str = ""
    operator: str = ""
    stage: str = ""
    change: str = ""
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def row(self) -> Row:
        named = [self.named_operator, self.named_pass, self.named_exactly]
        return {**vars(self), "mutation": str(self.mutation), "group": self.mutation.group, "named": named}

    @property
    def named_operator(self) -> bool:
        return self.kind == "found" and bool(self.operator)

    @property
    def named_pass(self) -> bool:
        """Whether the finding is the rule, transform or code generation that was mutated, or the pass that runs it."""
        stages = {
            "rule": ("simplification", "known functions", "algebra", "fewer digits", "integer contractions"),
            "transform": ("scheduling",),
            "dialect": ("code generation",),
        }
        return self.kind == "found" and self.stage in stages[self.mutation.group]

    @property
    def named_exactly(self) -> bool:
        """Whether a rule or a transform is named, by its text, and the mutated file is where it stands."""
        return self.named_pass and (self.mutation.group == "dialect" or bool(self.change))


def child(work: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """What ``work`` gives in a forked child; a text where the child crashes or hangs."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        signal.alarm(int(seconds))
        with os.fdopen(write, "wb") as out:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            pickle.dump(work(), out)
            out.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as given:
        data = given.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "hung" if os.WTERMSIG(status) == signal.SIGALRM else "crashed"
    return pickle.loads(data) if data else "crashed"


def reached(graph: Graph) -> set[tuple[str, int]]:
    """The lines, by file, that compiling ``graph`` executes."""
    seen: set[tuple[str, int]] = set()
    files = tuple(file for group in PLACES.values() for file in group)

    def call(frame: Any, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        file = next((file for file in files if path.endswith(file)), None) if path.endswith(files) else None
        if file is None:
            return None

        def line(frame: Any, event: str, argument: Any) -> Any:
            seen.add((file, frame.f_lineno))
            return line

        return line(frame, event, argument)

    sys.settrace(call)
    try:
        _sources(graph)
    finally:
        sys.settrace(None)
    return seen


def _sources(graph: Graph) -> str:
    """A hash of the sources and constants that ``graph`` becomes."""
    made = pipeline.compile_graph(graph, TARGET)
    digests = repr(sorted(made.digests.items())).encode()
    return hashlib.sha256(render.render(made, TARGET).source_hash + digests).hexdigest()


def _wrong(graph: Graph, inputs: Mapping[str, Any]) -> list[int]:
    """The outputs that passes over the graph made wrong, by position."""
    oracle = Oracle(graph, inputs)
    oracle.compute(graph.results)
    made = bisection.graphs(graph, TARGET)[bisection.LAST][0]
    found = interp.run(made, inputs).outputs
    return [k for k, (node, value) in enumerate(zip(graph.results, found, strict=True)) if oracle.refutes(node, value)]


def judged(mutation: Mutation, model: str, graph: Graph, inputs: Mapping[str, Any], clean: str) -> Outcome:
    """The outcome of a mutation; it is planted in this process. What a rule makes wrong shows in graphs, which the
    interpreter runs; for anything else the library is compiled."""
    outcome = Outcome(mutation, model, "refused")
    try:
        if not plant(mutation):
            return Outcome(mutation, model, "unreached")
        if _sources(graph) == clean:
            return Outcome(mutation, model, "unchanged")
        wrong = _wrong(graph, inputs) if mutation.group == "rule" else []
    except Exception as error:  # noqa: BLE001 - whatever a broken compiler raises: no wrong library is made
        outcome.detail = f"{type(error).__name__}: {str(error)[:200]}"
        return outcome
    if mutation.group == "rule" and not wrong:
        outcome.kind = "agrees"
        return outcome
    started, cpu = time.perf_counter(), _cpu()
    outcome.kind = "found"
    try:
        if wrong:
            finding = locate.locate(graph, Interpreter(graph), inputs, wrong, TARGET, None, None)
        else:
            report = luminal.diff(graph, inputs, reference="interpreter", target=TARGET)
            outcome.kind = "agrees" if report.ok else "found"
            finding = report.finding
    except BuildError as error:
        outcome.kind, outcome.detail = "refused", str(error)[:200]
        return outcome
    except Exception as error:  # noqa: BLE001 - the search failed, and counts as such
        outcome.detail = f"{type(error).__name__}: {str(error)[:200]}"
        return outcome
    outcome.seconds, outcome.cpu = time.perf_counter() - started, _cpu() - cpu
    if finding is not None:
        outcome.operator, outcome.stage = str(finding.origin or ""), finding.stage
        outcome.change, outcome.detail = str(finding.change or ""), finding.explanation[:200]
    return outcome


def _cpu() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


# ---- many ------------------------------------------------------------------------------------------------------------


def run(model: str, path: str, seed: int, each: int, seconds: float, lines: Path) -> list[Row]:
    """Mutations in the order drawn by ``seed`` until ``each`` of them change an output, or ``seconds`` are over. The
    file ``lines`` gets a line for each; those that it has already, from a run that was cut, are not tried again."""
    graph, dims = mutated_models.graph(path)
    inputs = drawing.draw(graph, dims, 0)
    # What runs a library has threads, which a fork does not have: all that happens in children.
    executed, clean = child(lambda: (reached(graph), _sources(graph)))
    order = mutations()
    random.Random(seed).shuffle(order)
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    if [row["mutation"] for row in rows] != [str(mutation) for mutation in order[: len(rows)]]:
        raise ValueError(
            f"{lines}: expected mutations of these sources by this seed; remove it, or name another folder"
        )
    end = time.monotonic() + seconds
    with lines.open("a") as written:
        for mutation in order[len(rows) :]:
            if time.monotonic() > end or sum(row["kind"] in CHANGED for row in rows) >= each:
                break
            first, last = mutation.span
            if not any((mutation.file, line) in executed for line in range(first, last + 1)):
                outcome = Outcome(mutation, model, "unreached")
            else:
                made = child(lambda mutation=mutation: judged(mutation, model, graph, inputs, clean))
                outcome = made if isinstance(made, Outcome) else Outcome(mutation, model, made)
            rows.append(outcome.row)
            written.write(json.dumps(outcome.row) + "\n")
            written.flush()
    return rows


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    wrong = [row for row in rows if row["kind"] == "found"]
    total = max(1, len(wrong))
    named = [sum(row["named"][k] for row in wrong) for k in range(3)]
    return {
        "drawn": len(rows), **Counter(row["kind"] for row in rows),
        **{what: round(count / total, 3) for what, count in zip(("operator", "pass", "exactly"), named, strict=True)},
        "slowest": round(max((row["seconds"] for row in wrong), default=0.0), 1),
        "cpu": round(max((row["cpu"] for row in wrong), default=0.0), 1),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--model", action="append", required=True, help="cnn, gpt, or NAME=FILE.onnx")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=14, help="mutations that change an output, of each model")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each model")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder for a line of JSON a mutation")
    chosen = parser.parse_args(arguments)
    chosen.output.mkdir(parents=True, exist_ok=True)
    every: list[Row] = []
    for text in chosen.model:
        name, _, path = text.partition("=")
        lines = chosen.output / f"{name}-{chosen.seed}.jsonl"
        rows = run(name, path or name, chosen.seed, chosen.each, chosen.seconds, lines)
        print(name, json.dumps(summary(rows)), flush=True)
        every += rows
    print("all", json.dumps(summary(every)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
