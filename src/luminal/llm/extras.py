"""Packages that only some users need."""

from __future__ import annotations

import importlib
from typing import Any

from luminal.core.errors import InputError


def require(module: str, extra: str, what: str) -> Any:
    """The module of that name. Raises InputError, which says how to install it, where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise InputError(f"{what} needs the package {package!r}: pip install 'luminal[{extra}]'") from error
