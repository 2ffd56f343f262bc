"""Where commands write: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import os
import sys

from rich.console import Console

# In a file or a pipe there is no edge of the screen to keep to.
out = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160)
err = Console(stderr=True)


def say(line: str) -> None:
    out.print(line, highlight=False, markup=False, soft_wrap=True)
