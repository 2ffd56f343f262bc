"""The backend of ``torch.compile(model, backend="luminal")``.

PyTorch finds it by its entry point, or once this module is imported. Each graph that Dynamo captures becomes a library:
between the breaks of a graph PyTorch itself runs, and what Dynamo guards (types, ranks, fixed sizes, constants of the
user's code) makes it capture, and luminal compile, again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import list_backends, register_backend
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils import _pytree as pytree

from luminal import api, tensors
from luminal.core.errors import InputError, ModelError, ShapeError, UnsupportedError
from luminal.core.facts import DEFAULT
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import to_numpy
from luminal.frontends.fx.export import rules
from luminal.module import Module

Inputs = Sequence[Any]
OPTIONS = ("precision", "weights", "winograd", "threads", "seed", "search")  # of luminal.compile, for a captured graph


def luminal(
    graph: torch.fx.GraphModule, inputs: Inputs, *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """What runs ``graph``, a module that Dynamo captured with these example ``inputs``.

    ``options`` are those of ``luminal.compile``: ``torch.compile(model, backend="luminal", options={"threads": 1})``.
    Parameters are constants of the library, which is compiled again where they have changed since; buffers are inputs.

    Raises ModelError where gradients are asked for, UnsupportedError for operators that luminal cannot compile,
    InputError for options that it has not, and for a ``mode``.
    """
    options = {} if options is None else dict(options)
    unknown = sorted(options.keys() - OPTIONS)
    if unknown or mode is not None:
        raise InputError(
            f"torch.compile with luminal: expected options of {', '.join(OPTIONS)}, found "
            f"{', '.join(unknown) or f'the mode {mode!r}'}; options={{'search': 'quick'}} measures schedules"
        )
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        raise ModelError(
            "luminal compiles models for inference: call the model under torch.no_grad() or torch.inference_mode()"
        )
    weights = [k for k, x in enumerate(inputs) if isinstance(x, torch.nn.Parameter)]

    def compiler(functional: torch.fx.GraphModule, arguments: Inputs) -> Callable[..., Any]:
        # Arguments that share memory have become one; then it is not known which are weights.
        boxed: Callable[..., Any] = make_boxed_func(
            _Compiled(functional, weights if len(arguments) == len(inputs) else [], options)
        )
        return boxed

    compiled: Callable[..., Any] = aot_autograd(fw_compiler=compiler, decompositions=rules())(graph, inputs)
    return compiled


class _Compiled:
    """A functional graph of ATen operators as a library, for the present values of its weights.

    ``weights`` are the positions of parameters among the arguments. Numbers that are no tensor's size are constants of
    the library, too. Where sizes cannot be symbols, or those of a call are outside what the graph was found to allow,
    there is a library for just these sizes.
    """

    def __init__(self, graph: torch.fx.GraphModule, weights: Sequence[int], options: Mapping[str, Any]) -> None:
        self.graph, self.weights, self.options = graph, weights, options
        self.placeholders = graph.graph.find_nodes(op="placeholder")
        symbols = {symbol for node in self.placeholders for symbol in _symbols(node)}
        self.numbers = [
            k
            for k, node in enumerate(self.placeholders)
            if isinstance(node.meta["val"], torch.SymInt) and not node.meta["val"].node.expr.free_symbols <= symbols
        ]
        self.fixed: list[Any] | None = None
        self.upper = 0
        self.module: Module | None = None  # of symbolic sizes
        self.exact: dict[tuple[int, ...], Module] = {}  # by the values of the symbols

    def __call__(self, *arguments: Any) -> Any:
        fixed: list[Any] = [(arguments[k].data_ptr(), arguments[k]._version) for k in self.weights]
        fixed += [arguments[k] for k in self.numbers]
        largest = max((size for x in arguments if isinstance(x, torch.Tensor) for size in x.shape), default=0)
        sizes = self._sizes(arguments)
        if fixed != self.fixed or largest > self.upper:
            self.upper = max(self.upper, DEFAULT.high, 2 * largest if largest > DEFAULT.high else 0)
            self.module, self.exact, self.fixed = self._symbolic(arguments, bool(sizes)), {}, fixed
        values = tuple(sizes.values())
        module = self.exact.get(values, self.module)
        if module is not None:
            try:
                return _run(module, arguments)
            except ValueError:  # an input that does not fit
                if not sizes or values in self.exact:
                    raise
        self.exact[values] = self._compile(arguments, {symbol: (size, size) for symbol, size in sizes.items()})
        return _run(self.exact[values], arguments)

    def _symbolic(self, arguments: Inputs, is_symbolic: bool) -> Module | None:
        """The library for all sizes of the symbols; None where there are symbols, and none is possible."""
        try:
            return self._compile(arguments, self._dims())
        except (InputError, ModelError, ShapeError, UnsupportedError):  # what is not of sizes is raised for values, too
            if not is_symbolic:
                raise
            return None

    def _compile(self, arguments: Inputs, dims: Mapping[str, tuple[int, int]]) -> Module:
        constants = {self.placeholders[k].name: to_numpy(arguments[k]) for k in self.weights}
        constants |= {self.placeholders[k].name: np.array(arguments[k]) for k in self.numbers}
        graph = importer.load(self.graph, dims=dims, constants=constants)
        module = api.compile(graph, **self.options)
        assert isinstance(module, Module)
        return module

    def _sizes(self, arguments: Inputs) -> dict[str, int]:
        """The values that the symbols have in a call, by their names."""
        found: dict[str, int] = {}
        for node, argument in zip(self.placeholders, arguments, strict=True):
            value = node.meta["val"]
            for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    found[str(size.node.expr)] = int(argument.shape[axis])
        return found

    def _dims(self) -> dict[str, tuple[int, int]]:
        """The bounds of the symbols of sizes: PyTorch's own, and from above the largest size to be expected."""
        found: dict[str, tuple[int, int]] = {}
        for node in self.placeholders:
            for symbol, bounds in _symbols(node).items():
                found[str(symbol)] = int(bounds.lower), int(min(bounds.upper, self.upper))
        return found


def _run(module: Module, arguments: Inputs) -> Any:
    return pytree.tree_map(tensors.to_torch, module(*arguments))


def _symbols(node: torch.fx.Node) -> dict[Any, Any]:
    """The symbols in the shape of a tensor, with the bounds that PyTorch has for them."""
    value = node.meta["val"]
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    symbolic = [size.node for size in sizes if isinstance(size, torch.SymInt)]
    return {symbol: size.shape_env.var_to_range[symbol] for size in symbolic for symbol in size.expr.free_symbols}


if "luminal" not in list_backends(exclude_tags=()):  # else the entry point registers it
    register_backend(luminal)
