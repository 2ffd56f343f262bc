"""Runs of libraries in another process, which they may end: a wrong kernel may write beyond its arrays."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.core import config
from luminal.core.errors import ModelError
from luminal.core.types import from_numpy
from luminal.module import Module
from luminal.process import Process

_process = Process("luminal.tried")
_lock = threading.Lock()  # one question at a time: answers do not say whose they are
atexit.register(_process.stop)


def fault(module: Module, inputs: Mapping[str, Any]) -> str:
    """How a run on ``inputs`` ends its process, in words; empty where it does not, as for ``run``."""
    return run(module, inputs)[0]


def run(module: Module, inputs: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """How a run on ``inputs`` ends its process, in words, or its outputs by name: where it survived once, it need not
    survive another time. Nothing and None where the run raised, and for libraries that run on devices, on an
    emulation, which reports such faults itself, or on a mesh: these are run in this process.

    Any number of threads may ask; they take turns. Raises ModelError where the run is not done within
    ``LUMINAL_DIFF_LIMIT``, which may be the machine's fault as well as the library's."""
    if module.manifest.get("device", "cpu") != "cpu" or module.emulated or "mesh" in module.manifest:
        return "", None
    given = {name: inputs[name] for name in module.input_names if name in inputs}
    with _lock:
        return _tried(module, given, config.DIFF_LIMIT.value)


def _tried(module: Module, inputs: Mapping[str, Any], seconds: float) -> tuple[str, dict[str, Any] | None]:
    try:
        connection = _process.connection
        connection.send(None)
        if not connection.poll(seconds):
            raise EOFError
        connection.recv()
    except (EOFError, OSError):  # the other process is none: that says nothing of the library
        _process.stop()
        return "", None
    try:
        connection.send((str(module.folder), module.entry.name, inputs))
        if connection.poll(seconds):
            found = connection.recv()
            return "", None if found is None else dict(zip(module.output_names, found, strict=True))
    except (EOFError, OSError):
        return f"the library does not survive a run: {_process.ended()}", None
    _process.stop()
    raise ModelError(
        f"{module.interface.name}: a run was not done after {seconds:g} seconds, and was stopped; on a machine that is "
        f"slow or busy set {config.DIFF_LIMIT.variable} to more"
    )


def opposite(values: NDArray[Any]) -> NDArray[Any]:
    """An array of the same type and shape of which no element agrees, in the place of what a run did not write."""
    dtype = from_numpy(values.dtype)
    if dtype.kind in "fc":
        return np.where(np.isnan(values), 0, np.nan).astype(values.dtype)
    if dtype.is_text:
        return np.where(values == "", "?", "").astype(values.dtype)
    return np.where(values == 0, 1, 0).astype(values.dtype)
