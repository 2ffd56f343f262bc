"""``luminal.grad``: a compiled function that gives gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from luminal import api, meshes, structure, tensors
from luminal.codegen import interface
from luminal.core import derivative
from luminal.core.differentiate import differentiated
from luminal.core.errors import InputError, nearest
from luminal.core.ir import Graph, Node
from luminal.module import Module

By = int | str


class Gradients:
    """A compiled function of a model's arguments: call it as the model is called.

    It returns the gradients, or the pair of the value and the gradients: one where it is differentiated by one input,
    a tuple in the order of ``wrt``, or a mapping by the names of parameters. Parameters of a module are read where they
    lie at each call, so what an optimiser has written into them counts. ``module`` is the compiled library, whose
    inputs are those of the model, then the cotangent and the parameters.
    """

    def __init__(
        self, module: Module, described: Mapping[str, Any], names: Sequence[str], parameters: Sequence[Any],
        cotangent: bool, value: bool, nested: Callable[[Sequence[Any]], Any], torch: bool,
    ) -> None:  # fmt: skip
        self.module = module
        self._described, self._names, self._parameters = described, list(names), list(parameters)
        self._cotangent, self._value, self._nested, self._torch = cotangent, value, nested, torch

    def __repr__(self) -> str:
        return f"<luminal gradients of {', '.join(self.module.input_names)}>"

    def __call__(self, *args: Any, cotangent: Any = None, **kwargs: Any) -> Any:
        """The gradients at these arguments. ``cotangent``, the gradient of each element of the output, is given if and
        only if the function was made for one; else raises InputError, as for arguments that do not fit."""
        if (cotangent is not None) != self._cotangent:
            wanted = "a cotangent" if self._cotangent else "no cotangent, which grad(.., cotangent=True) is for"
            raise InputError(f"gradients: expected {wanted}")
        arguments = structure.bind(self._described, self._names, args, kwargs)
        given = [argument.numbers for argument in arguments]
        weights = [cotangent] if self._cotangent else []
        arrays = [
            tensors.to_numpy(x, name)
            for x, name in zip([*given, *self._parameters, *weights], self.module.input_names, strict=True)
        ]
        results: Sequence[Any] = list(self.module.run(dict(zip(self.module.input_names, arrays, strict=True))).values())
        if self._torch or any(map(tensors.is_torch, [*given, *weights])):
            results = [tensors.to_torch(x) for x in results]
        found = self._nested(results[1:] if self._value else results)
        return (results[0], found) if self._value else found


def grad(
    model: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    wrt: By | Sequence[By] | None = None,
    value: bool = False,
    cotangent: bool = False,
    dims: api.Dims | None = None,
    constants: api.Constants | None = None,
    name: str | None = None,
    **options: Any,
) -> Gradients:
    """Compile a function that gives gradients of a model's output, by reverse accumulation on its graph.

    ``model`` is what ``luminal.compile`` takes, or a function of PyTorch tensors; ``inputs`` are examples. It has one
    output, a number; or with ``cotangent``, an output of any shape, whose elements are weighted by the ``cotangent=``
    of a call. ``wrt`` says what to differentiate by: the names of inputs or of a module's parameters and buffers, or
    positions of inputs. Without it, a module is differentiated by those of its parameters that require gradients, and
    everything else by its inputs of floats. With ``value`` a call gives the pair of the value and the gradients.
    ``options`` are those of ``luminal.compile``.

    Gradients are those of PyTorch where a function has a kink, a tie or a masked branch (``docs/guide/training.md``).

    Raises InputError for an input of integers, an output that is no number, or a name that is not there; and
    UnsupportedError where an operator on the way has no gradient, with its place in the model.
    """
    is_module = api.is_module(model)
    if inspect.isfunction(model) or inspect.ismethod(model) or inspect.isbuiltin(model):
        model = _as_module(model)
    parameters = _parameters(model) if is_module else {}
    asked = [wrt] if isinstance(wrt, int | str) else None if wrt is None else list(wrt)
    if asked is None and parameters:
        asked = [key for key, tensor in _unique(parameters).items() if tensor.requires_grad]
    own = [key for key in asked or () if isinstance(key, str) and key in parameters]
    with derivative.recorded():
        graph, varied = _read(model, inputs, dims, constants, name, _aliases(own, parameters))
    by = _nodes(graph, asked, own, parameters, varied)
    if not by:
        raise InputError("gradients: there is nothing to differentiate by: no input and no parameter holds floats")
    made = differentiated(graph, by, value, cotangent)
    mesh, shard = meshes.read(options.get("mesh"), options.get("shard", "auto"), model)
    options |= {} if mesh is None else {"mesh": mesh, "shard": shard}
    module = api.compile(made, **options)
    assert isinstance(module, Module)
    named = own if wrt is None and own else None
    single = isinstance(wrt, int | str)

    def nested(results: Sequence[Any]) -> Any:
        if named is not None:
            return dict(zip(named, results, strict=True))
        return results[0] if single else tuple(results)

    caller = graph.given[: len(graph.given) - len(varied)]
    return Gradients(
        module, graph.structure, [node.attr.name for node in caller], [tensor for _, tensor in varied],
        cotangent, value, nested, is_module or inspect.isfunction(model),
    )  # fmt: skip


def _as_module(function: Callable[..., Any]) -> Any:
    from luminal.frontends.fx import export

    return export.as_module(function)


def _parameters(module: Any) -> dict[str, Any]:
    """The parameters and buffers of a module by all of their names."""
    found = dict(module.named_parameters(remove_duplicate=False))
    buffers = {key: x for key, x in module.named_buffers(remove_duplicate=False) if x.is_floating_point()}
    return {**found, **buffers}


def _unique(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Each parameter under its first name."""
    first: dict[int, str] = {}
    for key, tensor in parameters.items():
        first.setdefault(id(tensor), key)
    return {key: parameters[key] for key in first.values()}


