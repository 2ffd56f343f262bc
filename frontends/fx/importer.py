"""PyTorch models as a core Graph: the one place that walks an ExportedProgram."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from luminal.core import ir, traverse, types
from luminal.core import symbolic as sym
from luminal.core.decompose.random import Random
from luminal.core.errors import (
    DTypeError,
    LuminalError,
    ModelError,
    ShapeError,
    Survey,
    Unsupported,
    UnsupportedError,
)  # fmt: skip
from luminal.core.facts import Facts, ImpliedRelation
from luminal.core.ir import Graph, Node, Origins, State, originating
from luminal.core.origins import Origin
from luminal.core.symbolic import Expr, Int
from luminal.core.types import DType
from luminal.frontends.fx import location, results, structure, tables
from luminal.frontends.fx.complex import PARTS, Complex, ComplexType
from luminal.frontends.fx.dims import Dims, Symbols, parse
from luminal.frontends.fx.dtypes import FROM_TORCH, from_torch, to_numpy
from luminal.frontends.fx.export import Inputs, Model, declared_names, export, traced  # noqa: F401
from luminal.frontends.fx.program import Program, fits, is_aten, is_complex, is_traced, of_exported, of_traced
from luminal.frontends.fx.registry import Entry, target_name
from luminal.frontends.fx.structure import Description

_UNKNOWN = "it has no decomposition yet: compute it outside the model, or add one (see CONTRIBUTING.md)"
_UNKNOWN_OF_COMPLEX = "it has no decomposition for complex numbers yet; torch.view_as_real gives their parts"
_VARIES = "a number that varies must come in a tensor, or as the size of one"
_PARAMETERS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_PARAMETER_CHANGES = "it updates the parameter {!r}; parameters of a compiled model do not change"


def load(
    model: Model,
    inputs: Inputs | None = None,
    *,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
    name: str | None = None,
    states: Collection[str] | None = None,
    parameters: Collection[str] = (),
) -> Graph:
    """Import a module with its example ``inputs``, a traced GraphModule likewise, or an ExportedProgram.

    A GraphModule of functional ATen operators that carries the types of its values, as ``make_fx`` makes it, needs no
    inputs either: it is imported as it is.

    ``dims`` declares symbolic dimensions (see ``luminal.frontends.fx.dims``); one without an upper bound is taken to
    reach 1024. ``constants`` fixes inputs by name, which then are no inputs of the graph. Buffers that the model
    updates are states; so are those of ``states``, which others update, where the model reads them; without
    ``states``, there are no others, and what it leaves in a plain object and never reads is none. What the model
    leaves in an input ``x`` that it writes into is the output ``x.next``, after those that it returns. Parameters and
    buffers of the names in ``parameters`` are inputs after the caller's own, and before the states; ``Graph.names`` has
    their names, and a mapping says what the inputs are called.

    Raises ModelError where the model cannot be exported, contradicts ``dims`` or writes into what ``constants`` fixes,
    UnsupportedError with every place that luminal cannot compile.
    """
    importer, graph = _build(model, inputs, dims, constants, name, states, parameters=parameters)
    if importer.unsupported:
        count = len(importer.unsupported)
        raise UnsupportedError(
            f"{graph.name}: luminal cannot compile {count} {'place' if count == 1 else 'places'} of this model:",
            importer.unsupported,
        )
    return graph


def unsupported(
    model: Model,
    inputs: Inputs | None = None,
    *,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Sequence[Unsupported]:
    """Every place of the model that luminal cannot compile, in the model's order; arguments as for ``load``."""
    return survey(model, inputs, dims=dims, constants=constants).places


