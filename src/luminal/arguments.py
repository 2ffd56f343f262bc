"""Checks of arguments that several functions take, made before any work begins."""

from __future__ import annotations

import math
import numbers
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from luminal import mixed
from luminal.core import target as targets
from luminal.core.errors import InputError
from luminal.core.schedule.program import recompute
from luminal.core.target import Target
from luminal.runtime import loader

MAX_THREADS = 1023  # of a library's pool: runtime/include/luminal/pool.hpp


def target(name: str | Target, precision: mixed.Choice, threads: int, algebra: str | None) -> Target:
    """The target of that name, with the lowest ``precision`` that operators are to have. ``algebra`` is ``bounded``,
    ``exact``, or the manifest of a library, or its folder: then the forms that were found for that library are taken,
    without a search. Raises InputError and TargetError as ``luminal.core.target.parse``, and InputError where there is
    no such manifest."""
    lowest = mixed.lowest(precision)
    if algebra is None or algebra in targets.ALGEBRA:
        return targets.parse(name, lowest, threads, algebra)
    path = Path(algebra) / loader.MANIFEST if Path(algebra).is_dir() else Path(algebra)
    try:
        noted = loader.read_manifest(path)["approximations"]
        forms = {made["region"]: made["form"] for made in noted if "form" in made}
    except (OSError, KeyError, TypeError) as error:
        raise InputError(
            f"algebra: expected {', '.join(targets.ALGEBRA)}, or the {loader.MANIFEST} of a library, "
            f"found {algebra!r}: {error}"
        ) from error
    return replace(targets.parse(name, lowest, threads, targets.BOUNDED), forms=forms)


def threads(given: Any) -> int:
    """The number of threads asked for; 0 means one for each CPU. Raises InputError where it is no such number."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or not 0 <= given <= MAX_THREADS:
        raise InputError(f"threads: expected 0..{MAX_THREADS} (0: one for each CPU), found {given!r}")
    return int(given)


def is_whole(given: Any, least: int, most: int) -> bool:
    """Whether ``given`` is an int from ``least`` to ``most``."""
    return isinstance(given, int) and not isinstance(given, bool) and least <= given <= most


def check_memory(given: Any) -> None:
    """Raises InputError unless ``given`` is None, ``low``, or a number of bytes above 0."""
    number = isinstance(given, int | np.integer) and not isinstance(given, bool) and given > 0
    if not (number or given is None or given == recompute.LOW):
        raise InputError(f"memory: expected {recompute.LOW!r} or a number of bytes above 0, found {given!r}")


def check_budget(given: Any) -> None:
    """Raises InputError unless ``given`` is a number of seconds above 0, infinity included."""
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating) or not given > 0:
        raise InputError(f"budget: expected seconds, more than none, found {given!r}")


def check_tolerance(given: Any) -> None:
    """Raises InputError unless ``given`` is None or a finite number of at least 0."""
    if given is not None and not (isinstance(given, numbers.Real) and 0 <= float(given) < math.inf):
        raise InputError(f"tolerance: expected a finite number, 0 or more, found {given!r}")
