"""Checkpoints on disk, by their path."""

from __future__ import annotations

from pathlib import Path

from luminal.core.errors import ModelError
from luminal.frontends.llm import gguf, safetensors
from luminal.frontends.llm.checkpoint import Checkpoint


def opened(path: Path) -> Checkpoint:
    """The checkpoint at ``path``: a GGUF file, or a folder of safetensors with a ``config.json`` or of one GGUF file.
    Raises ModelError where there is none, or where it is damaged."""
    if path.is_file():
        if path.suffix == ".gguf":
            return gguf.Model(path)
        advice = "; take the folder that it is in" if path.suffix == ".safetensors" else ""
        raise ModelError(f"expected a .gguf file, or a folder of safetensors, found {path}{advice}")
    if not path.is_dir():
        raise ModelError(f"expected a .gguf file, or a folder of safetensors: there is no {path}")
    if (path / safetensors.CONFIG).exists():
        return safetensors.Folder(path)
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1 or (found and len(gguf.parts(found[0])) == len(found)):
        return gguf.Model(found[0])
    beside = f"{len(found)} .gguf files; give the path of one" if found else "neither that nor a .gguf file"
    raise ModelError(f"{path}: expected {safetensors.CONFIG} beside safetensors, found {beside}")