def survey(
    model: Model,
    inputs: Inputs | None = None,
    *,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Survey:
    """What the program is made of, graphs inside it included (operators have no versions), and every place of it that
    luminal cannot compile."""
    importer, graph = _build(model, inputs, dims, constants, every=True)
    whole = importer.program.graph.owning_module
    graphs = [m.graph for m in whole.modules() if isinstance(m, torch.fx.GraphModule)]
    calls = Counter(
        (target_name(node.target), None)
        for graph in graphs
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator)
    )
    return Survey(calls, importer.unsupported, graph.relations)


def obstacles(
    model: torch.fx.GraphModule, dims: Mapping[str, Any], constants: Mapping[str, np.ndarray[Any, Any]]
) -> Sequence[tuple[torch.fx.Node, Unsupported]]:
    """Every node of a traced graph (see ``program.is_traced``) that luminal cannot compile, and why: a place in a graph
    inside it counts for the node that runs that graph. Raises as ``load`` does for what is wrong with no node."""
    importer, _ = _built(of_traced(model), model, dims, constants, every=True)
    return list(zip(importer.at, importer.unsupported, strict=True))


def _build(
    model: Model,
    inputs: Inputs | None,
    dims: Mapping[str, Any] | None,
    constants: Mapping[str, np.ndarray[Any, Any]] | None,
    name: str | None = None,
    states: Collection[str] | None = None,
    every: bool = False,
    parameters: Collection[str] = (),
) -> tuple[_Importer, Graph]:
    """The graph, and the importer that made it; with ``every`` place that is at fault, not the first alone."""
    built = partial(
        _built, model=model, dims=dims, constants=constants, name=name, states=states, every=every,
        parameters=parameters,
    )  # fmt: skip
    if is_aten(model) and (inputs is None or fits(model, inputs)) and is_traced(module := traced(model)):
        return built(of_traced(module))
    try:
        return built(of_exported(export(model, inputs, dims, states or ())))
    except (ModelError, ShapeError) as error:
        if isinstance(model, ExportedProgram) or not dims:
            raise
        # PyTorch tells apart what is 0 or 1 from what is not, at each size that the model computes. Where it need not,
        # it asks less of the sizes. And it takes guards that it cannot solve, as of chunks, to fix declared axes.
        for free in (False, True):
            with suppress(LuminalError):
                return built(of_exported(export(model, inputs, dims, states or (), apart=False, free=free)))
        raise error from error.__cause__


def _built(
    program: Program,
    model: Model,
    dims: Mapping[str, Any] | None,
    constants: Mapping[str, np.ndarray[Any, Any]] | None,
    name: str | None = None,
    states: Collection[str] | None = None,
    every: bool = False,
    parameters: Collection[str] = (),
) -> tuple[_Importer, Graph]:
    """The graph of ``program``, which is made of ``model``, under all that it is found to say of its sizes."""
    facts = Facts()
    while True:
        importer = _Importer(model, program, facts, dims, constants, states, every, parameters)
        try:
            return importer, importer.build(name or importer.title)
        except ImpliedRelation as found:
            importer.symbols.sizes.learn(found)  # each leaves fewer sizes possible, so this comes to an end


