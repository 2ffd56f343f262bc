"""Models by their paths: exported folders are opened, checkpoints are compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from luminal import artifact, meshes
from luminal.core.errors import InputError
from luminal.frontends.llm import encoder as encoders
from luminal.frontends.llm import safetensors
from luminal.frontends.llm.adapters import rank
from luminal.frontends.llm.files import json_file
from luminal.llm import compiler, model
from luminal.llm.encoders import compile_encoder
from luminal.llm.model import LanguageModel
from luminal.module import Module
from luminal.progress import Progress
from luminal.runtime import loader


def is_plain(path: Path) -> bool:
    """Whether it is an exported folder of a model that is no language model."""
    return (path / loader.MANIFEST).is_file() and not (path / model.DESCRIPTION).is_file()


def is_checkpoint(path: Path) -> bool:
    """Whether what lies there is a folder, or a GGUF file: no ONNX model and no program of PyTorch by themselves."""
    return path.is_dir() or path.suffix == ".gguf"


def is_encoder(path: Path) -> bool:
    """Whether it is the checkpoint of an encoder of text. Raises ModelError for a config that cannot be read."""
    config = path / safetensors.CONFIG
    compiled = (path / loader.MANIFEST).is_file()
    return config.is_file() and not compiled and encoders.is_encoder(json_file(config))


def name_of(path: Path) -> str:
    """What clients call a model by default."""
    resolved = path.resolve()
    return resolved.name if resolved.is_dir() else resolved.stem


def is_compiled(path: Path) -> bool:
    """Whether a path is the folder of a language model that was exported."""
    return (path / model.DESCRIPTION).is_file()


def ranks(path: Path, mesh: Mapping[str, int] | None) -> int:
    """On how many processes the language model at ``path`` runs, which is compiled for ``mesh`` if it is a checkpoint.
    Raises InputError for a mesh that is none, ArtifactError for a folder that is damaged."""
    if mesh is not None:
        return math.prod(meshes.parse(mesh).values())
    if not (path / loader.MANIFEST).is_file():
        return 1
    with artifact.opening(path):
        return math.prod(loader.read_manifest(path / loader.MANIFEST).get("mesh", {}).values())


def language_model(
    path: Path, *, context: int | None = None, weights: str | None = None, slots: int | None = None, threads: int = 0,
    target: str = "host", cache: str | None = None, activations: str | None = None, adapters: Sequence[Path] = (),
    speculate: int | None = None, mesh: Mapping[str, int] | None = None, progress: Progress | None = None,
) -> LanguageModel:  # fmt: skip
    """The language model at ``path``: an exported folder, or a checkpoint, for which alone ``context``, ``weights``,
    ``slots``, ``target``, ``cache``, ``activations``, ``speculate`` and ``mesh`` are; it is compiled with room for
    ``adapters``.
    Raises InputError where they are given for another, or there is nothing."""
    if not path.exists():
        raise InputError(f"no model at {str(path)!r}")
    if is_plain(path):
        raise InputError(f"{str(path)!r} holds a model that is no language model: it can be run, or served")
    if not is_compiled(path):
        options: dict[str, Any] = {
            "context": context, "weights": weights, "slots": slots or 1, "target": target,
            "cache": cache or "float32", "activations": activations, "speculate": speculate or 0, "mesh": mesh,
        }  # fmt: skip
        if adapters:
            options |= {"adapters": len(adapters), "rank": max(map(rank, adapters))}
        return compiler.compile(path, **options, threads=threads, progress=progress)
    given = {
        "context": context, "weights": weights, "slots": slots, "target": None if target == "host" else target,
        "cache": cache, "activations": activations, "speculate": speculate, "mesh": mesh,
    }  # fmt: skip
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise InputError(f"--{wrong[0]}: {str(path)!r} is compiled already: give the checkpoint that it was made of")
    return model.load(path, threads=threads)


def encoder(
    path: Path, *, context: int | None = None, weights: str | None = None, threads: int = 0, target: str = "host",
    progress: Progress | None = None,
) -> Module:  # fmt: skip
    """The encoder whose checkpoint is at ``path``, compiled for one text at a time."""
    return compile_encoder(path, context=context, weights=weights, threads=threads, target=target, progress=progress)
