"""A model whose weights lie in a file beside it is compiled without holding them; 2.5 GB are for
``python -m tests.large_model``."""

from __future__ import annotations

import subprocess
import sys


def test_large_weights_are_not_held() -> None:
    """In a process of its own, whose largest size nothing else has raised."""
    command = [sys.executable, "-m", "tests.large_model", "--gigabytes", "0.3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
