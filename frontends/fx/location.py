"""Where in the user's files something comes from, as ``file:line``."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_OWN = f"{Path(__file__).parent}/"
_TORCH = Path(torch.__file__).parent
# What PyTorch runs beneath the user's line: itself, code without a file, and the algebra of its sizes.
_BENEATH = ("<", f"{_TORCH}/", "torch/", f"{_TORCH.parent}/sympy/")


def of_node(node: torch.fx.Node) -> str:
    """The innermost line outside PyTorch that led to ``node``, the file relative to where it is imported from; empty
    where none is known."""
    trace = node.meta.get("stack_trace") or ""
    for frame in reversed(list(_FRAME.finditer(trace))):
        if not frame["file"].startswith(_BENEATH):
            return f"{_relative(frame['file'])}:{frame['line']}"
    return ""


def module_of(node: torch.fx.Node) -> tuple[str, ...]:
    """The path of the innermost module that called ``node``: ``("layers", "0", "norm")``; empty where none is known."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return tuple(part for part in path.removeprefix("L['self']").split(".") if part)


def of_error(error: BaseException) -> str:
    """The same of an error that came up while the user's module was running."""
    for frame, line in _frames(error):
        file = frame.f_code.co_filename
        if not file.startswith((*_BENEATH, _OWN)):
            return f"{_relative(file)}:{line}"
    return ""


def operator(error: BaseException) -> str:
    """The operator that PyTorch was at, as ``aten.mm.default``; empty where it was at none."""
    operators = (frame.f_locals.get("self") for frame, _ in _frames(error))
    return next((str(found) for found in operators if isinstance(found, torch._ops.OpOverload)), "")


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames that ``error`` and what caused it came through, the innermost of each first; above this package are
    those of whoever compiles the model."""
    cause: BaseException | None = error
    while cause is not None:
        frames = list(traceback.walk_tb(cause.__traceback__))
        yield from reversed(frames)
        cause = cause.__cause__ or cause.__context__


def _relative(file: str) -> str:
    roots = [entry for entry in (str(Path.cwd()), *sys.path) if entry and file.startswith(entry + "/")]
    return file.removeprefix(max(roots, key=len) + "/") if roots else Path(file).name
