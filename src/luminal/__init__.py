"""luminal: an ahead-of-time compiler for deep-learning models.

The names below are imported when they are first used, so that ``import luminal.core`` alone stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from luminal.version import VERSION

if TYPE_CHECKING:
    from luminal.api import check as check
    from luminal.api import compile as compile
    from luminal.api import read as read
    from luminal.api import tune as tune
    from luminal.comparison import diff as diff
    from luminal.core.errors import LuminalError as LuminalError
    from luminal.gradients import grad as grad
    from luminal.module import Module as Module
    from luminal.module import load as load
    from luminal.session import InferenceSession as InferenceSession
    from luminal.session import SessionOptions as SessionOptions
    from luminal.specialised import Specialised as Specialised
    from luminal.training import Training as Training
    from luminal.training import compile_training as compile_training

__version__ = VERSION

_HOMES = {
    "InferenceSession": "luminal.session",
    "LuminalError": "luminal.core.errors",
    "Module": "luminal.module",
    "SessionOptions": "luminal.session",
    "Specialised": "luminal.specialised",
    "Training": "luminal.training",
    "check": "luminal.api",
    "compile": "luminal.api",
    "compile_training": "luminal.training",
    "diff": "luminal.comparison",
    "grad": "luminal.gradients",
    "load": "luminal.module",
    "plan": "luminal.api",
    "read": "luminal.api",
    "tune": "luminal.api",
}

__all__ = [
    "InferenceSession",
    "LuminalError",
    "Module",
    "SessionOptions",
    "Specialised",
    "Training",
    "check",
    "compile",
    "compile_training",
    "diff",
    "grad",
    "load",
    "plan",
    "read",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'luminal' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
