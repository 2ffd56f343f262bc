"""Reading a language model: a checkpoint becomes the graphs that are compiled."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from luminal import api, arguments
from luminal.codegen import interface
from luminal.core.errors import InputError, ModelError, UnsupportedError
from luminal.core.schedule.numeric import activations as activations_
from luminal.core.schedule.numeric import quantise
from luminal.core.target import Target
from luminal.frontends.llm import blocks, checkpoint, families, gguf, graph, onnx_files, safetensors, stored
from luminal.frontends.llm.adapters import MOST_RANK
from luminal.frontends.llm.cache import TYPES, Room
from luminal.frontends.llm.checkpoint import Checkpoint
from luminal.frontends.llm.sampling import AT_ONCE, HALVES
from luminal.llm import gguf_vocabulary
from luminal.llm.model import BELONGING, Shape, Uncompiled
from luminal.runtime import loader

_CONTEXT, _CHUNK = 4096, 512  # tokens, unless the user asks for another number
_MOST, _MOST_ADAPTERS = (1 << 24) - 1, 4096


def read(
    source: Any,
    *,
    weights: str | None = None,
    context: int | None = None,
    slots: int = 1,
    chunk: int | None = None,
    speculate: int = 0,
    adapters: int = 0,
    rank: int = 16,
    cache: str = "float32",
    activations: str | None = None,
    target: str | Target = "host",
    precision: str | None = None,
    name: str | None = None,
    threads: int = 0,
    search: str = "none",
) -> Uncompiled:
    """The graphs of the language model ``source``; arguments and errors as for ``luminal.llm.compile``."""
    activations_.parse(activations)
    if cache not in TYPES:
        raise InputError(f"cache: expected {' or '.join(TYPES)}, found {cache!r}")
    for what, size in (("context", context), ("slots", slots), ("chunk", chunk)):
        if size is not None and not arguments.is_whole(size, 1, _MOST):
            raise InputError(f"{what}: expected a number of 1 or more, found {size!r}")
    if not arguments.is_whole(speculate, 0, (chunk or _CHUNK) - 1):
        raise InputError(
            f"speculate: expected a number of drafts from 0 to {(chunk or _CHUNK) - 1}, below the tokens that are "
            f"computed at once (chunk), found {speculate!r}"
        )
    kind = blocks.ENCODED.get(weights or "")
    if weights is not None and kind is None and weights not in quantise.ALL:
        raise InputError(f"unknown weights {weights!r}: expected {', '.join([*blocks.ENCODED, *quantise.ALL])}")
    api.check_name(name)
    asked, _ = api.options(target, precision, weights=None if kind else weights, threads=threads, search=search)
    parts = HALVES if asked.grid is None else AT_ONCE
    path = onnx_files.located(Path(source)) if isinstance(source, str | os.PathLike) else None
    if path is not None:
        if adapters:
            raise InputError(
                "adapters: an ONNX model does not say where they belong: compile what it was exported from"
            )
        if cache != "float32":
            raise InputError(
                f"cache: an ONNX model says itself of what type its cache is: expected none, found {cache!r}"
            )
        from luminal.llm import onnx_models  # with it comes the package onnx, which others do without

        return onnx_models.read(path, weights, context, _CONTEXT, slots, chunk or _CHUNK, speculate, name, parts)
    found = opened(source)
    made_for = families.made_for(found)
    context = min(made_for, _CONTEXT) if context is None else context
    config, tensors = families.read(found, context, kind)
    if config.learned_positions and context > made_for:
        raise InputError(f"context: expected at most {made_for}, for which the model has positions, found {context}")
    if config.recurrent:
        for what, given, none, why in (
            ("adapters", adapters, 0, "adapters are for products of attention and of networks, of which it has none"),
            ("speculate", speculate, 0, "drafts that are wrong are taken back, which a recurrence cannot"),
            ("cache", cache, "float32", "it has no keys and values"),
        ):
            if given != none:
                raise UnsupportedError(f"{what}: expected {none} for this model, found {given!r}: {why}")
    for what, size, most in (("adapters", adapters, _MOST_ADAPTERS), ("rank", rank, MOST_RANK)):
        least = 0 if what == "adapters" else 1
        if not arguments.is_whole(size, least, most):
            raise InputError(f"{what}: expected a number from {least} to {most}, found {size!r}")
    chunk = min(context, _CHUNK if chunk is None else chunk)
    room = Room(context, slots, chunk, adapters, rank if adapters else 0, cache, speculate=min(speculate, chunk - 1))
    called = interface.library_name(families.kind(found)) if name is None else name
    graphs = {
        entry: replace(made, approximations=tensors.approximations(made) + made.approximations)
        for entry, made in graph.graphs(called, config, tensors, room, parts).items()
    }
    return Uncompiled(called, graphs, None if kind else weights, Shape.of(config, room), files(found))


def opened(source: Any) -> Checkpoint:
    """The checkpoint that ``source`` is. Raises ModelError where it is none."""
    if isinstance(source, str | os.PathLike):
        if (Path(source) / loader.MANIFEST).is_file():
            raise ModelError(
                f"{source} is compiled already: luminal.llm.load opens language models, luminal.load others"
            )
        return stored.opened(Path(source))
    if hasattr(source, "config") and hasattr(source, "state_dict"):
        return checkpoint.Module(source)
    raise ModelError(
        "expected a model of transformers, a folder with config.json and safetensors, or a GGUF file, found "
        f"{type(source).__name__}"
    )


def files(found: Checkpoint) -> Mapping[str, bytes]:
    """What an exported model keeps of its checkpoint besides its tensors."""
    kept = {"config.json": json.dumps(found.config, indent=1, default=str).encode()}
    if isinstance(found, safetensors.Folder):
        present = (found.path / name for name in sorted(BELONGING))
        kept |= {path.name: path.read_bytes() for path in present if path.is_file()}
    if isinstance(found, gguf.Model):
        try:
            kept |= gguf_vocabulary.read(found.metadata).files()
        except ModelError as error:  # it generates from tokens all the same
            warnings.warn(f"the model has no tokenizer: {error}", stacklevel=3)
    return kept
