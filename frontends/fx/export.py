"""From what the user has (a module, a traced module, an exported program) to an ExportedProgram of known operators."""

from __future__ import annotations

import inspect
import logging
import operator
import os
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.fx.experimental._config as symbolic_shapes_config
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from luminal.core import derivative
from luminal.core.errors import ModelError, nearest
from luminal.frontends.fx import dims as dimensions
from luminal.frontends.fx.control import any_number
from luminal.frontends.fx.dims import Dims
from luminal.frontends.fx.failure import exporting
from luminal.frontends.fx.program import REACHED, is_aten, is_traced, of_exported, of_traced
from luminal.frontends.fx.reached import as_buffers
from luminal.frontends.fx.recurrent import any_length
from luminal.frontends.fx.registry import target_name
from luminal.frontends.fx.selection import any_count
from luminal.frontends.fx.tables import TABLE
from luminal.frontends.fx.vision import any_boxes

Model: TypeAlias = torch.nn.Module | ExportedProgram
Inputs: TypeAlias = Sequence[Any] | Mapping[str, Any] | inspect.BoundArguments

_LOG = logging.getLogger(__name__)

# What PyTorch says of a program that writes into a constant, or into one that shares memory with a buffer.
_WRITTEN_CONSTANT = ("is mutated in the forward method", "aot_autograd() does not yet handle")


def as_module(function: Callable[..., Any]) -> torch.nn.Module:
    """A function of tensors as the forward of a module."""
    module = torch.nn.Module()
    if isinstance(function, types.FunctionType):  # PyTorch notes the lines of functions of this name alone
        code = function.__code__.replace(co_name="forward")
        named = types.FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)
        named.__kwdefaults__ = function.__kwdefaults__
        function = named
    module.forward = function
    return module


def export(
    model: Model,
    inputs: Inputs | None,
    dims: Mapping[str, Any] | None = None,
    states: Collection[str] = (),
    apart: bool = True,
    free: bool = False,
) -> ExportedProgram:
    """``model`` as an ExportedProgram whose operators are, as far as PyTorch can bring it about, in the table.

    A module (a traced ``torch.fx.GraphModule`` is one) needs example ``inputs``: the positional arguments of a call, a
    mapping of named ones, or both as they are bound to ``forward``; an ExportedProgram needs none. ``dims`` is
    described in ``luminal.frontends.fx.dims``, ``states`` in ``reached.as_buffers``. Unless they are to be told
    ``apart``, sizes that may be 0 or 1 are taken to be others where the result is the same; ``free`` axes are those
    that PyTorch itself finds to vary, of which it asserts in the program what it refuses of declared ones. What the
    table does not hold is decomposed by PyTorch's own rules; what remains unknown is for the importer to report.

    Raises ModelError where the module cannot be exported.
    """
    if isinstance(model, ExportedProgram):
        return _known(model)
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"expected an nn.Module, a GraphModule or an ExportedProgram, found {type(model).__name__}")
    bound, shapes = _dynamic(bind(model, inputs), dimensions.parse(dims), free)
    with symbolic_shapes_config.patch(backed_size_oblivious=not apart):
        try:
            program, replaced = _exported(model, bound, shapes, states)
        except ModelError as error:
            if not any(words in str(error) for words in _WRITTEN_CONSTANT):
                raise
            replaced = True
        return _exported(model, bound, shapes, states, every=True)[0] if replaced else program


def _exported(
    model: torch.nn.Module, bound: inspect.BoundArguments, shapes: Any, states: Collection[str], every: bool = False
) -> tuple[ExportedProgram, bool]:
    """The program, and whether it has constants where the module keeps a state in a plain object."""
    with (
        as_buffers(model, states, every) as reached, exporting(type(model).__name__),
        torch.set_grad_enabled(derivative.recording()), any_length(), any_number(), any_count(), any_boxes(),
    ):  # fmt: skip
        # What PyTorch cannot prove of the sizes becomes an assertion in the program, which the importer decides.
        program = torch.export.export(
            model, bound.args, bound.kwargs, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
        )
    known = _known(program)
    known.graph_module.meta[REACHED] = frozenset(reached.made)
    return known, bool(reached.replaced)


def _known(program: ExportedProgram) -> ExportedProgram:
    """The program with all that the table does not hold decomposed by PyTorch's rules, updates in place included: the
    table holds functions only."""
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    calls = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    if all(target_name(node.target) in TABLE for node in calls):
        return program
    if derivative.recording():
        _keep_apart(graphs)
    with exporting("the program"), any_length(), any_count(), warnings.catch_warnings():
        # PyTorch copies its own tree specs in a way that it has deprecated.
        warnings.filterwarnings("ignore", "`isinstance\\(treespec, LeafSpec\\)`", FutureWarning)
        return program.run_decompositions({**rules(), **_of_kernels(calls)})


