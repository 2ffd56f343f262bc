"""The process in which libraries are tried, with matrix units that the machine has not:
``python -m tests.tried_with_tiles``."""

from __future__ import annotations

from luminal.process import serve
from luminal.tried import attempt
from tests import tiles

if __name__ == "__main__":
    tiles.emulate()
    serve(attempt)
