"""An ONNX model whose initialisers are inputs, to be trained."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx

from luminal.core.errors import InputError, nearest
from luminal.core.ir import Node
from luminal.frontends.onnx.reader import Source, read
from luminal.frontends.onnx.tensors import constant


def with_inputs(model: Source, trained: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, Node]]:
    """``model`` with the initialisers of the names ``trained`` as its last inputs, and their values.

    Raises InputError for a name that is no initialiser or stands twice, and for one that holds no floats; ModelError
    where the model cannot be read.
    """
    proto, files = read(model)
    known = {tensor.name: tensor for tensor in proto.graph.initializer}
    values: dict[str, Node] = {}
    for name in trained:
        if name not in known:
            raise InputError(f"trainable: there is no initialiser {name!r}{nearest(name, list(known))}")
        if name in values:
            raise InputError(f"trainable: {name!r} stands twice")
        values[name] = constant(known[name], files)
        if not values[name].dtype.is_float:
            raise InputError(f"trainable: expected floats, found {name}: {values[name].dtype}")
    made = (
        onnx.load(os.fspath(model))
        if isinstance(model, str | os.PathLike)
        else onnx.ModelProto.FromString(proto.SerializeToString())
    )  # a copy, with external data
    kept = [tensor for tensor in made.graph.initializer if tensor.name not in values]
    declared = [value for value in made.graph.input if value.name not in values]  # before IR 4, weights were inputs too
    rows = [onnx.helper.make_tensor_value_info(n, known[n].data_type, list(known[n].dims)) for n in values]
    del made.graph.initializer[:], made.graph.input[:]
    made.graph.initializer.extend(kept)
    made.graph.input.extend([*declared, *rows])
    return made, values
