"""Arguments that several functions take, looked at before any work begins."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from luminal.core.errors import InputError

MAX_THREADS = 1023  # of a library's pool: runtime/include/luminal/pool.hpp


def threads(given: Any) -> int:
    """The threads that were asked for; 0 is one for each CPU. Raises InputError for what is no number of them."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or not 0 <= given <= MAX_THREADS:
        raise InputError(f"threads: expected 0..{MAX_THREADS} (0: one for each CPU), found {given!r}")
    return int(given)


def check_budget(given: Any) -> None:
    """Raises InputError for what is no number of seconds above 0; it may be infinite."""
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating) or not given > 0:
        raise InputError(f"budget: expected seconds, more than none, found {given!r}")


def check_tolerance(given: Any) -> None:
    """Raises InputError for what is no finite number of 0 or more, nor None."""
    if given is not None and not (isinstance(given, numbers.Real) and 0 <= float(given) < math.inf):
        raise InputError(f"tolerance: expected a finite number, 0 or more, found {given!r}")
