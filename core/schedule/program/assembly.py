"""The program, put together region by region: kernels, buffers and steps; ``choose`` hands over the kernels.

The steps of an entry are a region; so is each body of a loop or branch, with its own clusters, layouts and memory plan.
A region inside another has one place in the arena of that one, while the step that contains it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from itertools import count as count_from_0

from luminal.core import ops, traverse
from luminal.core import symbolic as sym
from luminal.core.data import Arrays
from luminal.core.errors import InputError
from luminal.core.grid import ALIGNMENT
from luminal.core.ir import Node
from luminal.core.ir import State as Kept
from luminal.core.schedule.choose import arrangement
from luminal.core.schedule.choose.arrangement import Arrangement, KernelChoice
from luminal.core.schedule.cost import kernel
from luminal.core.schedule.fusion.cluster import Cluster
from luminal.core.schedule.nest import walk
from luminal.core.schedule.nest.ir import LoopNest
from luminal.core.schedule.program import arena as plan
from luminal.core.schedule.program import phases, prefetch
from luminal.core.schedule.program.ir import (
    GIVE,
    TAKE,
    Branch,
    Entry,
    Exchange,
    HostCall,
    Launch,
    Loop,
    Measure,
    Phase,
    Portion,
    Program,
    Region,
    State,
    Step,
    TensorSpec,
    Wait,
    aligned,
)
from luminal.core.schedule.program.recompute import LOW, SHARE, Recomputation, Work
from luminal.core.schedule.program.tables import Source, Tables
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target
from luminal.core.texts import strings


def assemble(name: str, sources: Sequence[Source], target: Target, memory: int | str | None = None) -> Program:
    """The program ``name`` with an entry for each source. Entries share kernels, constants and states. With ``memory``,
    steps run again so that the values of each entry take no more than so many bytes, or with ``LOW`` as few as costs
    at most a third more work. Raises InputError where so few bytes are not possible."""
    tables = Tables(target, memory)
    for source in sources:
        for state in source.graph.states:
            tables.state(state, source)
    entries = tuple(_entry(tables, source) for source in sources)
    states = tuple(State(name, tables.initial(state, source)) for name, (state, source) in tables.states.items())
    program = Program(
        name,
        tuple(dict.fromkeys(dim for source in sources for dim in source.graph.dims)),
        tuple(tables.kernels.values()),
        tuple(tables.used()),
        entries,
        Arrays({name: (n.attr, order) for (n, order), name in tables.constants.items()}),
        {name: n.attr.digest for (n, _), name in tables.constants.items()},
        {
            "approximations": [made.described for source in sources for made in source.graph.approximations],
            "relations": [*dict.fromkeys(text for source in sources for text in source.graph.relations)],
            **({} if memory is None else {"memory": tables.fitted}),
        },
        states,
        texts=tuple(sorted({text for source in sources for text in _texts(source)})),
        mesh=sources[0].graph.mesh,
    )
    return prefetch.with_fetches(program, target)


def _texts(source: Source) -> Iterator[str]:
    """The texts whose numbers are constants of an entry."""
    for node in traverse.everything(source.prepared.roots):
        if node.op is ops.CONSTANT and node.dtype.is_text:
            yield from filter(None, strings(node.attr.array))


def _entry(tables: Tables, source: Source) -> Entry:
    graph = source.graph
    names = {n: tables.buffer(n.attr.name, n, "input", source) for n in graph.given}
    names |= {n: tables.buffer(name, n, "output", source) for name, n in graph.returned}
    names |= {state.input: state.name for state in graph.states}
    region = _Region(tables, source, source.arranged, dict(names))
    region.take([n for n in graph.given if n.dtype.is_text])
    region.assemble(graph.left, [n for _, n in graph.returned if n.dtype.is_text])
    steps = region.finish() if tables.memory is None else region.fit(tables.memory)
    arena = region.plan()
    region.place(0)
    return Entry(
        source.entry,
        tuple(_tensor(n.attr.name, n, names[n]) for n in graph.given),
        tuple(_tensor(name, n, names[n]) for name, n in graph.returned),
        steps, arena, graph.structure,
    )  # fmt: skip


def _tensor(name: str, node: Node, buffer: str) -> TensorSpec:
    return TensorSpec(name, node.dtype, node.shape, "" if buffer == name else buffer)


@dataclass(frozen=True)
class _Kernel:
    """A kernel that no step launches yet, and what it is for."""

    choice: KernelChoice
    names: tuple[str, ...]
    origins: tuple[str, ...]


@dataclass
class _Region:
    """One region. ``names`` are the buffers of nodes; it plans the memory of those in ``own``."""

    tables: Tables
    source: Source
    arranged: Arrangement
    names: dict[Node, str]
    own: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    uses: list[tuple[str, ...]] = field(default_factory=list)  # buffers of each step
    inside: list[tuple[_Region, ...]] = field(default_factory=list)  # regions inside each step
    offsets: Mapping[str, int] = field(default_factory=dict)
    pending: list[Exchange] = field(default_factory=list)  # begun, and not waited for yet
    together: tuple[Phase, ...] = ()
    alone: dict[str, _Kernel] = field(default_factory=dict)  # by buffer, kernels of one value of several

    def take(self, inputs: Sequence[Node]) -> None:
        """Steps that turn texts in ``inputs``, in buffers of the caller, into numbers."""
        for node in inputs:
            given = self.names[node]
            self.names[node] = self._new(f"{given} in numbers", node)
            self._add(HostCall(TAKE, (given, self.names[node])), (given, self.names[node]))

    def assemble(self, left: Sequence[tuple[Kept, Node]] = (), texts: Sequence[Node] = ()) -> None:
        """The steps of all clusters. ``left`` are states with their final values, which are computed in place or
        copied there; ``texts`` are results whose numbers become texts in buffers of the caller."""
        wanted = {node: self.names[node] for node in texts}
        for node, name in wanted.items():
            self.names[node] = self._new(f"{name} in numbers", node)
        there = self.arranged.overwriting
        for state, node in left:
            if node not in self.names:
                self.names[node] = self.names[state.input] if node in there else self._new(state.output, node)
        for cluster in self.arranged.fusion.clusters:
            if cluster.measures is not None:
                size, count = cluster.measures
                name = self._named(count)
                self._add(Measure(size, name), (name,))
            elif cluster.kind == "host":
                self._call(cluster)
            elif cluster.kind == "exchange":
                self._exchange(cluster)
            elif cluster.is_kernel:
                self._launch(cluster)
            elif next(iter(cluster.index)).op is ops.COND:
                self._branch(cluster)
            else:
                self._loop(cluster)
        for state, node in left:
            if node not in there:
                self._copy(node, state.input)
        for node, name in wanted.items():
            self._add(HostCall(GIVE, (self.names[node], name)), (self.names[node], name))
        self._wait(self.pending)

    def finish(self) -> Region:
        """The region of all steps, in phases. They are for threads of CPUs; a grid runs one step at a time."""
        self.together = tuple(self._phases()) if self.tables.target.grid is None else ()
        return Region(tuple(self.steps), self.together)

    # ---- kernels ---------------------------------------------------------------------------------------------------

    def _launch(self, cluster: Cluster) -> None:
        origins = self._origins(cluster.index)
        operations = _operations(cluster)
        for choice in self.arranged.kernels[cluster.number]:
            self._run(cluster.kind, choice, origins, operations)
        for node in arrangement.separable(cluster, self.arranged) if self.tables.memory is not None else ():
            choice = arrangement.alone(cluster, node, self.arranged, self.tables.target)
            self.alone[self._named(node)] = _Kernel(
                choice, tuple(map(self._named, choice.arguments)), self._origins([node])
            )

    def _call(self, cluster: Cluster) -> None:
        (node,) = cluster.index
        names = tuple(map(self._named, (*node.inputs, node)))
        self._add(HostCall(node.attr.function, names, self._origins([node])), names)

    def _exchange(self, cluster: Cluster) -> None:
        """Begins an exchange. It is waited for where a step needs its result (``_add``), or before the region ends."""
        (node,) = cluster.index
        operand, result = self._named(node.inputs[0]), self._named(node)
        taken = {step.ticket for step in self.pending}
        ticket = next(number for number in count_from_0() if number not in taken)
        step = Exchange(node.attr, operand, result, ticket, self._origins([node]))
        self._add(step, step.arguments)
        self.pending.append(step)

    def _wait(self, begun: Iterable[Exchange]) -> None:
        """Steps that wait for exchanges."""
        for step in tuple(begun):
            self.pending.remove(step)
            self._put(Wait(step.ticket, step.arguments, step.origins), step.arguments)

    def _copy(self, node: Node, state: Node) -> None:
        """A step that copies ``node`` to where ``state`` lies."""
        choice = arrangement.copy_kernel(node, state, self.arranged, self.tables.target)
        self._run("map", choice, self._origins([node]))

    def _run(self, kind: str, choice: KernelChoice, origins: tuple[str, ...], operations: Int = 0) -> None:
        names = tuple(self._named(node) for node in choice.arguments)
        self._add(self._launched(kind, choice, names, origins, operations), names)

    def _launched(
        self, kind: str, choice: KernelChoice, names: tuple[str, ...], origins: tuple[str, ...], operations: Int = 0
    ) -> Launch:
        number = self.tables.kernel(kind, choice.scheduled, origins)
        grain = kernel.grain(choice.scheduled.nest, self.tables.target.costs)
        return Launch(number, names, origins, grain, operations)

    # ---- loops and branches ----------------------------------------------------------------------------------------

    def _loop(self, cluster: Cluster) -> None:
        """A scan or a while loop. Each carry has two buffers that are exchanged after each round, or one, where a round
        only scatters into it."""
        node = next(iter(cluster.index))
        attr: ops.Step | ops.Repeat = node.attr
        members = {n.attr.result: n for n in cluster.index}
        count = len(attr.carries)
        slices = attr.slices if isinstance(attr, ops.Step) else ()
        over, shared = node.inputs[count : count + len(slices)], node.inputs[count + len(slices) :]
        rounds = over[0].shape[0] if over else None
        counter = self.tables.counter(rounds)
        read = {x: self._named(members[k]) for k, x in enumerate(attr.carries)}
        read |= {x: self._named(operand) for x, operand in zip(attr.shared, shared, strict=True)}
        wholes = {x: self._named(operand) for x, operand in zip(slices, over, strict=True)}
        read |= {x: self.tables.part(whole, counter, x, self.source) for x, whole in wholes.items()}
        outer = [*read.values(), *wholes.values()]
        put_out: dict[Node, str] = {}
        for number in range(count, len(attr.results)):
            if number in members:
                whole = self._named(members[number])
                put_out[attr.results[number]] = self.tables.part(whole, counter, attr.results[number], self.source)
                outer.append(whole)
        changed = {result: x for x, result in zip(attr.carries, attr.results, strict=False) if result is not x}
        scattered = {x: new for new, x in changed.items() if new.op is ops.SCATTER and new.inputs[0] is x}
        sizes = attr.inside(len(attr.computed) - 1)
        arranged = self._arrange((*changed, *put_out), {**read, **put_out}, sizes, scattered)
        written: dict[Node, str] = {}
        carried: list[tuple[str, str]] = []
        for result, x in changed.items():
            if result in arranged.overwriting:
                written[result] = read[x]
            else:
                written[result] = self._new(f"{read[x]}.next", result)
                carried.append((read[x], written[result]))
        outer += written.values()
        body, region = self._inner(arranged, {**read, **written, **put_out})
        test, flag = Region(()), ""
        regions: tuple[_Region, ...] = (body,)
        if isinstance(attr, ops.Repeat):
            flag = self._new("holds", attr.condition)
            outer.append(flag)
            asked = self._arrange((attr.condition,), read, attr.inside(0))
            asking, test = self._inner(asked, {**read, attr.condition: flag})
            regions = (asking, body)
        self._add(Loop(counter, rounds, region, tuple(carried), test, flag), outer, regions)

    def _branch(self, cluster: Cluster) -> None:
        node = next(iter(cluster.index))
        attr: ops.Branches = node.attr
        flag = self._named(node.inputs[0])
        read = {x: self._named(operand) for x, operand in zip(attr.parameters, node.inputs[1:], strict=True)}
        results = {n.attr.result: self._named(n) for n in cluster.index}
        inner: list[tuple[_Region, Region]] = []
        for number, body in enumerate(attr.computed):
            names = {**read, **{body[k]: name for k, name in results.items()}}
            arranged = self._arrange(tuple(body[k] for k in results), names, attr.inside(number))
            inner.append(self._inner(arranged, names))
        then, other = (region for _, region in inner)
        self._add(Branch(flag, then, other), (flag, *read.values(), *results.values()), tuple(r for r, _ in inner))

    def _arrange(
        self,
        roots: tuple[Node, ...],
        names: Mapping[Node, str],
        sizes: Mapping[Var, Node],
        replacing: Mapping[Node, Node] | None = None,
    ) -> Arrangement:
        """The arrangement of ``roots`` inside a step. ``names`` are buffers of values there, ``sizes`` are measured;
        ``replacing`` says which may be computed where others lie."""
        unaligned = frozenset(node for node, name in names.items() if self._is_unaligned(name))
        every = (*roots, *sizes.values())
        return arrangement.arrange(every, self.source.prepared, self.tables.target, unaligned, sizes, replacing)

    def _inner(self, arranged: Arrangement, names: dict[Node, str]) -> tuple[_Region, Region]:
        """A region that computes ``arranged``; ``names`` are the buffers of its inputs and results."""
        inner = _Region(self.tables, self.source, arranged, names)
        inner.assemble()
        return inner, inner.finish()

    # ---- buffers ---------------------------------------------------------------------------------------------------

    def _add(self, step: Step, names: Iterable[str], inside: tuple[_Region, ...] = ()) -> None:
        """A step that uses the buffers ``names``, after exchanges of which it needs the result, or may write what they
        read: of values in buffers of their own, states alone are ever overwritten."""
        names = tuple(names)
        states = self.tables.states
        self._wait(x for x in self.pending if x.result in names or (x.operand in names and x.operand in states))
        self._put(step, names, inside)

    def _put(self, step: Step, names: Iterable[str], inside: tuple[_Region, ...] = ()) -> None:
        self.steps.append(step)
        self.uses.append(tuple(names))
        self.inside.append(inside)
        self.tables.touched.update(names)

    def _named(self, node: Node) -> str:
        """The buffer that holds ``node``."""
        node = self.arranged.owner(node)
        if node in self.names:
            return self.names[node]
        order = self.arranged.order(node)
        if node.op is ops.CONSTANT:
            self.names[node] = self.tables.constant(node, order, self.source)
        else:
            wanted = self.source.graph.names.get(node, "")
            self.names[node] = self._new(wanted or f"t{len(self.names)}", node, order)
        return self.names[node]

    def _is_unaligned(self, name: str) -> bool:
        """Whether a buffer may begin where a thread of a grid cannot use its widest access."""
        buffer, grid = self.tables.buffers[name], self.tables.target.grid
        size = sym.product(buffer.shape) * buffer.dtype.itemsize
        return grid is not None and buffer.space == "part" and sym.mod(size, ALIGNMENT) != 0

    def _new(self, name: str, node: Node, order: tuple[int, ...] | None = None) -> str:
        """A new buffer in the arena."""
        name = self.tables.buffer(name, node, "arena", self.source, order)
        self.own.append(name)
        return name

    def _origins(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(o) for n in nodes for o in self.source.graph.origins.get(n, ())))

    # ---- less memory -----------------------------------------------------------------------------------------------

    def fit(self, memory: int | str) -> Region:
        """The region with steps that run again, as ``assemble`` says of ``memory``."""
        tables, steps = self.tables, self.steps
        own, buffers, kernels = self.own, tables.buffers, tables.kernels
        uses, inside = self.uses, self.inside
        alone = list(self.alone.values())

        def step(work: Work) -> Step:
            if work.step >= len(steps):
                one = alone[work.step - len(steps)]
                return self._launched("map", one.choice, work.uses, one.origins)
            found = steps[work.step]
            return replace(found, arguments=work.uses) if isinstance(found, Launch) else found

        def tried(found: Recomputation) -> tuple[Region, int]:
            """The region with what is ``found``, and the size of its arena."""
            tables.buffers, tables.kernels = dict(buffers), dict(kernels)
            for copy, value in found.copies.items():
                tables.buffers[copy] = replace(buffers[value], name=copy, space="arena", offset=0)
            tables.touched.update(found.copies)
            used = {name for work in found.works for name in work.uses}
            for moved in set(found.copies.values()) - used:
                del tables.buffers[moved]
            self.own = [name for name in (*own, *found.copies) if name in tables.buffers]
            self.steps = [step(work) for work in found.works]
            self.uses = [work.uses if work.launch else uses[work.step] for work in found.works]
            self.inside = [() if work.step >= len(inside) else inside[work.step] for work in found.works]
            return self.finish(), self.plan()

        found = self._recomputation(alone)
        region, without = tried(found)
        taken = least = without
        if memory == LOW:
            found.shrink(0, SHARE)
            region, taken = tried(found)
        while not isinstance(memory, str) and taken > memory:
            before = len(found.copies)
            found.shrink(found.peak - (taken - memory))
            region, taken = tried(found)
            least = min(least, taken)
            if len(found.copies) == before:
                raise InputError(
                    f"memory: expected at least {least} bytes for the values of {self.source.entry!r}, found {memory}; "
                    f"{without} are needed where nothing is computed again"
                )
        entry = {"entry": self.source.entry, "bytes": taken, "without": without, "again": found.repeated}
        tables.fitted.append({**entry, "work": round(found.cycles / max(found.whole, 1), 3)})
        return region

    def _recomputation(self, alone: Sequence[_Kernel]) -> Recomputation:
        """The steps, none of which runs again, and how those ``alone`` would."""
        nests = list(self.tables.kernels)
        sizes = {name: aligned(buffer.size) for name, buffer in self.tables.buffers.items()}
        works: list[Work] = []
        for number, (step, names) in enumerate(zip(self.steps, self.uses, strict=True)):
            if isinstance(step, Launch):
                works.append(self._work(number, nests[step.kernel], names))
                continue
            scratch = _scratch(number)
            sizes[scratch] = max((region.plan() for region in self.inside[number]), default=0)
            works.append(Work(number, (*names, scratch), frozenset(names)))
        arena = {*self.own, *(name for name in sizes if name not in self.tables.buffers)}
        singles = {
            name: self._work(len(self.steps) + number, one.choice.scheduled.nest, one.names)
            for number, (name, one) in enumerate(zip(self.alone, alone, strict=True))
        }
        return Recomputation(works, sizes, arena, singles)

    def _work(self, number: int, nest: LoopNest, names: tuple[str, ...]) -> Work:
        read, _ = walk.arrays_touched(nest.body)
        pairs = list(zip(names, nest.arrays, strict=True))
        written = frozenset(name for name, array in pairs if array.written)
        repeats = not any(name in written and array.name in read for name, array in pairs)
        return Work(number, names, written, kernel.cycles(nest, self.tables.target.costs), True, repeats)

    # ---- the plan --------------------------------------------------------------------------------------------------

    def _phases(self) -> Iterator[Phase]:
        """The phases of consecutive launches. Buffers with portions leave the arena."""
        nests = list(self.tables.kernels)
        first = 0
        while first < len(self.steps):
            launches: list[phases.NestLaunch] = []
            while first + len(launches) < len(self.steps):
                step = self.steps[first + len(launches)]
                if not isinstance(step, Launch):
                    break
                launches.append(phases.NestLaunch(nests[step.kernel], step.arguments))
            for phase in phases.phases(launches, self.tables.target):
                inside = launches[phase.first : phase.last + 1]
                phase = replace(phase, first=first + phase.first, last=first + phase.last)
                yield replace(phase, portions=tuple(self._portions(phase, inside)) if phase.linked else ())
            first += len(launches) + 1

    def _portions(self, phase: Phase, launches: Sequence[phases.NestLaunch]) -> Iterator[Portion]:
        """The portions of buffers that no step outside ``phase`` uses. Two share memory where a share no longer needs
        the first when it begins to use the second."""
        outside = {
            name
            for number, (step, names) in enumerate(zip(self.steps, self.uses, strict=True))
            if not phase.first <= number <= phase.last
            for name in (*names, *(chain(*step.carried) if isinstance(step, Loop) else ()))
        }
        lives: dict[str, list[int]] = {}
        for number, names in enumerate(self.uses[phase.first : phase.last + 1]):
            for name in names:
                lives.setdefault(name, []).append(number)
        found: dict[str, tuple[int, int]] = {}
        spans: list[plan.Span] = []
        for name, at in lives.items():
            if name not in self.own or name in outside:
                continue
            if (portion := phases.portion(launches, phase.shares, name)) is not None:
                found[name] = portion
                size = aligned(portion[1] * self.tables.buffers[name].dtype.itemsize)
                spans.append(plan.Span(name, size, at[0], at[-1]))
        offsets, _ = plan.place_spans(spans)
        for name, (first, length) in found.items():
            self.tables.buffers[name] = replace(self.tables.buffers[name], space="share")
            self.own.remove(name)
            yield Portion(name, first, length, offsets[name])

    def plan(self) -> int:
        """Places everything in the arena of this region, and returns its size in bytes."""
        phase_of = {step: phase for phase in self.together for step in range(phase.first, phase.last + 1)}
        lives: dict[str, list[int]] = {}
        for number, names in enumerate(self.uses):
            phase = phase_of.get(number)  # its steps may overlap: what one uses lives in all
            for name in names:
                lives.setdefault(name, []).extend((phase.first, phase.last) if phase else (number,))
        for step in self.steps:
            for first, second in step.carried if isinstance(step, Loop) else ():
                # The two are exchanged: a round's result may lie in either.
                lives[first] = lives[second] = [*lives[first], *lives[second]]
        spans = [
            plan.Span(n, self.tables.buffers[n].size, min(at), max(at)) for n, at in lives.items() if n in self.own
        ]
        for number, regions in enumerate(self.inside):
            spans.append(plan.Span(_scratch(number), max((r.plan() for r in regions), default=0), number, number))
        self.offsets, size = plan.place_spans(spans)
        return size

    def place(self, start: int) -> None:
        """Writes the offsets into the buffers; this region begins at ``start`` in the arena."""
        for name in self.own:
            if name in self.offsets:
                self.tables.buffers[name] = replace(self.tables.buffers[name], offset=start + self.offsets[name])
        for number, regions in enumerate(self.inside):
            for region in regions:
                region.place(start + self.offsets[_scratch(number)])


def _scratch(step: int) -> str:
    return f"inside step {step}"


def _operations(cluster: Cluster) -> Int:
    """Operations of the sums of products in a cluster: a product and an addition for each term."""
    terms: Int = 0
    for node in cluster.index:
        if node.op is ops.SUM_REDUCE and not node.dtype.is_bool and node.inputs[0].op is ops.MUL:
            terms = terms + node.inputs[0].size
    return terms * 2
