"""A measurement in a process of its own, which frees its memory at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def run(module: str, options: Mapping[str, Any], python: str = sys.executable) -> Any:
    """What ``python -m module`` prints as JSON on its last line; its progress is shown here. Another ``python`` finds
    what this one finds, too.

    Raises CalledProcessError where it fails.
    """
    # The thread counts of OpenMP and MKL that a shell may have set are not those asked for.
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if python != sys.executable:
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    done = subprocess.run(
        [python, "-m", module, json.dumps(options)],
        stdout=subprocess.PIPE, text=True, check=True, env=environment,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])
