"""What the examples of whole models share: progress while they compile, and errors in a sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from luminal.core.errors import LuminalError
from luminal.display import Display
from luminal.progress import Progress


class WrongFile(Exception):
    """A file that an example cannot use; the text says which, what was expected and what was found."""


@contextmanager
def progress() -> Iterator[Progress]:
    """Stages of a compilation, shown on standard error."""
    with Display(Console(stderr=True)) as display:
        yield display.report


def run(main: Callable[[list[str]], None]) -> None:
    """Runs an example as a program: what the user can mend is one line, and the exit code 2."""
    try:
        main(sys.argv[1:])
    except (WrongFile, LuminalError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
