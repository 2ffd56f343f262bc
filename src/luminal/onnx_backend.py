"""ONNX's interface of back ends, ``onnx.backend.base``, for tools that test or run models through it.

``prepare(model, device)`` gives what ``run`` is called of; ``run_model`` and ``run_node`` do both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from luminal import api
from luminal.core.errors import InputError, LuminalError
from luminal.frontends.onnx.reader import OPSETS
from luminal.specialised import Specialised

_IR_VERSION = 10  # of a model that is made of one node: the latest that changes nothing for it


class Prepared(BackendRep):
    """A compiled model. Where values of inputs decide shapes, it is compiled at a call."""

    def __init__(self, model: Specialised) -> None:
        self._model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for ``inputs``: arrays in order or by name, or one array. Raises as a Module."""
        if isinstance(inputs, Mapping):
            found = self._model(**inputs)
        else:
            found = self._model(*(inputs if isinstance(inputs, list | tuple) else [inputs]))
        return found if isinstance(found, tuple) else (found,)


class LuminalBackend(Backend):
    """luminal as a back end. ``device`` is ``CPU``; further arguments of ``prepare`` are options of
    ``luminal.compile``."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be compiled, as far as that is known without inputs."""
        try:
            return cls.supports_device(device) and not api.check(model)
        except LuminalError:
            return False

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Compile a model. Raises as ``luminal.compile``, InputError for a device that is no CPU, and
        ``onnx.checker.ValidationError`` for what is no model of ONNX."""
        if not cls.supports_device(device):
            raise InputError(f"device: expected CPU, found {device!r}; luminal.compile has targets for GPUs")
        onnx.checker.check_model(model)
        return Prepared(api.for_any_sizes(model, **kwargs))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """The outputs of a model."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of one operator, of the version in ``opset_version``, else of the latest that is supported."""
        version = kwargs.pop("opset_version", min(onnx.defs.onnx_opset_version(), OPSETS[-1]))
        opset = [helper.make_opsetid("", version)]
        if node.domain:
            opset.append(helper.make_opsetid(node.domain, kwargs.pop("domain_version", 1)))
        names = [name for name in node.input if name]
        arrays = [np.asarray(value) for value in (inputs if isinstance(inputs, list | tuple) else [inputs])]
        if len(names) != len(arrays):
            raise InputError(f"{node.op_type}: expected {len(names)} inputs, {', '.join(names)}, found {len(arrays)}")
        given = dict(zip(names, arrays, strict=True))
        graph = helper.make_graph(
            [node],
            node.op_type,
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in given.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        model = helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)
        return Prepared(api.for_any_sizes(model, **kwargs)).run(given)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can run there: on the CPU."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False


is_compatible = LuminalBackend.is_compatible
prepare = LuminalBackend.prepare
run_model = LuminalBackend.run_model
run_node = LuminalBackend.run_node
supports_device = LuminalBackend.supports_device