def _keep_apart(graphs: Sequence[torch.fx.Graph]) -> None:
    """Parts that were traced under ``torch.no_grad()``, which decomposition makes a part of the whole, give detached
    values."""
    for graph in graphs:
        for part in graph.find_nodes(op="call_function", target=torch.ops.higher_order.wrap_with_set_grad_enabled):
            for value in list(part.users) if part.args[0] is False else ():
                if value.target is operator.getitem:
                    with graph.inserting_after(value):
                        apart = graph.call_function(torch.ops.aten.detach.default, (value,))
                    apart.meta = dict(value.meta)
                    value.replace_all_uses_with(apart, lambda user, apart=apart: user is not apart)


def traced(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A module of which ``program.is_aten`` holds as one of which ``is_traced`` does, as far as PyTorch can bring it
    about: updates of its own values are values, and what the table does not hold is decomposed. The arguments keep
    their names."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    if is_traced(module) and all(target_name(node.target) in TABLE for node in calls):
        return module
    placeholders = module.graph.find_nodes(op="placeholder")
    values = _in_one_mode([node.meta.get("val") for node in placeholders])
    run = partial(torch.fx.Interpreter(module).run, enable_io_processing=False)
    table = {**rules(), **_of_kernels(calls)}
    with exporting("the graph"), torch.no_grad(), preserve_node_meta(), _beside_parameters(detect_fake_mode(values)):
        found = make_fx(torch.func.functionalize(run), table, _allow_non_fake_inputs=True)(*values)
    for node, own in zip(found.graph.find_nodes(op="placeholder"), placeholders, strict=True):
        node.target = own.target
        node._rename(own.name)
    found.graph.set_codegen(module.graph._codegen)
    found.graph.eliminate_dead_code()
    found.recompile()
    return found


def _in_one_mode(values: list[Any]) -> list[Any]:
    """``values`` of one mode of tensors without memory: PyTorch gives each its own where real tensors were traced."""
    modes = {id(value.fake_mode) for value in values if isinstance(value, FakeTensor)}
    if len(modes) <= 1:
        return values
    with FakeTensorMode():
        return [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            if isinstance(value, FakeTensor)
            else value
            for value in values
        ]


@contextmanager
def _beside_parameters(mode: Any) -> Iterator[None]:
    """The ``mode`` of tensors without memory, if there is one, beside parameters, which have theirs."""
    if mode is None:
        yield
        return
    allowed = mode.allow_non_fake_inputs
    mode.allow_non_fake_inputs = True
    try:
        with mode:
            yield
    finally:
        mode.allow_non_fake_inputs = allowed


def _of_kernels(calls: Sequence[torch.fx.Node]) -> dict[Any, Any]:
    """What the table does not hold of operators that were defined in Python, ``torch.library.custom_op``'s among them:
    each is decomposed into what its kernel for all devices does, unless that cannot be traced."""
    operators = {node.target for node in calls if isinstance(node.target, torch._ops.OpOverload)}
    key = "CompositeExplicitAutograd"
    return {
        operator: partial(_kernel, operator)
        for operator in operators
        if operator.namespace not in ("aten", "prim", "prims") and str(operator) not in TABLE
        if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)
    }


def _kernel(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    try:
        return operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever a kernel may do with the values of tensors
        _LOG.debug("the kernel of %s cannot be traced: %s", operator, error)
        return NotImplemented


def rules() -> Any:
    """PyTorch's decompositions of what the table does not hold."""
    found = torch.export.default_decompositions()
    for overload in list(found.keys()):
        if str(overload) in TABLE:
            found.pop(overload)
    return found


def dynamic_shapes(
    model: torch.nn.Module, inputs: Inputs, dims: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], Any]:
    """What ``dims`` describes, as ``torch.export.export`` and ``torch.onnx.export`` take it for ``dynamic_shapes``, and
    the positional arguments to export with: PyTorch takes a dynamic axis of extent 1 for a fixed one."""
    bound, shapes = _dynamic(bind(model, inputs), dimensions.parse(dims))
    return bound.args, shapes


def bind(model: torch.nn.Module, inputs: Inputs | None) -> inspect.BoundArguments:
    """The inputs under the parameters of the module's ``forward``."""
    if inputs is None:
        raise ModelError(
            f"{type(model).__name__} has no sizes and types of its own: pass example inputs, "
            "as in luminal.compile(module, (x,)), or an ExportedProgram"
        )
    if isinstance(inputs, torch.Tensor | np.ndarray):
        raise ModelError("expected the arguments of a call, found one tensor: write (x,) instead of x")
    if isinstance(inputs, inspect.BoundArguments):
        return inputs
    signature = inspect.signature(model.forward)
    try:
        return signature.bind(**inputs) if isinstance(inputs, Mapping) else signature.bind(*inputs)
    except TypeError as error:
        raise ModelError(f"the inputs do not fit {type(model).__name__}.forward{signature}: {error}") from error


