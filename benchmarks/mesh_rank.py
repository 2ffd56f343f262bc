"""One rank of ``benchmarks.mesh``: opens a library, runs it, and writes the seconds of each run to a file."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from luminal.runtime import loader

WARM = 3  # runs before those that count


def main(folder: str, inputs: str, threads: str, runs: str, output: str) -> None:
    library = loader.load(Path(folder), threads=int(threads))
    given = dict(np.load(inputs))
    seconds = []
    for number in range(WARM + int(runs)):
        started = time.perf_counter()
        library.run(given)
        if number >= WARM:
            seconds.append(time.perf_counter() - started)
    Path(f"{output}.{os.getpid()}").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
