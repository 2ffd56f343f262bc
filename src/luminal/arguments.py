"""Checks of arguments that several functions take, made before any work begins."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from luminal.core.errors import InputError

MAX_THREADS = 1023  # of a library's pool: runtime/include/luminal/pool.hpp


def threads(given: Any) -> int:
    """The number of threads asked for; 0 means one for each CPU. Raises InputError where it is no such number."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or not 0 <= given <= MAX_THREADS:
        raise InputError(f"threads: expected 0..{MAX_THREADS} (0: one for each CPU), found {given!r}")
    return int(given)


def check_budget(given: Any) -> None:
    """Raises InputError unless ``given`` is a number of seconds above 0, infinity included."""
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating) or not given > 0:
        raise InputError(f"budget: expected seconds, more than none, found {given!r}")


def check_tolerance(given: Any) -> None:
    """Raises InputError unless ``given`` is None or a finite number of at least 0."""
    if given is not None and not (isinstance(given, numbers.Real) and 0 <= float(given) < math.inf):
        raise InputError(f"tolerance: expected a finite number, 0 or more, found {given!r}")
