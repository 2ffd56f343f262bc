"""Compiling an encoder of text: from a checkpoint to a library that embeddings are computed by."""

from __future__ import annotations

from typing import Any

from luminal import api
from luminal.codegen import interface
from luminal.core.errors import InputError
from luminal.core.target import Target
from luminal.frontends.llm.encoder import Encoder
from luminal.llm.compiler import opened
from luminal.module import Module
from luminal.progress import Progress

_MOST = 1 << 24


def compile_encoder(
    source: Any,
    *,
    context: int | None = None,
    batch: int = 1,
    weights: str | None = None,
    target: str | Target = "host",
    precision: str | None = None,
    name: str | None = None,
    threads: int = 0,
    emulate: bool = False,
    search: str = "none",
    progress: Progress | None = None,
) -> Module:
    """Compile an encoder of text (BERT, RoBERTa, XLM-RoBERTa, DistilBERT) to a native library, and load it.

    ``source`` is a folder with ``config.json`` and safetensors, or a model of transformers in memory. The library takes
    ``input_ids`` and ``attention_mask``, and ``token_type_ids`` where the model has kinds of text, ``int64[batch,
    length]`` each, and gives ``last_hidden_state float32[batch, length, width]``: of up to ``batch`` texts, of up to
    ``context`` tokens, by default as many as the model has places for. The other arguments are those of
    ``luminal.compile``.

    Raises UnsupportedError for a model that is not supported, ModelError for one that cannot be read, InputError for
    sizes that are none; and as ``luminal.compile`` does.
    """
    encoder = Encoder(opened(source))
    context = encoder.made_for if context is None else context
    for what, size, most in (("context", context, encoder.made_for), ("batch", batch, _MOST)):
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= most:
            raise InputError(f"{what}: expected a number from 1 to {most}, found {size!r}")
    called = interface.library_name(encoder.kind.replace("-", "_")) if name is None else name
    module = api.compile(
        encoder.graph(called, batch, context), weights=weights, target=target, precision=precision, name=called,
        threads=threads, emulate=emulate, search=search, progress=progress,
    )  # fmt: skip
    assert isinstance(module, Module)
    return module