class _Importer:
    def __init__(
        self,
        model: Model,
        program: Program,
        facts: Facts,
        dims: Mapping[str, Any] | None,
        constants: Mapping[str, np.ndarray[Any, Any]] | None,
        states: Collection[str] | None = None,
        every: bool = False,
        parameters: Collection[str] = (),
    ) -> None:
        self.program, self.facts, self.every = program, facts, every
        self.parameters = parameters
        self.varied: list[Node] = []  # parameters that are inputs
        self.signature = None if isinstance(model, ExportedProgram) else inspect.signature(model.forward)
        title = type(model).__name__.lower()
        # A traced function may be a lambda.
        self.title = "model" if isinstance(model, ExportedProgram) or not title.isidentifier() else title
        self.dims = parse(dims)
        self.symbols = self._symbols(self.dims)
        self.fixed = dict(constants or {})
        self.unsupported: list[Unsupported] = []
        self.at: list[torch.fx.Node] = []  # the program's own node for each of them
        self.node: torch.fx.Node = next(iter(program.graph.nodes))  # that is being read
        self.behind: dict[torch.fx.Node, bool] = {}  # what depends on stand-ins, and whether on numbers among them
        self.origins: Origins = {}
        self.names: dict[Node, str] = {}
        self.inputs: list[Node] = []
        self.input_leaves: list[Description] = []
        self.values: dict[torch.fx.Node, Any] = {}
        self.storages: dict[tuple[Any, ...], Node] = {}
        self.sizes: dict[torch.fx.Node, Int] = {}
        self.shared = frozenset(states or ())
        updated = {spec.target for spec in self.program.outputs if spec.kind is OutputKind.BUFFER_MUTATION}
        self.updated = updated if states is not None else updated - self._unread()
        self.kept: dict[str, State] = {}  # by the name of the buffer
        self.left: dict[str, Node] = {}  # what the program leaves in it
        self.written: dict[str, Node] = {}  # what it leaves in its inputs, by their names
        self.random = Random()

    def _unread(self) -> set[str]:
        """Buffers that stand for tensors in plain objects, and that the program does not read."""
        placeholders = zip(self.program.graph.find_nodes(op="placeholder"), self.program.inputs, strict=True)
        unread = {spec.target for node, spec in placeholders if spec.kind is InputKind.BUFFER and not node.users}
        return {target for target in unread if target in self.program.reached}

    def _symbols(self, dims: Dims) -> Symbols:
        """The program's symbols, named before any of them is used."""
        symbols = Symbols(self.program.ranges, dims, self.facts)
        tensors = {
            node.name: node.meta["val"].shape
            for node in self.program.graph.find_nodes(op="placeholder")
            if isinstance(node.meta.get("val"), torch.Tensor)
        }
        for name in dims.axes:
            if name not in tensors:
                raise ModelError(f"dims names axes of {name!r}, which is no tensor input of the program")
            symbols.name(name, tensors[name])
        return symbols

    def _agree(self) -> None:
        """Raises ImpliedRelation for what the program says of sizes that its symbols do not say."""
        for pair in self.program.equal:
            try:
                sizes = self.symbols.expression(pair[0]), self.symbols.expression(pair[1])
            except ModelError:
                continue  # of numbers that are no sizes
            self.symbols.sizes.require([sizes], "a guard")

    def _check_dims(self) -> None:
        """Raises ModelError for a range of a dimension that the program does not have."""
        named = {name for axes in self.dims.axes.values() for name in axes.values()}
        names = self.symbols.sizes.named
        known = named | {names.get(variable, variable.name) for variable in results.dims(self.inputs)}
        unused = sorted(name for name in set(self.dims.ranges) - known if name not in self.symbols.sizes)
        if unused:
            raise ModelError(
                f"the program has no dimension {', '.join(unused)}; "
                f"it has {', '.join(sorted(known)) or 'fixed sizes'}. {self._advice_on_dims(unused[0], sorted(known))}"
            )

    def _advice_on_dims(self, wanted: str, known: Sequence[str]) -> str:
        if not known:
            return "Export the program with those axes dynamic (dynamic_shapes), and name them in dims"
        low, high, *_ = self.dims.ranges[wanted]
        name = known[0] if len(known) == 1 else "NAME"
        return (
            f"Give the range under the program's own name (dims={{{name!r}: ({low}, {high})}}, on the command line "
            f"--dim {name}={low}:{high}), or name the axes in dims"
        )

    def build(self, name: str) -> Graph:
        specs = iter(self.program.inputs)
        table: ir.Measured = {}
        with ir.measuring(table):
            self._agree()
            for node in self.program.graph.nodes:
                self.node = node
                if node.op == "placeholder":
                    self.values[node] = self._any_placeholder(node, next(specs))
                else:
                    self._node(node)
        of_shapes = set(results.dims(self.inputs))
        for node, size in self.sizes.items():
            if node.users and not set(sym.variables(size)) <= of_shapes:
                self.node = node
                self._report(node, "input of kind SymInt", _VARIES)
        missing = sorted(set(self.fixed) - {spec.arg.name for spec in self.program.inputs})
        if missing:
            raise ModelError(f"constants names {', '.join(missing)}, which are no inputs of the model")
        outputs, leaves = self._outputs()
        self._check_dims()
        described_outputs = structure.describe(self.program.outputs_tree, iter(leaves))
        named = [*zip(structure.output_names(described_outputs, len(outputs)), outputs, strict=True)]
        named += self._written_inputs(len(named))
        described_inputs = structure.describe(self.program.inputs_tree, iter(self.input_leaves))
        # A program without its module knows the order of the arguments that it was exported with by position, no more.
        by_position = list(self.program.arguments)[: len(described_inputs["tuple"][0]["tuple"])]
        described = {
            "inputs": described_inputs,
            "parameters": structure.positional(self.signature, by_position) if self.signature else by_position,
            "defaults": structure.defaults(self.signature) if self.signature else {},
            "outputs": described_outputs,
        }
        states = [(state, self.left.get(buffer, state.input)) for buffer, state in self.kept.items()] + [
            *self.random.states()
        ]
        named += [(state.output, left) for state, left in states]
        roots = [node for _, node in named]
        measured = traverse.used_sizes(roots, table)
        used = set(traverse.everything([*roots, *measured.values()]))
        return Graph(
            name=name,
            inputs=(*self.inputs, *self.varied, *(state.input for state, _ in states)),
            outputs=tuple(named),
            dims=(*results.dims(self.inputs), *measured, *traverse.sizes_inside([*roots, *measured.values()])),
            measured=measured,
            origins={node: found for node, found in self.origins.items() if node in used},
            names={node: found for node, found in self.names.items() if node in used or node in self.varied},
            structure=described,
            states=tuple(state for state, _ in states),
            relations=tuple(self.facts.stated),
        )

    # ---- inputs and outputs ----------------------------------------------------------------------------------------

    def _any_placeholder(self, node: torch.fx.Node, spec: Any) -> Any:
        try:
            return self._placeholder(node, spec)
        except DTypeError as error:
            if not self.every:
                raise
            self.input_leaves.append({"value": None})
            return self._report(node, "input", str(error))

    def _placeholder(self, node: torch.fx.Node, spec: Any) -> Any:
        is_read = spec.target in self.shared and node.users
        if spec.kind is InputKind.BUFFER and (spec.target in self.updated or is_read):
            return self._buffer(node, spec.target)
        if spec.target in self.parameters and spec.kind in _PARAMETERS:
            return self._parameter(node.name, spec.target)
        if spec.kind in _PARAMETERS:
            return self._constant(spec.target) if node.users else None
        if spec.kind is not InputKind.USER_INPUT or not isinstance(spec.arg, TensorArgument | ConstantArgument):
            self.input_leaves.append({"value": None})
            return self._report(node, f"input of kind {type(spec.arg).__name__}", _VARIES)
        if isinstance(spec.arg, ConstantArgument):
            self.input_leaves.append({"value": spec.arg.value})
            return spec.arg.value
        tensor = node.meta["val"]
        if isinstance(tensor, torch.SymInt):
            self.input_leaves.append({"fixed": node.name})
            if node.name in self.fixed:
                return int(self.fixed[node.name])
            # The shapes of tensors have to say what it is.
            self.sizes[node] = self.symbols.convert(tensor)
            return self.sizes[node]
        shape = self.symbols.shape(tensor.shape)
        if tensor.is_complex():
            return self._complex_input(node.name, shape, PARTS[tensor.dtype])
        dtype = from_torch(tensor.dtype)
        if node.name in self.fixed:
            self.input_leaves.append({"fixed": node.name})
            return self._fixed_input(node.name, shape, dtype)
        self.input_leaves.append({"leaf": len(self.inputs)})
        self.inputs.append(ir.input_(node.name, shape, dtype))
        return self.inputs[-1]

    def _complex_input(self, name: str, shape: ir.Shape, parts: DType) -> Complex:
        """A complex input, which a library takes as pairs."""
        if name in self.fixed:
            raise ModelError(f"constants[{name!r}]: a complex input cannot be fixed; make it a buffer of the module")
        self.input_leaves.append({"leaf": len(self.inputs), "complex": True})
        self.inputs.append(ir.input_(name, (*shape, 2), parts))
        return Complex(self.inputs[-1])

    def _fixed_input(self, name: str, shape: ir.Shape, dtype: DType) -> Node:
        value = np.asarray(self.fixed[name])
        fits = len(shape) == value.ndim and all(d == n for d, n in zip(shape, value.shape, strict=True))
        if not fits or value.dtype != dtype.numpy:
            raise ModelError(
                f"constants[{name!r}]: expected {dtype}{list(shape)}, found {value.dtype}{list(value.shape)}"
            )
        constant = ir.constant(value)
        self.names.setdefault(constant, name)
        return constant

    def _buffer(self, node: torch.fx.Node, target: str) -> Node | Complex:
        """A buffer that the program, or another, updates: a state."""
        value = self._constant(target)
        initial = value.pairs if isinstance(value, Complex) else value
        name = target
        if name in {spec.arg.name for spec in self.program.inputs} | self._names_of_outputs():
            name = node.name
        state = ir.input_(name, initial.shape, initial.dtype)
        self.kept[target] = State(state, f"{name}.next", initial)
        return Complex(state) if isinstance(value, Complex) else state

    def _names_of_outputs(self) -> set[str]:
        """What outputs may be called."""
        spec = self.program.outputs_tree
        described = structure.describe(spec, iter([{"leaf": k} for k in range(spec.num_leaves)]))
        return set(structure.output_names(described, spec.num_leaves))

    def _parameter(self, name: str, target: str) -> Node:
        """A parameter as an input; parameters over the same storage are one."""
        tensor = self.program.tensors[target]
        name = self.parameters[target] if isinstance(self.parameters, Mapping) else name
        if tensor.is_complex():
            raise ModelError(f"{target}: a complex parameter cannot be an input; keep its parts")
        key = results.storage(tensor)
        if key not in self.storages:
            self.storages[key] = ir.input_(name, tuple(tensor.shape), from_torch(tensor.dtype))
            self.varied.append(self.storages[key])
            self.names[self.storages[key]] = target
        return self.storages[key]

    def _constant(self, target: str) -> Node | Complex:
        """A parameter, buffer or constant; tensors over the same storage are one node."""
        tensor = self.program.tensors.get(target)
        if not isinstance(tensor, torch.Tensor):
            raise ModelError(f"the program holds no value for {target!r}")
        if tensor.is_complex():
            return Complex(self._tensor(target, torch.view_as_real(tensor.detach().resolve_conj())))
        return self._tensor(target, tensor)

    def _tensor(self, target: str, tensor: torch.Tensor) -> Node:
        key = results.storage(tensor)
        if tensor.numel() == 0 or key not in self.storages:
            self.storages[key] = ir.constant(to_numpy(tensor))
            self.names.setdefault(self.storages[key], target)
        return self.storages[key]

    def _outputs(self) -> tuple[list[Node], list[Description]]:
        outputs: list[Node] = []
        leaves: list[Description] = []
        for spec, returns in zip(self.program.outputs, self.program.returned, strict=True):
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
                if spec.kind is OutputKind.BUFFER_MUTATION and spec.target not in self.updated:
                    continue
                left = self.values[returns]
                kept = self.left if spec.kind is OutputKind.BUFFER_MUTATION else self.written
                kept[spec.target] = left.pairs if isinstance(left, Complex) else left
                continue
            if spec.kind is not OutputKind.USER_OUTPUT:
                changes = spec.kind is OutputKind.PARAMETER_MUTATION
                advice = _PARAMETER_CHANGES if changes else f"outputs of kind {spec.kind.name} are not supported"
                self._report(returns, "in-place update", advice.format(spec.target))
                continue
            value = self.values[returns] if isinstance(returns, torch.fx.Node) else returns
            if isinstance(value, Expr):
                leaves.append({"size": len(outputs)})
                outputs.append(ir.dim(value))
            elif isinstance(value, Node):
                leaves.append({"leaf": len(outputs)})
                outputs.append(value)
            elif isinstance(value, Complex):
                leaves.append({"leaf": len(outputs), "complex": True})
                outputs.append(value.pairs)
            else:
                leaves.append({"value": value})
        return outputs, leaves

    def _written_inputs(self, count: int) -> list[tuple[str, Node]]:
        """The outputs, after the ``count`` that the program returns, with what it leaves in its inputs; the inputs are
        described as written."""
        fixed = sorted(set(self.fixed) & set(self.written))
        if fixed:
            raise ModelError(
                f"constants fixes {', '.join(fixed)}, which the model writes into; leave it out of constants, or let "
                "the model write into a copy"
            )
        places = {self.inputs[leaf["leaf"]].attr.name: leaf for leaf in self.input_leaves if "leaf" in leaf}
        for k, name in enumerate(self.written):
            places[name]["left"] = count + k
        return [(f"{name}.next", node) for name, node in self.written.items()]

    # ---- graphs inside the graph -----------------------------------------------------------------------------------

    def _node(self, node: torch.fx.Node) -> None:
        if node.op == "call_function":
            self.values[node] = self._call(node)
        elif node.op == "get_attr":
            inner = getattr(node.graph.owning_module, str(node.target), None)
            is_graph = isinstance(inner, torch.fx.GraphModule)
            self.values[node] = partial(self._run, inner) if is_graph else self._constant(str(node.target))

    def _run(self, module: torch.fx.GraphModule, *given: Any) -> Any:
        """The results of the graph of ``module`` on the values ``given``."""
        placeholders = module.graph.find_nodes(op="placeholder")
        if len(placeholders) != len(given):
            raise ModelError(f"a graph takes {len(placeholders)} values, but {len(given)} are given")
        self.values.update(zip(placeholders, given, strict=True))
        for node in module.graph.nodes:
            self._node(node)
        return self._convert(module.graph.output_node().args[0])

    # ---- operators -------------------------------------------------------------------------------------------------

    def _call(self, node: torch.fx.Node) -> Any:
        operator = target_name(node.target)
        if operator == "operator.getitem" and not node.users:
            return None  # a result that nothing reads may be one that luminal does not compute
        if behind := [self.behind[operand] for operand in node.all_input_nodes if operand in self.behind]:
            self.behind[node] = any(behind)
        complex_ = is_complex(node)
        entry = (tables.COMPLEX if complex_ else tables.TABLE).get(operator)
        if entry is None:
            return self._report(node, operator, _UNKNOWN_OF_COMPLEX if complex_ else _UNKNOWN)
        origin = Origin(operator, node.name, location.of_node(node), location.module_of(node))
        try:
            with originating(self.origins, origin):
                result = entry.handler(*self._convert(node.args), **self._arguments(node, entry))
            results.check(node.meta.get("val"), result)
        except UnsupportedError as error:
            return self._report(node, operator, str(error))
        except LuminalError as error:
            if isinstance(error, ShapeError):
                # Counts of elements, which are last, come first: a number in a traced shape is the model's own.
                self.symbols.sizes.require(error.unequal[::-1], str(origin))
            said = str(error) if error.condition is None else f"{error}{self.symbols.sizes.advice(error.condition)}"
            # What stands in for an unsupported operator's result has its shape and type, but not its numbers.
            of_types = isinstance(error, ShapeError | DTypeError)
            certain = not self.behind.get(node, False) if of_types else node not in self.behind
            if self.every and certain:
                return self._report(node, operator, said)
            if self.unsupported:
                return self._stand_in(node, node.name, node.meta.get("val"))
            raise error.saying(f"{origin}: {said}") from error
        return result

    def _arguments(self, node: torch.fx.Node, entry: Entry) -> dict[str, Any]:
        if node.kwargs.get("generator") is not None:
            raise UnsupportedError("a generator of PyTorch's own: leave it out, and give luminal.compile a seed")
        arguments = {key: self._convert(value) for key, value in node.kwargs.items() if key not in PLACEMENT}
        if "contiguous" in entry.wants:
            operands = [operand.meta["val"] for operand in node.all_input_nodes]
            arguments["contiguous"] = all(
                value.is_contiguous() and value.storage_offset() == 0
                for value in operands
                if isinstance(value, torch.Tensor)
            )
        if "random" in entry.wants:
            arguments["random"] = self.random
        if "within" in entry.wants:
            value = node.meta.get("val")
            arguments["within"] = self.symbols.bounds(value.shape[0] if isinstance(value, torch.Tensor) else value)
        if "result" in entry.wants:
            first = node.meta["val"]
            first = first[0] if isinstance(first, tuple | list) else first
            arguments["result"] = PARTS[first.dtype] if first.dtype.is_complex else from_torch(first.dtype)
        return arguments

    def _convert(self, value: Any) -> Any:
        """An argument converted for the handlers (see ``registry``)."""
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self._convert(v) for v in value]
        if isinstance(value, slice):
            return slice(self._convert(value.start), self._convert(value.stop), self._convert(value.step))
        if isinstance(value, torch.dtype):
            return ComplexType(PARTS[value]) if value.is_complex else from_torch(value)
        return value

    def _report(self, node: Any, operator: str, advice: str) -> Any:
        """Note a place that cannot be compiled. Returns inputs of the type of its results, so that the rest of the
        model is still checked."""
        self.at.append(self.node)
        if not isinstance(node, torch.fx.Node):
            self.unsupported.append(Unsupported(operator, str(node), (), "", advice))
            return None
        operands = tuple(self._describe(n.meta.get("val")) for n in node.all_input_nodes)
        self.unsupported.append(Unsupported(operator, node.name, operands, location.of_node(node), advice))
        return self._stand_in(node, node.name, node.meta.get("val"))

    def _describe(self, value: Any) -> str:
        if isinstance(value, tuple | list):
            return f"({', '.join(map(self._describe, value))})"
        if isinstance(value, torch.Tensor):
            return f"{FROM_TORCH.get(value.dtype, value.dtype)}{list(self.symbols.shape(value.shape))}"
        return str(self.symbols.convert(value)) if isinstance(value, torch.SymInt) else str(value)

    def _stand_in(self, node: torch.fx.Node, name: str, value: Any) -> Any:
        self.behind.setdefault(node, False)
        if isinstance(value, tuple | list):
            return [self._stand_in(node, f"{name}.{k}", v) for k, v in enumerate(value)]
        if isinstance(value, torch.Tensor) and value.is_complex():
            return Complex(ir.input_(name, (*self.symbols.shape(value.shape), 2), PARTS[value.dtype]))
        if isinstance(value, torch.Tensor):
            return ir.input_(name, self.symbols.shape(value.shape), FROM_TORCH.get(value.dtype, types.f32))
        self.behind[node] = True
        if isinstance(value, torch.SymInt):
            return sym.var(name, 0, 1 << 31)
        if isinstance(value, torch.SymBool | torch.SymFloat):
            return True if isinstance(value, torch.SymBool) else 1.0
        return value


# Where a tensor lives and how it is laid out in PyTorch's memory does not concern a graph of values; a generator is
# refused before.
PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "generator"})
