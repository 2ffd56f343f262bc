"""The values of one graph or function body by name."""

from __future__ import annotations

from typing import TypeAlias

import onnx

from luminal.core import ir
from luminal.core.errors import ModelError
from luminal.core.ir import Node
from luminal.frontends.onnx.external import ExternalFiles
from luminal.frontends.onnx.sequences import Held
from luminal.frontends.onnx.tensors import constant, sparse_to_numpy


class Missing:
    """The value of an output whose operator is unsupported: what depends on it is skipped, not reported again."""


MISSING = Missing()
Value: TypeAlias = Held | Missing


class Scope:
    """The values of one graph or function body by name; initializers become constants when first read."""

    def __init__(
        self,
        files: ExternalFiles,
        names: dict[Node, str],
        graph: onnx.GraphProto | None = None,
        outer: Scope | None = None,
    ) -> None:
        self._outer = outer
        self.nodes: list[onnx.NodeProto] = [*(outer.nodes if outer else []), *(graph.node if graph else [])]
        self._values: dict[str, Value] = {}
        self._files = files
        self._names = names
        self._dense = {tensor.name: tensor for tensor in graph.initializer} if graph else {}
        self._sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer} if graph else {}

    def __setitem__(self, name: str, value: Value) -> None:
        self._values[name] = value

    def __getitem__(self, name: str) -> Value:
        """The value called ``name``; None for ``""``, which stands for an input that is left out."""
        if not name:
            return None
        if name not in self._values:
            if name in self._dense:
                node = constant(self._dense[name], self._files)
            elif name in self._sparse:
                node = ir.constant(sparse_to_numpy(self._sparse[name], self._files))
            elif self._outer is not None:
                return self._outer[name]
            else:
                raise ModelError(f"the value {name!r} is read before any operator, input or initializer gives it")
            self._names.setdefault(node, name)
            self._values[name] = node
        return self._values[name]

    def tensors(self) -> list[Node]:
        """The tensors that have a name here or in a scope around."""
        own = [value for value in self._values.values() if isinstance(value, Node)]
        return own if self._outer is None else [*own, *self._outer.tensors()]
