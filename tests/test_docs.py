"""What the documents show is what the code prints."""

import re
import subprocess
import sys
from pathlib import Path

from luminal.core import ops

ROOT = Path(__file__).resolve().parent.parent


def test_the_excerpts_of_the_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "tour.py", "--check"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_counts_the_primitives() -> None:
    assert re.findall(r"into (\S+) primitives", (ROOT / "README.md").read_text()) == [str(len(ops.TABLE))]
