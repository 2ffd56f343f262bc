"""The importer's input: a graph of ATen operators, exported or traced, and the facts that belong to it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx.graph import CodeGen, _PyTreeCodeGen
from torch.utils import _pytree as pytree

from luminal.frontends.fx.registry import target_name
from luminal.frontends.fx.tables import TABLE

REACHED = "luminal.reached"  # in the metadata of a graph: ``Program.reached``


@dataclass(frozen=True)
class Program:
    """Of each placeholder, its specification; of each leaf that the output node returns, likewise.

    ``tensors`` holds parameters, buffers and constants by target, ``ranges`` the bounds of the symbols of sizes, and
    ``equal`` pairs of sizes, in PyTorch's symbols, that are equal in every call; ``reached`` names the buffers that
    stand for tensors in plain objects; ``inputs_tree`` is of
    ``(args, kwargs)`` and ``arguments`` names those given by position.
    """

    graph: torch.fx.Graph
    inputs: Sequence[InputSpec]
    outputs: Sequence[OutputSpec]
    returned: Sequence[Any]
    inputs_tree: pytree.TreeSpec
    outputs_tree: pytree.TreeSpec
    tensors: Mapping[str, Any]
    ranges: Mapping[Any, Any] = field(default_factory=dict)
    equal: Sequence[tuple[Any, Any]] = ()
    arguments: Sequence[str] = ()
    reached: Collection[str] = ()


def of_exported(program: ExportedProgram) -> Program:
    """An exported program as it is."""
    calls = program.module_call_graph[0].signature
    assert calls is not None
    signature = program.graph_signature
    return Program(
        program.graph,
        signature.input_specs,
        signature.output_specs,
        program.graph.output_node().args[0],
        calls.in_spec,
        calls.out_spec,
        {**program.constants, **program.state_dict},
        program.range_constraints,
        arguments=calls.forward_arg_names or (),
        reached=program.graph_module.meta.get(REACHED, ()),
    )


def is_traced(model: object) -> bool:
    """Whether ``model`` holds nothing but functions on tensors of known types, as ``make_fx`` and AOTAutograd leave
    behind them: such a graph needs no export."""
    if not isinstance(model, torch.fx.GraphModule):
        return False
    generated = type(model.graph._codegen)
    return generated in (CodeGen, _PyTreeCodeGen) and all(map(is_function, model.graph.nodes))


def is_aten(model: object) -> bool:
    """Whether ``model`` holds nothing but ATen operators and functions on tensors of known types, which may write into
    what they are given: its types and sizes are its own."""
    if not isinstance(model, torch.fx.GraphModule) or type(model.graph._codegen) not in (CodeGen, _PyTreeCodeGen):
        return False
    return all(map(_is_call, model.graph.nodes))


def _is_call(node: torch.fx.Node) -> bool:
    is_operator = node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
    return is_function(node) or (is_operator and "val" in node.meta)


def fits(module: torch.fx.GraphModule, inputs: Any) -> bool:
    """Whether the tensors ``inputs`` of a call have the types and known sizes that a traced module was made for."""
    given = pytree.tree_leaves(inputs.arguments if isinstance(inputs, inspect.BoundArguments) else inputs)
    expected = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    if len(given) != len(expected):
        return False
    return all(
        isinstance(value, torch.Tensor)
        and value.dtype == tensor.dtype
        and value.ndim == tensor.ndim
        and all(not isinstance(size, int) or size == n for size, n in zip(tensor.shape, value.shape, strict=True))
        for value, tensor in zip(given, expected, strict=True)
        if isinstance(tensor, torch.Tensor)
    )


def is_function(node: torch.fx.Node) -> bool:
    if node.op == "placeholder":
        return isinstance(node.meta.get("val"), torch.Tensor | int | float | torch.SymInt) or not node.users
    if node.op == "call_function":
        if isinstance(node.target, torch._ops.OpOverload):
            schema = node.target._schema
            return ("val" in node.meta or not schema.returns) and not schema.is_mutable
        return target_name(node.target) in TABLE
    return node.op in ("get_attr", "output")


def of_traced(module: torch.fx.GraphModule) -> Program:
    """A module of which ``is_traced`` holds; its placeholders are given by position."""
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    names = [node.name for node in placeholders]
    leaves, outputs_tree = pytree.tree_flatten(graph.output_node().args[0])
    inputs_tree = pytree.tree_structure((tuple(names), {}))
    arguments = names
    if isinstance(graph._codegen, _PyTreeCodeGen):
        info = graph._codegen.pytree_info
        arguments = [name for name in info.orig_args if name != "self"]
        inputs_tree = _of_call(info.in_spec)
        outputs_tree = outputs_tree if info.out_spec is None else info.out_spec
    attributes = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    environment = _environment(placeholders)
    return Program(
        graph,
        [InputSpec(InputKind.USER_INPUT, _argument(node), None) for node in placeholders],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(str(leaf)), None) for leaf in leaves],
        leaves,
        inputs_tree,
        outputs_tree,
        {target: attrgetter(target)(module) for target in attributes},
        {} if environment is None else environment.var_to_range,
        [] if environment is None else _equal(environment),
        arguments,
    )


def _of_call(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """The structure of ``(args, kwargs)``, where that of the arguments alone may be given."""
    example = pytree.tree_unflatten([None] * spec.num_leaves, spec)
    is_call = isinstance(example, tuple) and len(example) == 2 and isinstance(example[0], tuple)
    if is_call and isinstance(example[1], dict):
        return spec
    leaf = object()  # None would be no leaf
    return pytree.tree_structure((tuple(pytree.tree_unflatten([leaf] * spec.num_leaves, spec)), {}))


def _argument(node: torch.fx.Node) -> TensorArgument | ConstantArgument:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor | torch.SymInt):
        return TensorArgument(node.name)
    return ConstantArgument(node.name, value)


def _environment(placeholders: Sequence[torch.fx.Node]) -> Any:
    """The environment of the symbolic sizes, which knows of their symbols; None where no size is symbolic."""
    for node in placeholders:
        value = node.meta.get("val")
        for size in (*value.shape,) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _equal(environment: Any) -> list[tuple[Any, Any]]:
    """Sizes that its guards say are equal: whoever made the graph has promised to call it for no others."""
    guards = [guard.expr for guard in environment.guards]
    return [guard.args for guard in guards if guard.func.__name__ in ("Eq", "Equality")]


def is_complex(node: torch.fx.Node) -> bool:
    """Whether an operand or a result of ``node`` is complex."""
    values = pytree.tree_leaves([node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)])
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
