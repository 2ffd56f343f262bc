"""The processes of a mesh: which rank this one is, and ``mpirun``, which starts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from luminal.core.errors import InputError

# What launchers tell each process: those of MPICH's kin, of Open MPI, and of all that have PMIx.
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")


def rank() -> int | None:
    """The rank of this process among those that a launcher of MPI has started; None where none has."""
    found = next((os.environ[name] for name in RANKS if name in os.environ), "")
    return int(found) if found.isdecimal() else None


def launcher() -> tuple[str, dict[str, str]]:
    """The path of ``mpirun``, and the environment to start it in: the MPI library is that of the same package, unless
    LUMINAL_MPI names another. Raises InputError where there is none."""
    beside = Path(sys.executable).with_name("mpirun")  # of the package mpich, in this environment
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise InputError("there is no mpirun, which starts the processes of a mesh: pip install 'luminal[mpi]'")
    environment = dict(os.environ)
    library = beside.parent.parent / "lib" / "libmpi_abi.so.1"
    if found == str(beside) and library.exists():
        environment.setdefault("LUMINAL_MPI", str(library))
    return found, environment


def start(ranks: int, command: Sequence[str]) -> int:
    """Runs ``command`` on so many ranks of this machine, whose output goes where this process writes; its exit code.

    Raises InputError where there is no ``mpirun``, or it cannot be started.
    """
    found, environment = launcher()
    try:
        return subprocess.run([found, "-n", str(ranks), *command], env=environment, check=False).returncode
    except OSError as error:
        raise InputError(f"cannot start {found!r}: {error.strerror or error}") from error
