"""Libraries of a mesh under MPI: the same results as one process, the same bits each time, and ranks that fail."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import luminal
from luminal import cli, meshes
from luminal.core.mesh import traffic
from luminal.runtime import loader
from tests.test_mesh import FREE, model

RANK = Path(__file__).with_name("rank_of_mesh.py")
COUNTING = Path(__file__).with_name("counting_mpi.c")


def found(name: str) -> Path | None:
    """A file of the wheel of MPICH, beside this Python or where LUMINAL_MPICH says."""
    for root in (os.environ.get("LUMINAL_MPICH"), sys.prefix, sysconfig.get_path("data")):
        if root and (Path(root) / name).exists():
            return Path(root) / name
    return None


MPIRUN, MPI = found("bin/mpirun"), found("lib/libmpi_abi.so.1")
pytestmark = pytest.mark.skipif(MPIRUN is None or MPI is None, reason="no mpirun: pip install mpich")


@cache
def compiled(kind: str, ranks: int) -> Path:
    """The folder of a model for so many ranks, with its inputs and the outputs of PyTorch beside it."""
    module, x = model(kind)
    shard = {"second.weight": {"tensor": 0}} if kind == "images" else "auto"
    made = luminal.compile(module, (x,), name=f"{kind}_{ranks}", mesh={"tensor": ranks}, shard=shard, link=FREE)
    folder = Path(mkdtemp(prefix="luminal-mesh-"))
    np.savez(folder / "inputs.npz", **{made.input_names[0]: x.numpy()})
    with torch.no_grad():
        np.save(folder / "expected.npy", module(x).numpy())
    made.export(folder / "library", python_module=False)
    sent = traffic.sent(made.graph)["tensor"]
    (folder / "sent").write_text(str(sent.messages))
    (folder / "bytes").write_text(str(sent.bytes))
    return folder


def mpirun(ranks, folder, output, runs=1, fate="none", mpi=MPI, launcher=MPIRUN, more=(), library="library", **env):
    """The finished command."""
    environment = {**os.environ, "LUMINAL_MPI": str(mpi), "LUMINAL_MPI_LIMIT": "60", **env}
    command = [launcher, *more, "-n", str(ranks), sys.executable, RANK, folder / library, folder / "inputs.npz", output]
    return subprocess.run(
        [*map(str, command), str(runs), fate], env=environment, capture_output=True, text=True, timeout=150
    )


@pytest.mark.parametrize(("kind", "ranks"), [("block", 2), ("block", 4), ("images", 2)])
def test_ranks_give_what_one_process_does(kind: str, ranks: int, tmp_path: Path) -> None:
    folder = compiled(kind, ranks)
    done = mpirun(ranks, folder, tmp_path / "y", runs=3)
    assert done.returncode == 0, done.stderr
    outputs = [np.load(tmp_path / f"y.{rank}.{run}.npy") for rank in range(ranks) for run in range(3)]
    np.testing.assert_allclose(outputs[0], np.load(folder / "expected.npy"), rtol=1e-5, atol=1e-5)
    for output in outputs[1:]:
        np.testing.assert_array_equal(output.view(np.uint32), outputs[0].view(np.uint32))


def test_what_is_sent_is_what_the_plan_says(tmp_path: Path) -> None:
    folder = compiled("block", 2)
    stand_in = tmp_path / "libcounting.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(COUNTING), "-o", str(stand_in), "-ldl"], check=True)
    done = mpirun(2, folder, tmp_path / "y", 3, mpi=stand_in, REAL_MPI=str(MPI), COUNTED=str(tmp_path / "counted"))
    assert done.returncode == 0, done.stderr
    hello = 56  # bytes by which a rank says what it has opened
    messages, size = 1 + 3 * int((folder / "sent").read_text()), hello + 3 * int((folder / "bytes").read_text())
    assert (tmp_path / "counted").read_text().splitlines() == [f"{messages} {size}"] * 2


def test_a_rank_that_hangs_is_an_error_of_the_others(tmp_path: Path) -> None:
    folder, error = compiled("block", 2), tmp_path / "y.0.error"
    environment = {**os.environ, "LUMINAL_MPI": str(MPI), "LUMINAL_MPI_LIMIT": "8"}
    command = [MPIRUN, "-disable-auto-cleanup", "-n", "2", sys.executable, RANK, folder / "library"]
    command += [folder / "inputs.npz", tmp_path / "y", "2", "stopped"]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(list(map(str, command)), env=environment, stdout=log, stderr=log)
        try:
            end = time.monotonic() + 90
            while not error.exists() and running.poll() is None and time.monotonic() < end:
                time.sleep(0.2)
        finally:
            with contextlib.suppress(OSError):  # a stopped one hears nothing else
                os.kill(int((tmp_path / "y.1.pid").read_text()), signal.SIGKILL)
            running.terminate()
            running.wait(30)
    said = error.read_text()
    assert "another rank failed in step" in said and "rank 0: rank 1 did not answer within 8 seconds" in said
    assert not (tmp_path / "y.0.1.npy").exists()


def test_a_job_of_which_a_rank_is_killed_ends(tmp_path: Path) -> None:
    done = mpirun(2, compiled("block", 2), tmp_path / "y", 2, "killed", LUMINAL_MPI_LIMIT="8")
    assert done.returncode != 0


def test_files_that_do_not_fit_are_told_apart(tmp_path: Path) -> None:
    """A shard that is cut, and ranks of which one has the part of another: all end, and one says why."""
    folder = compiled("block", 2)
    shutil.copytree(folder / "library", tmp_path / "library")
    shutil.copy(folder / "inputs.npz", tmp_path / "inputs.npz")
    shard = tmp_path / "library" / "block_2.weights.1"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-64])
    done = mpirun(2, tmp_path, tmp_path / "y")
    assert done.returncode != 0 and "is truncated" in done.stderr and "rank 1 could not open" in done.stderr
    shutil.copy(tmp_path / "library" / "block_2.weights", shard)
    done = mpirun(2, tmp_path, tmp_path / "y")
    assert done.returncode != 0 and "is that of rank 0, expected that of rank 1" in done.stderr


def test_the_number_of_ranks_is_checked(tmp_path: Path) -> None:
    done = mpirun(1, compiled("block", 2), tmp_path / "y")
    assert done.returncode != 0 and "is for 2 ranks, and 1 are in the communicator" in done.stderr


def test_a_library_without_mpi_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LUMINAL_MPI", str(tmp_path / "none.so"))
    with pytest.raises((OSError, RuntimeError), match="cannot open the MPI library"):
        loader.load(compiled("block", 2) / "library")


def test_an_older_mpi_through_the_shim(tmp_path: Path) -> None:
    """OpenMPI 4.1, where this machine has it: the same bits as under MPICH."""
    launcher, compiler = shutil.which("mpirun.openmpi"), shutil.which("mpicc.openmpi")
    if launcher is None or compiler is None:
        pytest.skip("no OpenMPI: apt-get install openmpi-bin libopenmpi-dev")
    source, library = tmp_path / "shim.c", tmp_path / "libshim.so"
    assert CliRunner().invoke(cli.app, ["mpi-shim", "-o", str(source)]).exit_code == 0
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    folder = compiled("block", 2)
    own = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    more = ("--oversubscribe",)
    done = mpirun(2, folder, tmp_path / "old", mpi=library, launcher=launcher, more=more, **own)
    assert done.returncode == 0, done.stderr
    assert mpirun(2, folder, tmp_path / "new").returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "old.0.0.npy"), np.load(tmp_path / "new.0.0.npy"))


def test_the_plan_is_explained() -> None:
    text = loader.read_manifest(compiled("block", 2) / "library" / "manifest.json")["plan"]
    assert any("up.weight: axis 0 in parts of 64 along tensor" in line for line in text), text
    assert any("a rank sends" in line for line in text)
    assert meshes.parse({"tensor": 2}) == {"tensor": 2}
