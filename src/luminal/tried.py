"""The process in which libraries are tried (``comparison.survival``): ``python -m luminal.tried``."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing.connection import Connection

from luminal.process import serve
from luminal.runtime import loader


def attempt(connection: Connection) -> None:
    """Runs a library once, and answers with its results if this process is still there: None where the run raised,
    which is told when it is repeated where its results are wanted."""
    request = connection.recv()
    if request is None:
        connection.send("ready")
        return
    folder, entry, inputs = request
    found = None
    with suppress(Exception):
        found = loader.load(folder, other_weights=True).run(inputs, entry)
    connection.send(found)


if __name__ == "__main__":
    serve(attempt)
