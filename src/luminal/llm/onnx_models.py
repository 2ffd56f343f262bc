"""Reading a language model that is an ONNX model with a cache among its inputs and outputs."""

from __future__ import annotations

import json
from pathlib import Path

from luminal.codegen import interface
from luminal.core.errors import InputError
from luminal.core.schedule.numeric import quantise
from luminal.frontends.llm.cache import Room
from luminal.llm.model import BELONGING, Shape, Uncompiled
from luminal.llm.onnx_decoder import Model

_GENERATION = "generation_config.json"


def read(
    path: Path,
    weights: str | None,
    context: int | None,
    most: int,
    slots: int,
    chunk: int,
    speculate: int,
    name: str | None,
    parts: int,
) -> Uncompiled:
    """The language model in the ONNX file ``path``, with what belongs to it in its folder. ``context`` is by default
    what the model was made for, or ``most`` if that is less or it does not say. ``parts`` are those of draws.
    Raises as ``luminal.llm.compile`` does."""
    if weights is not None and weights not in quantise.ALL:
        raise InputError(f"weights of an ONNX model: expected {', '.join(quantise.ALL)}, found {weights!r}")
    model = Model(path)
    context = min(model.made_for or most, most) if context is None else context
    chunk = min(context, chunk)
    room = Room(context, slots, chunk, spare=chunk, speculate=min(speculate, chunk - 1))
    called = interface.library_name(path.stem) if name is None else name
    vocabulary, graphs = model.entries(called, room, parts)
    kept = {name: (model.folder / name).read_bytes() for name in sorted(BELONGING) if (model.folder / name).is_file()}
    if model.ends is not None and _GENERATION not in kept:
        kept[_GENERATION] = json.dumps({"eos_token_id": model.ends}).encode()
    return Uncompiled(called, graphs, weights, Shape(vocabulary, room, (None,), one_by_one=True), kept)
