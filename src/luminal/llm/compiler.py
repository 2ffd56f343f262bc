"""Compiling a language model, and foretelling what it takes on several devices."""

from __future__ import annotations

from typing import Any

from luminal import api, meshes
from luminal.core.target import Target
from luminal.llm import reading
from luminal.llm.model import LanguageModel
from luminal.module import Module
from luminal.planning import Outlook
from luminal.progress import Progress

_TOLD = ("sample", "draw")  # entries that are told seeds, by each rank of its own: all return what the first drew
_FORETOLD = ("prefill", "decode")


def compile(
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
    emulate: bool = False,
    search: str = "none",
    mesh: meshes.Mesh | None = None,
    shard: meshes.Shard = "auto",
    link: str | None = None,
    progress: Progress | None = None,
) -> LanguageModel:
    """Compile a language model to a native library, and load it.

    ``source`` is a model of transformers in memory, which is a module with a ``config``; a folder with ``config.json``
    and safetensors; a GGUF file; or an ONNX model with a cache among its inputs and outputs, or the folder that optimum
    or onnxruntime-genai has written it to. ``weights`` rounds the matrices of products: to blocks as GGUF has them,
    ``q8_0`` or ``q4_0``, or as ``luminal.compile`` does, ``int8`` or ``int4``; those in blocks stay as they are.
    ``context`` is the most tokens of a sequence: 4096, unless another number is given, or what the model was made for
    if that is less. There is room for ``slots`` sequences at a time; a prompt is read in parts of up to ``chunk``
    tokens. Up to ``speculate`` drafts of what comes next can be verified in one step. There is room for ``adapters``
    (LoRA) of up to ``rank``, which can be loaded and changed later. ``cache`` is the type of keys and values:
    ``float32``, or ``int8`` with a scale for each token and head. ``activations`` rounds what quantised weights
    multiply, to ``bf16`` or ``q8``; that and the other arguments are as for ``luminal.compile``. On the ranks of a
    ``mesh`` each has its part of the matrices, and of the cache those heads that it computes; all of them make the same
    calls, and take the token that the first has drawn.

    Raises UnsupportedError for a model that is not supported, ModelError for one that cannot be read, InputError for
    sizes that are none; and as ``luminal.compile`` does.
    """
    mesh, shard = meshes.read(mesh, shard, source)
    given: dict[str, Any] = {
        "activations": activations, "target": target, "precision": precision, "threads": threads, "search": search,
    }  # fmt: skip
    read = reading.read(
        source, weights=weights, context=context, slots=slots, chunk=chunk, speculate=speculate, adapters=adapters,
        rank=rank, cache=cache, name=name, **given,
    )  # fmt: skip
    graphs = dict(read.graphs)
    if mesh is not None:
        graphs |= {entry: meshes.from_first(graphs[entry], mesh) for entry in _TOLD}
    module = api.compile(
        graphs, weights=read.weights, name=read.name, emulate=emulate, mesh=mesh, shard=shard, link=link,
        progress=progress, **given,
    )  # fmt: skip
    assert isinstance(module, Module)
    return LanguageModel(module, read.shape, read.files)


def plan(
    source: Any,
    *,
    mesh: meshes.Mesh,
    shard: meshes.Shard = "auto",
    link: str | None = None,
    micro_batches: int = 1,
    node: str | None = None,
    measured: float | None = None,
    weights: str | None = None,
    context: int | None = None,
    slots: int = 1,
    chunk: int | None = None,
    cache: str = "float32",
    activations: str | None = None,
    target: str | Target = "host",
    precision: str | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Outlook:
    """Foretell what reading a prompt (``prefill``) and a token of each sequence (``decode``) take where the language
    model ``source`` is divided among the ranks of ``mesh``: see ``luminal.plan``. Nothing is run.

    Sizes are typical ones, as for ``luminal.plan``: a prompt has the geometric mean of 1 and ``chunk`` tokens, 22
    of 512, and as many blocks of the cache count as are typical of its bounds. ``measured`` are the seconds that such a
    prompt takes on one rank. Arguments and errors are as for ``luminal.llm.compile`` and ``luminal.plan``.
    """
    given: dict[str, Any] = {"activations": activations, "target": target, "precision": precision, "threads": threads}
    read = reading.read(source, weights=weights, context=context, slots=slots, chunk=chunk, cache=cache, **given)
    return api.plan(
        {entry: read.graphs[entry] for entry in _FORETOLD}, mesh=mesh, shard=shard, link=link,
        micro_batches=micro_batches, node=node, measured=measured, weights=read.weights, progress=progress,
        **given,
    )  # fmt: skip
