"""An ONNX model whose initialisers are inputs, to be trained."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

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


def micro_batch(
    model: onnx.ModelProto, trained: Collection[str], dims: Mapping[str, Any] | None, count: int,
    asked: Mapping[str, int | None],
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """``dims`` for one of ``count`` micro-batches, and the names of the inputs that have rows of the batch: the first
    that has an axis and is not ``trained``, and all whose first axis has the same name. ``asked`` says of inputs by
    name whether they have (0) or not (None).

    Raises InputError where that axis has no name, ``dims`` fix it to no number that ``count`` divides, or there is no
    such input.
    """
    given = {value.name: value.type.tensor_type.shape for value in model.graph.input if value.name not in trained}
    firsts = {key: shape.dim[0] for key, shape in given.items() if shape.dim and asked.get(key, 0) == 0}
    unknown = sorted(asked.keys() - given.keys())
    if unknown:
        raise InputError(
            f"shard: expected names of inputs, which are {', '.join(given)}, along 'pipeline', found {unknown[0]!r}; "
            "stages are chosen by cost"
        )
    if not firsts:
        raise InputError("micro_batches: expected an input with rows of a batch, found none")
    name, first = next(iter(firsts.items()))
    if first.HasField("dim_value"):
        raise InputError(
            f"micro_batches: expected a model whose batch has a size with a name, found {first.dim_value} rows of "
            f"{name!r}; export it with a dynamic first axis, or take micro_batches=1"
        )
    size = first.dim_param or f"{name}_0"
    rows = (dims or {}).get(size)
    if not isinstance(rows, int) or rows % count:
        raise InputError(
            f"micro_batches: expected a number of rows that {count} divides, as in dims={{{size!r}: {8 * count}}}, "
            f"found {rows!r}"
        )
    cut = [key for key, axis in firsts.items() if axis.dim_param == first.dim_param and (axis.dim_param or key == name)]
    apart = next((key for key, axis in asked.items() if axis is not None and key not in cut), None)
    if apart is not None:
        raise InputError(
            f"shard: expected None of {apart!r} along 'pipeline', as its first axis is not {size!r}, the rows of "
            f"the batch, found {asked[apart]}"
        )
    return {**(dims or {}), size: rows // count}, cut
