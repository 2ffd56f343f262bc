"""Language models that are ONNX files, by their path."""

from __future__ import annotations

from pathlib import Path

from luminal.core.errors import ModelError
from luminal.frontends.llm.files import json_file
from luminal.frontends.llm.settings import Settings

GENAI, CONFIG = "genai_config.json", "config.json"
_FILES = ("model.onnx", "decoder_model_merged.onnx", "onnx/model.onnx", "onnx/decoder_model_merged.onnx")


def located(path: Path) -> Path | None:
    """The ONNX model that a path means: that file, or the decoder in a folder without safetensors; None if none."""
    if path.is_file():
        return path if path.suffix == ".onnx" else None
    if not path.is_dir() or any(path.glob("*.safetensors")) or any(path.glob("*.gguf")):
        return None
    if (path / GENAI).is_file():
        described = Settings(json_file(path / GENAI), 0).mapping("model")
        name = Settings(described, 0).mapping("decoder").get("filename")
        if not isinstance(name, str) or not (path / name).is_file():
            raise ModelError(f"{path / GENAI}: expected the file name of a decoder in the same folder, found {name!r}")
        return path / name
    known = [path / name for name in _FILES if (path / name).is_file()]
    others = sorted(path.glob("*.onnx"))
    return known[0] if known else others[0] if len(others) == 1 else None
