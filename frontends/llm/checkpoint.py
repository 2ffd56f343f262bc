"""Checkpoints: the tensors of a model by name, and its ``config.json``.

Here are what every kind of checkpoint gives, and that of a model in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from luminal.core import ir
from luminal.core.data import Array
from luminal.core.errors import ModelError, nearest
from luminal.core.ir import Node
from luminal.core.types import f32


class Weight(Protocol):
    """One tensor of a checkpoint, which is read when it is asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def node(self) -> Node:
        """The tensor in float32: a constant, or constants and their decoding in primitives. Constants hold on to as
        little memory as they can: see ``ir.lazy_constant``."""
        ...


class Checkpoint(Protocol):
    """The tensors of a model by name. ``config`` is what its ``config.json`` says, or what another format says in the
    same words."""

    @property
    def config(self) -> Mapping[str, Any]: ...

    def names(self) -> Collection[str]: ...

    def weight(self, name: str) -> Weight:
        """Raises ModelError where the checkpoint has no tensor of that name."""
        ...


def missing(name: str, names: Collection[str], where: str) -> ModelError:
    """The error of a checkpoint that lacks a tensor."""
    return ModelError(f"{where} has no tensor {name!r}{nearest(name, names)}; it has {len(names)} others")


@dataclass(frozen=True, eq=False)
class TorchWeight:
    """A tensor of PyTorch. Its memory is shared, unless it has to be converted to float32."""

    tensor: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def array(self) -> Array:
        found: Array = self.tensor.detach().cpu().float().numpy()
        return np.ascontiguousarray(found)

    def node(self) -> Node:
        node = ir.lazy_constant(self.array)
        assert node.dtype == f32
        return node


class Module:
    """The checkpoint of a model of transformers in memory: a module with a ``config``."""

    def __init__(self, module: Any) -> None:
        self.module = module

    @cached_property
    def config(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.module.config.to_dict()
        return found

    @cached_property
    def _tensors(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.module.state_dict()
        return found

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def weight(self, name: str) -> Weight:
        if name not in self._tensors:
            raise missing(name, self.names(), f"the module {type(self.module).__name__}")
        return TorchWeight(self._tensors[name])
