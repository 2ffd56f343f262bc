"""Where an operator came from in the user's own code, as exporters write it into a node's metadata."""

from __future__ import annotations

import re
from pathlib import PurePath

import onnx

_SCOPES = "pkg.torch.onnx.name_scopes"
_STACK_TRACE = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "([^"<][^"]*)", line (\d+)')  # not "<eval_with_key>": generated code has no file
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def module(node: onnx.NodeProto) -> tuple[str, ...]:
    """The path of the modules that a node is in: as PyTorch's exporter says, or by its name, ``/layers.0/norm/Add``."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "")
    names = re.findall(r"'([^']*)'", scopes)[:-1]  # the last is the node's own
    path = names[-1].split(".") if names else node.name.split("/")[:-1]
    return tuple(part for part in path if part)


def location(node: onnx.NodeProto) -> str:
    """``file:line`` of one frame of the stack trace that the exporter wrote, or ``""`` where there is none: the
    innermost of the user's own files, else of a library of models, else of the framework. Paths are shortened to folder
    and file."""
    trace = next((entry.value for entry in node.metadata_props if entry.key == _STACK_TRACE), "")
    frames = [(PurePath(file), line) for file, line in _FRAME.findall(trace)]
    if not frames:
        return ""
    own = [frame for frame in frames if not _INSTALLED & set(frame[0].parts)]
    libraries = [frame for frame in frames if "torch" not in frame[0].parts]
    path, line = (own or libraries or frames)[-1]
    return f"{'/'.join(path.parts[-2:])}:{line}"
