"""ONNX model -> core Graph.

The operators themselves are in the tables by theme (``math``, ``reduction``, ``shape``, ...); this module walks a
graph's nodes in order, gives each operator's function its inputs, inlines functions, and keeps account of what is
unsupported, so that everything is reported at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from luminal.core import derivative, ir, ops, symval, traverse
from luminal.core import symbolic as sym
from luminal.core.decompose.random import Random
from luminal.core.errors import LuminalError, ModelError, ShapeError, Survey, Unsupported, UnsupportedError, decided_by
from luminal.core.facts import Facts, ImpliedBound, ImpliedRelation
from luminal.core.gradient import gradients
from luminal.core.ir import Graph, Node, Origins, originating
from luminal.core.movement import concatenate, reshape
from luminal.core.origins import Origin
from luminal.core.structured import MARK
from luminal.frontends.onnx import control, functions, gradient, operators, sequences, siblings
from luminal.frontends.onnx.external import ExternalFiles
from luminal.frontends.onnx.inputs import Bounds, Inputs, Shapes, reshaped
from luminal.frontends.onnx.inputs import names as input_names
from luminal.frontends.onnx.inputs import sizes as input_sizes
from luminal.frontends.onnx.origins import location, module
from luminal.frontends.onnx.reader import Source, domain, domain_versions, opsets, read
from luminal.frontends.onnx.registry import Call, Maps, exactly
from luminal.frontends.onnx.scope import MISSING, Missing, Scope, Value
from luminal.frontends.onnx.sequences import Held, Stacked, Tensors
from luminal.frontends.onnx.support import advice, full_name, node_name, unlisted, used

_BODIES = 10_000  # the most imports of graphs of control flow; one that is imported again counts again
_FOLDED = 64  # elements of an integer value that is rewritten as numbers and sizes as soon as they are known


def load(
    model: Source, *, dims: Bounds | None = None, constants: Mapping[str, Any] | None = None, name: str | None = None,
    shapes: Shapes | None = None,
) -> Graph:  # fmt: skip
    """The graph of primitives that an ONNX model computes.

    ``model`` is a path (external data is read from beside it, mapped), the bytes of a file, or a ModelProto. ``dims``
    gives symbolic sizes (``dim_param`` names, or ``input_axis`` where a size is unknown and has no name) their bounds,
    both inclusive, with a step after them (``(32, 640, 32)``), or fixes them with an int; a size without bounds is
    taken to be 1 to 1024, or to what the model's own tables allow (a position embedding of 512 rows). Sizes that the
    operators need to be equal, or to be multiples of a number, are taken to be that (``Graph.relations``). Under
    ``output_count`` stands how many rounds a loop with that output may make, or how many numbers a range may have,
    where data decides it. ``constants`` fixes
    inputs by name: an input whose value decides axes or shapes must be given there. An output that is a sequence
    becomes one for each tensor, ``output_0`` and so on, or one with all of them along a first axis where a run decides
    how many there are; a sequence of maps, as classifiers have it, is the tensor of the maps' numbers, and
    ``Graph.structure`` has the keys of its columns. ``name`` defaults to the file's name, or the graph's. ``shapes``
    has what inputs are taken to declare in place of what the file says.

    Raises ModelError for a file that is missing, malformed or inconsistent, InputError for dims and constants that do
    not fit the model, ShapeError or DTypeError for operands that do not fit their operator, and UnsupportedError for
    what luminal cannot compile; the message lists every place.
    """
    proto, files = read(model)
    found = unlisted(proto)
    if found:
        places = _described(found, proto, files, dims, constants)
        raise UnsupportedError("the model holds operators that luminal does not support:", places)
    importer, graph = _build(proto, files, dims, constants, name or _graph_name(model, proto), shapes)
    if len(importer.faults) < len(importer.unsupported):
        raise UnsupportedError("the model uses operators in ways that luminal does not support:", importer.unsupported)
    if importer.faults:
        error = importer.faults[0].saying("\n  ".join(map(str, importer.faults)))
        error.deciding = decided_by(importer.unsupported)
        raise error
    return graph


def declared_names(
    model: Source, inputs: None = None, dims: Mapping[str, Any] | None = None
) -> tuple[list[str], list[str]]:
    """The names of the model's inputs and of the sizes that ``dims`` may bound, before anything is imported."""
    proto, _ = read(model)
    found, sizes = input_names(declared(proto), dims or {})
    return found, [*sizes, *_counts(proto)]


