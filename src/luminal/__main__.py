"""The command line: ``luminal``, or ``python -m luminal``."""

from __future__ import annotations

import signal


def main() -> None:
    """The console script."""
    # Imports take a moment, in which an interrupt, unless it is ignored, ends the process without a traceback.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from luminal.cli import app

    signal.signal(signal.SIGINT, handler)
    app()


if __name__ == "__main__":
    main()