def _aliases(own: Sequence[str], parameters: Mapping[str, Any]) -> list[str]:
    """All names of the parameters of the names ``own``."""
    same = {id(parameters[key]) for key in own}
    return [key for key, tensor in parameters.items() if id(tensor) in same]


def _read(
    model: Any, inputs: Any, dims: api.Dims | None, constants: api.Constants | None, name: str | None,
    parameters: Sequence[str],
) -> tuple[Graph, list[tuple[Node, Any]]]:  # fmt: skip
    """The graph of a model, and the inputs that are parameters, each with the tensor that it stands for."""
    if not parameters:
        return api.read(model, inputs, dims=dims, constants=constants, name=name), []
    _, importer, program = api.front_end(model)
    graph = importer.load(program, inputs, dims=dims, constants=constants, name=name, parameters=parameters)
    tensors_ = _parameters(model)
    varied = [
        (node, tensors_[graph.names[node]])
        for node in graph.given
        if node in graph.names and graph.names[node] in parameters
    ]
    return replace(graph, name=interface.library_name(graph.name)), varied


def _nodes(
    graph: Graph, asked: Sequence[By] | None, own: Sequence[str], parameters: Mapping[str, Any],
    varied: Sequence[tuple[Node, Any]],
) -> list[Node]:  # fmt: skip
    """The nodes to differentiate by."""
    caller = graph.given[: len(graph.given) - len(varied)]
    if asked is None:
        return [node for node in caller if node.dtype.is_float]
    found: list[Node] = []
    by_name = {node.attr.name: node for node in caller}
    for key in asked:
        if isinstance(key, int):
            if not -len(caller) <= key < len(caller):
                raise InputError(f"wrt: expected a position of {len(caller)} inputs, found {key}")
            found.append(caller[key])
        elif key in own:
            found.append(next(node for node, tensor in varied if tensor is parameters[key]))
        elif key in by_name:
            found.append(by_name[key])
        else:
            known = [*by_name, *parameters]
            raise InputError(f"wrt: expected the name of an input or parameter, found {key!r}{nearest(key, known)}")
    return found