def sizes(model: Source, dims: Bounds | None, shapes: Mapping[str, Sequence[int]]) -> Mapping[str, int]:
    """The sizes, of those that ``dims`` does not declare, that inputs of these shapes have."""
    return input_sizes(declared(read(model)[0]), dims or {}, shapes)


def unsupported(
    model: Source, *, dims: Bounds | None = None, constants: Mapping[str, Any] | None = None
) -> Sequence[Unsupported]:
    """Every place of the model that luminal cannot compile; empty where ``load`` would succeed.

    Raises as ``survey``.
    """
    return survey(model, dims=dims, constants=constants).places


def survey(model: Source, *, dims: Bounds | None = None, constants: Mapping[str, Any] | None = None) -> Survey:
    """What the model is made of, and every place of it that luminal cannot compile.

    Raises ModelError for a file that cannot be read, InputError for dims and constants that do not fit the model.
    """
    proto, files = read(model)
    importer, graph = _build(proto, files, dims, constants, "")
    # What hides behind an unsupported operator is not reached by the importer, but its operator is known from its name.
    reached = {(place.op, place.node) for place in importer.unsupported}
    hidden = [place for place in unlisted(proto) if (place.op, place.node) not in reached]
    return Survey(used(proto), [*importer.unsupported, *hidden], graph.relations)


def _described(
    found: Sequence[Unsupported],
    proto: onnx.ModelProto,
    files: ExternalFiles,
    dims: Bounds | None,
    constants: Mapping[str, Any] | None,
) -> list[Unsupported]:
    """``found`` with types and shapes of operands, as far as the model can be imported."""
    try:
        importer, _ = _build(proto, files, dims, constants, "")
    except LuminalError:  # something else is wrong, too, and said once the operators are supported
        return list(found)
    reached = {(place.op, place.node): place for place in importer.unsupported}
    return [reached.get((place.op, place.node), place) for place in found]


def _build(
    proto: onnx.ModelProto, files: ExternalFiles, dims: Bounds | None, constants: Mapping[str, Any] | None, name: str,
    shapes: Shapes | None = None,
) -> tuple[_Importer, Graph]:  # fmt: skip
    facts = Facts()
    while True:
        importer = _Importer(proto, files, dims, constants, facts, shapes)
        try:
            return importer, importer.graph(name)
        except (ImpliedBound, ImpliedRelation) as found:
            importer.inputs.sizes.learn(found)  # each leaves fewer sizes possible, so this comes to an end


def _graph_name(model: Source, proto: onnx.ModelProto) -> str:
    if isinstance(model, bytes | onnx.ModelProto):
        return str(proto.graph.name) or "model"
    return Path(model).stem


