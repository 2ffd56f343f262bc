"""Compiling an encoder of text: from a checkpoint to a library that embeddings are computed by."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from luminal import api, arguments
from luminal.codegen import interface
from luminal.core.errors import InputError
from luminal.core.target import Target
from luminal.frontends.llm.encoder import Encoder
from luminal.llm.reading import opened
from luminal.module import Module
from luminal.progress import Progress

_MOST = (1 << 24) - 1
_CHECKED_EARLY = ("target", "precision", "weights", "threads", "search")


class Options(TypedDict, total=False):
    """Options of ``luminal.compile``."""

    weights: str | None
    target: str | Target
    precision: str | None
    threads: int
    emulate: bool
    search: str
    progress: Progress | None


def compile_encoder(
    source: Any, *, context: int | None = None, batch: int = 1, name: str | None = None, **options: Unpack[Options]
) -> Module:
    """Compile an encoder of text (BERT, RoBERTa, XLM-RoBERTa, DistilBERT) to a native library, and load it.

    ``source`` is a folder with ``config.json`` and safetensors, or a model of transformers in memory. The library takes
    ``input_ids`` and ``attention_mask``, and ``token_type_ids`` where the model has kinds of text, ``int64[batch,
    length]`` each, and gives ``last_hidden_state float32[batch, length, width]``: of up to ``batch`` texts, of up to
    ``context`` tokens, by default as many as the model has places for. ``name`` is that of the library. ``weights``,
    ``target``, ``precision``, ``threads``, ``emulate``, ``search`` and ``progress`` are as for ``luminal.compile``.

    Raises UnsupportedError for a model that is not supported, ModelError for one that cannot be read, InputError for
    sizes that are none; and as ``luminal.compile`` does.
    """
    checked: dict[str, Any] = {key: value for key, value in options.items() if key in _CHECKED_EARLY}
    api.check_name(name)
    api.options(**checked)
    if not arguments.is_whole(batch, 1, _MOST):
        raise InputError(f"batch: expected a number from 1 to {_MOST}, found {batch!r}")
    encoder = Encoder(opened(source))
    context = encoder.made_for if context is None else context
    if not arguments.is_whole(context, 1, encoder.made_for):
        raise InputError(f"context: expected a number from 1 to {encoder.made_for}, found {context!r}")
    called = interface.library_name(encoder.kind.replace("-", "_")) if name is None else name
    module = api.compile(encoder.graph(called, batch, context), name=called, **options)
    assert isinstance(module, Module)
    return module
