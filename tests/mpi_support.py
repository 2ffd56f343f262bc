"""Scripts on several ranks, for tests: the wheel of MPICH, and how it is started."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest


def found(name: str) -> Path | None:
    """A file of the wheel of MPICH, beside this Python or where LUMINAL_MPICH says."""
    for root in (os.environ.get("LUMINAL_MPICH"), sys.prefix, sysconfig.get_path("data")):
        if root and (Path(root) / name).exists():
            return Path(root) / name
    return None


MPIRUN, MPI = found("bin/mpirun"), found("lib/libmpi_abi.so.1")
needed = pytest.mark.skipif(MPIRUN is None or MPI is None, reason="no mpirun: pip install mpich")


def mpirun(
    ranks: int, script: Path, *arguments: Any, mpi: Any = MPI, launcher: Any = MPIRUN, more: tuple[str, ...] = (),
    **env: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """The finished command: this Python runs ``script`` on so many ranks."""
    environment = {**os.environ, "LUMINAL_MPI": str(mpi), "LUMINAL_MPI_LIMIT": "60", **env}
    command = [launcher, *more, "-n", ranks, sys.executable, script, *arguments]
    return subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=150)
