"""PyTorch's exporter run in silence: what it prints comes out if it succeeds, and goes with its error if it fails."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from luminal.core.errors import LuminalError, ModelError
from luminal.frontends.fx import location

_ALONE = threading.RLock()  # neither the exporter nor the replaced standard error works with two threads at once


@contextmanager
def exporting(title: str) -> Iterator[None]:
    """Around calls of the exporter on the module ``title``.

    Raises ModelError, which says where, what was expected and found, and what to do. Its ``__cause__`` is the
    exporter's own error; what the exporter had printed is a note of that. An error of luminal's own stays what it is.
    """
    with _ALONE, _silence() as transcript:
        try:
            yield
        except Exception as error:
            if transcript.text:
                error.add_note(f"PyTorch's exporter printed:\n{transcript.text}")
                transcript.text = ""
            if isinstance(error, LuminalError):
                raise
            raise ModelError(_message(title, error)) from error


def _message(title: str, error: Exception) -> str:
    place, operator = location.of_error(error), location.operator(error)
    where = f"{f' at {place}' if place else ''}{f', in {operator}' if operator else ''}"
    found = str(error).partition("\n\n")[0].strip()  # after it come hints to those who debug the exporter
    found = re.sub(r'\s*For more information, run with TORCH_LOGS="[^"]*"\.?', "", found) or type(error).__name__
    expected, advice = _advice(error, found)
    return f"torch.export cannot export {title}{where}: expected {expected}, found: {found}\n{advice}"


def _advice(error: Exception, found: str) -> tuple[str, str]:
    """What the exporter expected, and what the user can do."""
    if isinstance(error, GuardOnDataDependentSymNode):
        return "branches and sizes that do not depend on the values of tensors", (
            "Choose between values with torch.where or torch.cond, bound a size with torch._check, or decide outside "
            "the model."
        )
    if found.startswith(("Constraints violated", "Specializations unexpectedly required")):
        return "axes that may vary as dims declares", (
            f"Declare the sizes that the model allows{_suggested(found)}, or take what fixes them out of the model: a "
            "size made a number (int(x.shape[0]), a list of as many tensors), or a branch on it."
        )
    if "is not functional" in found or "input mutation" in found:
        return "branches and bodies of loops that write into nothing that they are given", (
            "Let them return the new value, and write it afterwards: x.copy_(torch.cond(...))."
        )
    if "num_mutated_inp_runtime_indices" in found or "set_ on a graph input" in found:
        return "inputs whose values may change, but not their sizes, strides and storage", (
            "Make a view of the input instead of changing the input itself: x.t(), not x.t_()."
        )
    if "Cache" in str(error):
        return "inputs and outputs made of tensors", (
            "A model that returns its key-value cache is exported without it after model.config.use_cache = False."
        )
    return "a module that runs on the example inputs", (
        "Call the module itself on these inputs. If that fails too, mend the line or the inputs; if not, write the "
        "line in operations that PyTorch can export. The error that caused this one has all that PyTorch says of it."
    )


_SUGGESTED = re.compile(r"^ +(\w+) = (?:Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)|(\d+))$", re.MULTILINE)


def _suggested(found: str) -> str:
    """What the exporter suggests to declare, as ``dims`` takes it."""
    bounds = [
        f"{name!r}: {size}" if size else f"{name!r}: ({low or 'LOW'}, {high or 'HIGH'})"
        for name, low, high, size in _SUGGESTED.findall(found)
    ]
    return f", dims={{{', '.join(bounds)}}}" if bounds else ""


class _Transcript:
    """A stream that collects in ``text`` what its creating thread writes, and passes on the output of other threads."""

    def __init__(self, stream: TextIO) -> None:
        self.text = ""
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._stream.write(text)
        self.text += text
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _silence() -> Iterator[_Transcript]:
    """Standard error and the handlers of PyTorch's log give to the transcript, whose text is shown at the end."""
    stream = sys.stderr
    transcript = _Transcript(stream)
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]
    found = {handler for name in names for handler in logging.getLogger(name).handlers}
    handlers = {handler: handler.stream for handler in found if type(handler) is logging.StreamHandler}
    try:
        sys.stderr = transcript
        for handler in handlers:
            handler.setStream(transcript)
        yield transcript
    finally:
        for handler, own in handlers.items():
            handler.setStream(own)
        sys.stderr = stream
        if transcript.text:
            stream.write(transcript.text)
