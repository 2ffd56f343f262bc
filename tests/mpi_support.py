"""Scripts on several ranks, for tests: the wheel of MPICH, and how it is started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from luminal import cli


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


def left(output: Path, command: Sequence[Any], environment: Mapping[str, str], seconds: float = 60) -> str:
    """What the first of two ranks says where the second does not answer: the text of the file ``OUTPUT.0.error``, which
    it writes. ``OUTPUT.1.pid`` is of the second, which may be stopped and hears of nothing but SIGKILL."""
    error = Path(f"{output}.0.error")
    with Path(f"{output}.log").open("w") as log:
        running = subprocess.Popen(list(map(str, command)), env=dict(environment), stdout=log, stderr=log)
        try:
            end = time.monotonic() + seconds
            while not error.exists() and running.poll() is None and time.monotonic() < end:
                time.sleep(0.2)
        finally:
            with contextlib.suppress(OSError):
                os.kill(int(Path(f"{output}.1.pid").read_text()), signal.SIGKILL)
            running.terminate()
            running.wait(30)
    return error.read_text()


def older(folder: Path) -> dict[str, Any]:
    """How ``mpirun`` runs ranks under OpenMPI 4.1, by a shim that is built in ``folder``. Skips the test where this
    machine has none."""
    launcher, compiler = shutil.which("mpirun.openmpi"), shutil.which("mpicc.openmpi")
    if launcher is None or compiler is None:
        pytest.skip("no OpenMPI: apt-get install openmpi-bin libopenmpi-dev")
    source, library = folder / "shim.c", folder / "libshim.so"
    assert CliRunner().invoke(cli.app, ["mpi-shim", "-o", str(source)]).exit_code == 0
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    own = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {"mpi": library, "launcher": launcher, "more": ("--oversubscribe",), **own}
