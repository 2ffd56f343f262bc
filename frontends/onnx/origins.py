"""Where an operator came from in the user's own code, as exporters write it into a node's metadata."""

from __future__ import annotations

import re
from pathlib import PurePath

import onnx

_STACK_TRACE = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# Frames in these folders belong to a library, not to the user.
_LIBRARIES = frozenset({"site-packages", "dist-packages"})


def location(node: onnx.NodeProto) -> str:
    """``file:line`` of the innermost frame of the stack trace that the exporter wrote, preferring the user's own files
    to those of libraries; ``""`` where there is none. Paths are shortened to folder and file."""
    trace = next((entry.value for entry in node.metadata_props if entry.key == _STACK_TRACE), "")
    frames = [(PurePath(file), line) for file, line in _FRAME.findall(trace)]
    own = [frame for frame in frames if not _LIBRARIES & set(frame[0].parts)]
    if not frames:
        return ""
    path, line = (own or frames)[-1]
    return f"{'/'.join(path.parts[-2:])}:{line}"