def declared(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs. Before IR version 4 every initializer was one too, with the initializer as its default."""
    graph = model.graph
    given = {tensor.name for tensor in graph.initializer} | {tensor.values.name for tensor in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in given]


def _counts(model: onnx.ModelProto) -> Collection[str]:
    """Names for the numbers of rounds that data decides."""
    return control.counts(functions.everywhere([*model.graph.node, *(n for f in model.functions for n in f.node)]))


# ---- building --------------------------------------------------------------------------------------------------------


Taken: TypeAlias = Mapping[int, bool]  # the value of conditions, by the number of their ``If`` within a graph


@dataclass
class _Frame:
    """An import of a graph: the conditions that are ``taken`` to hold or not, and how many ``If`` were ``seen``."""

    taken: Taken
    seen: int = 0

    def choice(self) -> bool | None:
        """The value of the condition of the ``If`` that is met now, if it is taken to have one."""
        self.seen += 1
        return self.taken.get(self.seen)


class _Importer:
    """One import: the tables that grow while the nodes are walked."""

    def __init__(
        self,
        model: onnx.ModelProto,
        files: ExternalFiles,
        dims: Bounds | None,
        constants: Mapping[str, Any] | None,
        facts: Facts,
        shapes: Shapes | None,
    ) -> None:
        self._model = model
        self._files = files
        self._opsets = opsets(model)
        self._local = functions.local(model)
        self._origins: Origins = {}
        self._names: dict[Node, str] = {}
        self._scope = Scope(files, self._names, model.graph)
        self._facts = facts
        given = [reshaped(value, (shapes or {}).get(value.name)) for value in declared(model)]
        self.inputs = Inputs(given, dims, constants, facts, _counts(model))
        self._random = Random()
        self.unsupported: list[Unsupported] = []
        self.faults: list[LuminalError] = []  # of places in ``unsupported`` that are at fault themselves
        self._bodies = 0
        self._frames = [_Frame({})]  # of the graph that is imported now, and those around it

    def graph(self, name: str) -> Graph:
        """The graph; meaningful only where ``unsupported`` stays empty."""
        for input_name, node in self.inputs.nodes.items():
            self._scope[input_name] = node
        for input_name, value in self.inputs.held.items():
            self._scope[input_name] = value
        table: ir.Measured = {}
        with ir.measuring(table, [size.name for size in self.inputs.sizes.named]):
            values = self._results()
        outputs: list[tuple[str, Node]] = []
        keys: dict[str, Sequence[int] | Sequence[str]] = {}  # of the outputs that are maps
        for value, found in zip(self._model.graph.output, values, strict=True):
            if isinstance(found, Node):
                outputs.append((value.name, found))
            elif isinstance(found, Maps):
                outputs.append((value.name, found.values))
                keys[value.name] = found.keys
            elif isinstance(found, Tensors | Stacked):
                items = sequences.items(found)
                if items is None and isinstance(found, Stacked):
                    outputs.append((value.name, found.rows))
                outputs += [(f"{value.name}_{k}", node) for k, node in enumerate(items or ())]
        repeated = sorted({output for output, _ in outputs if [name for name, _ in outputs].count(output) > 1})
        if repeated:
            raise ModelError(f"expected outputs of different names, found {', '.join(repeated)} more than once")
        states = self._random.states()
        results = [*(node for _, node in outputs), *(left for _, left in states)]
        measured = traverse.used_sizes(results, table)
        reachable = traverse.everything([*self.inputs.nodes.values(), *results, *measured.values()])
        graph_inputs = tuple(node for node in self.inputs.nodes.values() if node.op is ops.INPUT)
        return Graph(
            name=name,
            inputs=(*graph_inputs, *(state.input for state, _ in states)),
            outputs=(*outputs, *((state.output, left) for state, left in states)),
            dims=(*self.inputs.sizes.named, *measured, *traverse.sizes_inside([*results, *measured.values()])),
            measured=measured,
            origins={node: self._origins[node] for node in reachable if node in self._origins},
            names={node: self._names[node] for node in reachable if node in self._names},
            structure={
                "kind": "onnx",
                "inputs": [node.attr.name for node in graph_inputs],
                "outputs": _structure([output for output, _ in outputs], keys),
            },
            states=tuple(state for state, _ in states),
            relations=tuple(self._facts.stated),
        )

    def _results(self) -> list[Value]:
        """The outputs of the graph."""
        graph, nodes = self._model.graph, siblings.joined(self._model.graph.node)
        try:
            self._nodes(nodes, self._scope, self._opsets, None)
        except control.Fork as fork:
            given = {value.name: self._scope[value.name] for value in declared(self._model)}

            def again(taken: Taken) -> list[Held]:
                return self._imported(graph, nodes, given, self._scope, self._opsets, None, taken)

            try:
                if self.unsupported:  # what was met before is all that can be said
                    raise control.Unfinished(()) from fork
                return [*self._followed(fork, again, self._scope, {})]
            except control.Unfinished as error:
                self.unsupported += error.places
            except LuminalError as error:
                self.faults.append(error)
                self.unsupported.append(Unsupported("If", fork.name, (), "", str(error), error.deciding))
            return [MISSING] * len(graph.output)
        return [self._scope[value.name] for value in graph.output]

    def _forking(self, again: Callable[[Taken], list[Held]], scope: Scope, taken: Taken) -> list[Held]:
        """The results of ``again``, which imports a graph, where some conditions of it are ``taken`` to hold or not."""
        try:
            return again(taken)
        except control.Fork as fork:
            return self._followed(fork, again, scope, taken)

    def _followed(
        self, fork: control.Fork, again: Callable[[Taken], list[Held]], scope: Scope, taken: Taken
    ) -> list[Held]:
        """The same for each value of one more condition."""
        return control.forked(
            fork,
            lambda holds: self._forking(again, scope, {**taken, fork.number: holds}),
            traverse.everything([fork.condition, *scope.tensors()]),
        )

    def _nodes(
        self, nodes: Iterable[onnx.NodeProto], scope: Scope, opset: Mapping[str, int], within: Origin | None
    ) -> None:
        """Import ``nodes`` in their order; ``within`` is the call whose body they are."""
        for node in nodes:
            if any(node.output):  # results without a name cannot be read
                self._node(node, scope, opset, within)

    def _node(self, node: onnx.NodeProto, scope: Scope, opset: Mapping[str, int], within: Origin | None) -> None:
        own = Origin(full_name(node), node_name(node), location(node), module(node))
        if within is not None:
            # A node in a body is named by the path of calls that leads to it.
            inner = (*within.module, *own.module)
            own = Origin(own.op, f"{within.name}/{own.name}", own.location or within.location, inner)
        read = [scope[name] for name in node.input]
        if any(value is MISSING for value in read):
            self._bind(node, scope, [MISSING] * len(node.output))
            return
        inputs = [value for value in read if not isinstance(value, Missing)]
        try:
            with originating(self._origins, own):
                results = self._apply(node, inputs, scope, opset, own)
        except UnsupportedError as error:
            place = Unsupported(own.op, own.name, _operands(inputs), own.location, str(error), error.deciding)
            self.unsupported.append(place)
            results = [MISSING] * len(node.output)
        except LuminalError as error:
            if scope is not self._scope:  # the operator that runs this graph may take it another way
                raise
            if isinstance(error, ShapeError):
                self.inputs.sizes.require(error.unequal, str(own))
            bounds = self.inputs.sizes.bounds(size for pair in getattr(error, "unequal", ()) for size in pair)
            bounds = f"; with {bounds}" if bounds else ""
            self.faults.append(error.saying(f"{error}{bounds}"))
            said = f"{error.__cause__ or error}{bounds}"  # the place has the operator and its operands itself
            place = Unsupported(own.op, own.name, _operands(inputs), own.location, said, error.deciding)
            self.unsupported.append(place)
            results = [MISSING] * len(node.output)
        self._bind(node, scope, results)

    def _apply(
        self, node: onnx.NodeProto, values: Sequence[Held], scope: Scope, opset: Mapping[str, int], own: Origin
    ) -> Sequence[Value]:
        key = functions.key(node)
        if key in self._local:
            return self._inline(functions.bind(self._local[key], node), values, node.output, own)
        name = domain(node.domain)
        inputs = [value if isinstance(value, Node) else None for value in values]
        version = opset.get(name, 1)
        call = Call(
            node.op_type,
            version,
            tuple(inputs),
            tuple(node.output),
            {attribute.name: attribute for attribute in node.attribute},
            self._files,
            self.inputs.sizes.assumed,
            self._random,
            self.inputs.bounds,
            self.inputs.sizes.named,
            self._frames[-1].choice() if node.op_type == "If" else None,
        )
        if gradient.is_gradient(node):
            return self._differentiated(call, scope, opset, own)
        runs = control.handler(name, node.op_type, version)
        if runs is not None:
            return self._controlled(runs, call, values, scope, opset, own)
        handler = sequences.handler(name, node.op_type, values)
        if handler is not None:
            with _located(own, values, call.named):
                return [handler(call, values)]
        function = operators.find(name, node.op_type, version)
        with _located(own, inputs, call.named):
            found = None if function is None else function(call)
        if found is None:
            body = functions.expansion(node, inputs, version)
            if body is None:
                raise UnsupportedError(advice(node, opset))
            return self._inline(body, inputs, node.output, own)
        _check_attributes(call)
        results = found if isinstance(found, tuple) else (found,)
        for position, output in enumerate(node.output):
            if output and (position >= len(results) or results[position] is None):
                raise UnsupportedError(f"output {position} ({output!r}) is not supported")
        return [_folded(result) if isinstance(result, Node) else result for result in results]

    def _controlled(
        self, handler: control.Handler, call: Call, values: Sequence[Held], scope: Scope, opset: Mapping[str, int],
        own: Origin,
    ) -> Sequence[Value]:  # fmt: skip
        """The results of an operator that runs graphs."""

        def run(body: onnx.GraphProto, inputs: Sequence[Held]) -> list[Held]:
            return self._body(body, inputs, scope, opset, own)

        try:
            with _located(own, values, call.named):
                results = handler(call, values, run)
        except control.Unfinished as error:
            self.unsupported += error.places
            return [MISSING] * len(call.outputs)
        except control.Fork as fork:
            fork.number = self._frames[-1].seen
            fork.error = fork.error.saying(f"{own}({', '.join(_operands(values))}): {fork.error}")
            raise
        _check_attributes(call)
        return results

    def _differentiated(self, call: Call, scope: Scope, opset: Mapping[str, int], own: Origin) -> Sequence[Value]:
        """The results of Gradient: the nodes that it is of are imported again, on inputs of their own, since a value of
        the model may be equal to another that it is not differentiated by."""
        names, fixed, wanted = call.texts("xs") or [], call.texts("zs") or [], call.text("y")
        exactly(call.inputs, len(names) + len(fixed), "inputs, one for each name in 'xs' and 'zs'")
        nodes = gradient.between(scope.nodes, [*names, *fixed], wanted)
        self._bodies += 1
        inner = Scope(self._files, self._names, None, scope)
        for name, value in zip([*names, *fixed], call.operands, strict=True):
            inner[name] = value
        values = call.operands[: len(names)]
        own_inputs = [
            ir.input_(f"{MARK}{name} of gradient {self._bodies}", value.shape, value.dtype)
            for name, value in zip(names, values, strict=True)
        ]
        for name, node in zip(names, own_inputs, strict=True):
            inner[name] = node
        drawn = self._random.count
        within = derivative.recording()
        with derivative.recorded():
            self._nodes(nodes, inner, opset, own)
        if self._random.count > drawn:
            raise UnsupportedError("it would draw other random numbers than what it is the gradient of")
        y = inner[wanted]
        if not isinstance(y, Node):
            return [MISSING] * len(call.outputs)
        _check_attributes(call)
        with derivative.recorded():
            found = gradients(y, own_inputs, origins=self._origins)
        found = found if within else derivative.stripped(found)  # a gradient may be of a gradient
        return traverse.substitute(found, dict(zip(own_inputs, values, strict=True)))[: len(call.outputs)]

    def _body(
        self, body: onnx.GraphProto, inputs: Sequence[Held], scope: Scope, opset: Mapping[str, int], own: Origin
    ) -> list[Held]:
        """The outputs of an operator's graph, which also sees the values around it. Raises Unfinished, and
        UnsupportedError where bodies in bodies are spelled out without end."""
        if len(inputs) != len(body.input):
            raise ModelError(f"the graph {body.name!r} takes {len(body.input)} inputs, but {len(inputs)} are given")
        given = {formal.name: value for formal, value in zip(body.input, inputs, strict=True)}

        def again(taken: Taken) -> list[Held]:
            return self._imported(body, body.node, given, scope, opset, own, taken)

        return self._forking(again, scope, {})

    def _imported(
        self, body: onnx.GraphProto, nodes: Iterable[onnx.NodeProto], given: Mapping[str, Value], scope: Scope,
        opset: Mapping[str, int], own: Origin | None, taken: Taken,
    ) -> list[Held]:  # fmt: skip
        """The outputs of a graph within a ``scope``, on values that are ``given``. Raises as ``_body``, and Fork."""
        self._bodies += 1
        if self._bodies > _BODIES:
            raise UnsupportedError(
                f"loops whose sizes change are spelled out, and what follows branches of unlike ranks is imported for "
                f"each, which takes more than {_BODIES} bodies"
            )
        inner = Scope(self._files, self._names, body, scope)
        for name, value in given.items():
            inner[name] = value
        reported = len(self.unsupported)
        self._frames.append(_Frame(taken))
        try:
            self._nodes(nodes, inner, opset, own)
        except Exception:  # the operator may take the graph another way, and then no place of this one counts
            del self.unsupported[reported:]
            raise
        finally:
            self._frames.pop()
        values = [inner[output.name] for output in body.output]
        results = [value for value in values if not isinstance(value, Missing)]
        places = self.unsupported[reported:]
        if places or len(results) < len(values):
            del self.unsupported[reported:]
            raise control.Unfinished(places)
        return results

    def _inline(
        self, body: onnx.FunctionProto, inputs: Sequence[Held], wanted: Sequence[str], own: Origin
    ) -> Sequence[Value]:
        if len(inputs) > len(body.input):
            raise ModelError(f"function {body.name!r} takes {len(body.input)} inputs, found {len(inputs)}")
        scope = Scope(self._files, self._names)
        for position, formal in enumerate(body.input):
            scope[formal] = inputs[position] if position < len(inputs) else None
        known = len(self.unsupported)
        self._nodes(body.node, scope, {**self._opsets, **domain_versions(body.opset_import)}, own)
        if len(self.unsupported) > known:
            return [MISSING] * len(wanted)
        # A body may leave out what this call does not take.
        return [scope[output] if name else None for output, name in zip(body.output, wanted, strict=False)]

    def _bind(self, node: onnx.NodeProto, scope: Scope, values: Sequence[Value]) -> None:
        for output, value in zip(node.output, values, strict=False):
            if output:
                scope[output] = value


def _structure(names: Sequence[str], keys: Mapping[str, Sequence[int] | Sequence[str]]) -> Any:
    """The names of outputs; where one is of maps, the description of all, as callers get them."""
    if not keys:
        return list(names)
    leaves = [{"leaf": k} | ({"maps": list(keys[name])} if name in keys else {}) for k, name in enumerate(names)]
    return leaves[0] if len(leaves) == 1 else {"tuple": leaves}


def _check_attributes(call: Call) -> None:
    if call.unread():
        raise UnsupportedError(f"the attributes {', '.join(call.unread())} are not supported")


@contextmanager
def _located(origin: Origin, inputs: Sequence[Held], named: Mapping[sym.Var, str]) -> Iterator[None]:
    """Adds to errors inside the block the operator and its inputs; an error that becomes an entry of the list of
    unsupported places has them in the entry. ``named`` has the file's names of sizes."""
    try:
        yield
    except UnsupportedError:
        raise
    except LuminalError as error:
        hint = _frozen(inputs, named) if origin.op == "Reshape" and isinstance(error, ShapeError) else ""
        raise error.saying(f"{origin}({', '.join(_operands(inputs))}): {error}{hint}") from error


def _frozen(inputs: Sequence[Held], named: Mapping[sym.Var, str]) -> str:
    """What to do where a shape in the file may be that of one size: of one that the shape does not have."""
    data, shape = (x if isinstance(x, Node) else None for x in (*inputs, None, None)[:2])
    extents = () if data is None else data.shape
    wanted = None if shape is None else symval.value(shape)
    given = [] if wanted is None else list(wanted.reshape(-1))
    # 0 stands for the size of the same axis.
    given = [extents[k] if size == 0 and k < len(extents) else size for k, size in enumerate(given)]
    sizes, kept = ({v for size in those for v in sym.variables(size)} for those in (extents, given))
    names = sorted(named.get(size, size.name) for size in sizes - kept or sizes)
    if not names:
        return ""
    options = [f"--dim {shlex.quote(name)}=SIZE" for name in names]
    values = [f"dims={{{name!r}: SIZE}}" for name in names]
    return (
        f"; if the file was exported for one size of {' or '.join(names)}, fix it: {' or '.join(options)}, or "
        f"{' or '.join(values)}"
    )


def _operands(inputs: Sequence[Held]) -> tuple[str, ...]:
    return tuple(map(sequences.described, inputs))


def _folded(node: Node) -> Node:
    """A small integer or bool value rewritten as numbers and sizes, where they are known: so chains of shape
    arithmetic never grow."""
    if node.dtype.is_float or node.dtype.kind == "c" or node.op in (ops.CONSTANT, ops.DIM):
        return node
    if not isinstance(node.size, int) or node.size > _FOLDED:
        return node
    value = symval.value(node)
    if value is None:
        return node
    elements = list(value.reshape(-1))
    if all(isinstance(element, int) for element in elements):
        return ir.constant(np.array(elements, node.dtype.numpy).reshape(value.shape))
    sizes = [reshape(ir.dim(element), [1]) for element in elements]
    return ir.cast(reshape(concatenate(sizes, 0), value.shape), node.dtype)