def declared_names(
    model: Model, inputs: Inputs | None = None, dims: Mapping[str, Any] | None = None
) -> tuple[list[str], list[str]]:
    """The names of the model's inputs and of its own symbols of sizes, before anything is exported or imported."""
    if isinstance(model, ExportedProgram) or is_aten(model):
        program = of_exported(model) if isinstance(model, ExportedProgram) else of_traced(model)
        found = [spec.arg.name for spec in program.inputs if spec.kind is InputKind.USER_INPUT]
        return found, list(map(str, program.ranges))
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"expected an nn.Module, a GraphModule or an ExportedProgram, found {type(model).__name__}")
    return input_names(model, inputs), []


def input_names(model: torch.nn.Module, inputs: Inputs | None) -> list[str]:
    """The names of all values that a call is given, as ``dims`` and ``constants`` have them."""
    bound = bind(model, inputs)
    return [name for argument, value in bound.arguments.items() for name, _ in _leaves(bound, argument, value)]


def _leaves(bound: inspect.BoundArguments, argument: str, value: Any) -> list[tuple[str, Any]]:
    """What an argument nests, each by its name."""
    kind = bound.signature.parameters[argument].kind
    found = []
    for path, leaf in pytree.tree_leaves_with_path(value):
        steps = [str(step.key if hasattr(step, "key") else getattr(step, "idx", step)) for step in path]
        found.append(("_".join(steps if kind is inspect.Parameter.VAR_KEYWORD else [argument, *steps]), leaf))
    return found


def _dynamic(bound: inspect.BoundArguments, dims: Dims, free: bool = False) -> tuple[inspect.BoundArguments, Any]:
    """The arguments, enlarged where a dynamic axis of extent 1 would be taken for a fixed one and copied where one
    tensor is given twice, which would be taken for one input; and their shape spec."""
    made: dict[str, Any] = {}
    seen: set[int] = set()
    names: set[str] = set()
    shapes: dict[str, Any] = {}
    for argument, value in bound.arguments.items():
        kind = bound.signature.parameters[argument].kind
        leaves = []
        specs = []
        tree = pytree.tree_structure(value)
        for name, leaf in _leaves(bound, argument, value):
            names.add(name)
            leaf, spec = _leaf_spec(name, leaf, dims, made, free)
            if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
                leaf = leaf.clone()
            seen.add(id(leaf))
            leaves.append(leaf)
            specs.append(spec)
        bound.arguments[argument] = pytree.tree_unflatten(leaves, tree)
        shape = pytree.tree_unflatten(specs, tree)
        shapes |= shape if kind is inspect.Parameter.VAR_KEYWORD else {argument: shape}
    named = {name for axes in dims.axes.values() for name in axes.values()}
    unused = sorted(set(dims.ranges) - named)
    if unused:
        raise ModelError(
            f"dims gives a range to {', '.join(unused)}, but no axis has that name{nearest(unused[0], named | names)}; "
            "name the axes too, "
            f"as in dims={{{unused[0]!r}: (1, 32), {min(names, default='x')!r}: {{0: {unused[0]!r}}}}}"
        )
    unknown = sorted(set(dims.axes) - names)
    if unknown:
        raise ModelError(
            f"dims names axes of {', '.join(unknown)}; the inputs are {', '.join(sorted(names))}"
            f"{nearest(unknown[0], names)}"
        )
    return bound, shapes if made else None


def _leaf_spec(name: str, leaf: Any, dims: Dims, made: dict[str, Any], free: bool) -> tuple[Any, dict[int, Any] | None]:
    """One input, enlarged where needed, and the ``Dim`` of each of its dynamic axes; ``made`` holds those by name."""
    axes = dims.axes.get(name)
    if not isinstance(leaf, torch.Tensor) or not axes:
        return leaf, None
    spec: dict[int, Any] = {}
    for axis, dim_name in axes.items():
        if not -leaf.ndim <= axis < leaf.ndim:
            raise ModelError(f"dims[{name!r}]: axis {axis} is out of range for shape {list(leaf.shape)}")
        given = dims.range(dim_name)
        if leaf.shape[axis] not in given:
            raise ModelError(
                f"input {name!r}: axis {axis} ({dim_name}) of the example has {leaf.shape[axis]} elements, "
                f"outside dims[{dim_name!r}] = {given}"
            )
        if given.low == given.high:
            continue
        if leaf.shape[axis] == 1:
            leaf = torch.cat([leaf, leaf], axis)
        kind = Dim.AUTO if free else partial(Dim, dim_name)
        spec[axis % leaf.ndim] = made.setdefault(dim_name, kind(min=given.low, max=given.high))
    return leaf, spec or None


def open_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """The ExportedProgram that ``torch.export.save`` wrote to ``path``. Raises ModelError where it cannot be read."""
    if not os.path.isfile(path):
        raise ModelError(f"there is no file {os.fspath(path)!r}")
    log = logging.getLogger("torch.export")

    def other(record: logging.LogRecord) -> bool:
        """Whether it is not the traceback of what the error says."""
        return "error when deserializing" not in record.getMessage()

    log.addFilter(other)
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ModelError(f"{os.fspath(path)!r} is no program saved by torch.export.save: {error}") from error
    finally:
        log.removeFilter(other)
