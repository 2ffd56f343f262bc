"""Arguments that several functions take, looked at before any work begins."""

from __future__ import annotations

import numbers
from typing import Any

from luminal.core.errors import InputError

MAX_THREADS = 1023  # of a library's pool: runtime/include/luminal/pool.hpp


def threads(given: Any) -> int:
    """The threads that were asked for; 0 is one for each CPU. Raises InputError for what is no number of them."""
    if isinstance(given, bool) or not isinstance(given, numbers.Integral) or not 0 <= given <= MAX_THREADS:
        raise InputError(f"threads: expected 0..{MAX_THREADS} (0: one for each CPU), found {given!r}")
    return int(given)
