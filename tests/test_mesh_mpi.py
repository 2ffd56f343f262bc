"""Libraries of a mesh under MPI: the same results as one process, the same bits each time, and ranks that fail."""

import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

import luminal
from luminal import api, meshes
from luminal.codegen.host import INCLUDE
from luminal.core.mesh import traffic
from luminal.runtime import loader
from tests import mpi_support
from tests.compiled_support import exactly
from tests.mpi_support import MPI, MPIRUN
from tests.test_mesh import FREE, SHARDS, model

RANK = Path(__file__).with_name("rank_of_mesh.py")
COUNTING = Path(__file__).with_name("counting_mpi.c")
LIMIT = 4  # seconds that a rank waits for another that fails


pytestmark = mpi_support.needed


@cache
def compiled(kind: str, ranks: int) -> Path:
    """The folder of a model for so many ranks, with its inputs beside it, its output in float64 and the bound."""
    module, x = model(kind)
    shard = SHARDS.get(kind, "auto")
    made = luminal.compile(module, (x,), name=f"{kind}_{ranks}", mesh={"tensor": ranks}, shard=shard, link=FREE)
    folder = Path(mkdtemp(prefix="luminal-mesh-"))
    inputs = {made.input_names[0]: x.numpy()}
    np.savez(folder / "inputs.npz", **inputs)
    ((wanted, bound),) = exactly(api.read(module, (x,)), inputs)
    np.savez(folder / "expected.npz", wanted=wanted, bound=bound)
    made.export(folder / "library", python_module=False)
    sent = traffic.sent(made.graph)["tensor"]
    (folder / "sent").write_text(str(sent.messages))
    (folder / "bytes").write_text(str(sent.bytes))
    return folder


def check(found: np.ndarray, folder: Path) -> None:
    """That ``found`` is what the model in ``folder`` computes, within the bound of float32."""
    expected = np.load(folder / "expected.npz")
    np.testing.assert_allclose(found, expected["wanted"], rtol=0, atol=float(expected["bound"]))


def mpirun(ranks, folder, output, runs=1, fate="none", library="library", **options):
    """The finished command."""
    given = folder / library, folder / "inputs.npz", output, runs, fate
    return mpi_support.mpirun(ranks, RANK, *given, **options)


KINDS = [("block", 2), ("block", 4), ("images", 2), ("experts", 2), ("experts", 4)]


@pytest.mark.parametrize(("kind", "ranks"), KINDS)
def test_ranks_give_what_one_process_does(kind: str, ranks: int, tmp_path: Path) -> None:
    folder = compiled(kind, ranks)
    done = mpirun(ranks, folder, tmp_path / "y", runs=3)
    assert done.returncode == 0, done.stderr
    outputs = [np.load(tmp_path / f"y.{rank}.{run}.npy") for rank in range(ranks) for run in range(3)]
    check(outputs[0], folder)
    if (kind, ranks) == ("block", 2):
        assert mpirun(ranks, folder, tmp_path / "z", LUMINAL_MPI_OVERLAP="0").returncode == 0
        outputs.append(np.load(tmp_path / "z.0.0.npy"))
    for output in outputs[1:]:
        np.testing.assert_array_equal(output.view(np.uint32), outputs[0].view(np.uint32))


def test_what_is_sent_is_what_the_plan_says(tmp_path: Path) -> None:
    folder = compiled("block", 2)
    stand_in = tmp_path / "libcounting.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(COUNTING), "-o", str(stand_in), "-ldl"], check=True)
    done = mpirun(2, folder, tmp_path / "y", 3, mpi=stand_in, REAL_MPI=str(MPI), COUNTED=str(tmp_path / "counted"))
    assert done.returncode == 0, done.stderr
    hello = 168 + 56  # bytes by which a rank says where it runs and what it has opened
    messages, size = 2 + 3 * int((folder / "sent").read_text()), hello + 3 * int((folder / "bytes").read_text())
    assert (tmp_path / "counted").read_text().splitlines() == [f"{messages} {size}"] * 2


NEAR = """
#include <cstdio>
#include "luminal/placement.hpp"
int main(int, char** arguments) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (int cpu = 0; cpu < 8; ++cpu) CPU_SET(cpu, &cpus);
    const lm::NearCpus near(cpus, arguments[1]);
    for (int part = 0; part < 3; ++part) {
        const cpu_set_t found = near.part(part, 3);
        for (int cpu = 0; cpu < 8; ++cpu) if (CPU_ISSET(cpu, &found)) std::printf("%d ", cpu);
        std::printf("\\n");
    }
}
"""


def test_ranks_of_one_machine_divide_its_cpus(tmp_path: Path) -> None:
    """Those that launchers have not bound; the parts follow nodes and cores."""
    every = os.sched_getaffinity(0)
    for name, pin in (("y", "1"), ("z", "0")):
        assert mpirun(2, compiled("block", 2), tmp_path / name, LUMINAL_MPI_PIN=pin).returncode == 0
    parts = ("y", "cpus"), ("z", "cpus"), ("y", "cpus.after")
    y, z, after = ([set(map(int, (tmp_path / f"{n}.{r}.{w}").read_text().split())) for r in range(2)] for n, w in parts)
    assert after == [every] * 2  # a library that is closed leaves the thread as it was
    assert z == [every] * 2
    assert y == z if len(every) < 2 else (y[0] | y[1] == every and not y[0] & y[1])
    for cpu in range(8):  # of two nodes, whose CPUs alternate, with two cores each of two threads
        topology = tmp_path / "system" / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 2}\n")
        (topology / "core_id").write_text(f"{cpu % 4 // 2}\n")
        (tmp_path / "system" / "node" / f"node{cpu % 2}" / f"cpu{cpu}").mkdir(parents=True)
    source, program = tmp_path / "near.cpp", tmp_path / "near"
    source.write_text(NEAR)
    flags = ["-std=c++17", "-DLM_NAMESPACE=model_near", f"-I{INCLUDE}"]
    subprocess.run(["c++", *flags, str(source), "-o", str(program)], check=True)
    found = subprocess.run([program, tmp_path / "system"], capture_output=True, text=True, check=True).stdout
    assert [line.split() for line in found.splitlines()] == [["0", "4"], ["1", "2", "6"], ["3", "5", "7"]]


SILENT = f"rank 0: rank 1 did not answer within {LIMIT} seconds"


@pytest.mark.parametrize(
    ("fate", "sentence"),
    [
        ("stopped", SILENT),
        ("absent", f'not all ranks have opened the library of "block_2" within {LIMIT} seconds'),
    ],
)
def test_a_rank_that_fails_is_an_error_of_those_that_are_left(fate: str, sentence: str, tmp_path: Path) -> None:
    """Where the launcher leaves the others alone, they end by themselves, within the limit and what the start takes."""
    folder = compiled("block", 2)
    environment = {**os.environ, "LUMINAL_MPI": str(MPI), "LUMINAL_MPI_LIMIT": str(LIMIT)}
    command = [MPIRUN, "-disable-auto-cleanup", "-n", "2", sys.executable, RANK, folder / "library"]
    command += [folder / "inputs.npz", tmp_path / "y", "2", fate]
    said = mpi_support.left(tmp_path / "y", command, environment)
    assert sentence in said
    assert ("another rank failed in step" in said) == (fate != "absent")
    assert not (tmp_path / "y.0.1.npy").exists()


def test_a_job_of_which_a_rank_fails_ends(tmp_path: Path) -> None:
    """Under the launcher as it is by default: one that hangs is named by the others; one that is killed, the launcher
    itself sees, and ends the others."""
    done = mpirun(2, compiled("block", 2), tmp_path / "y", 2, "stopped", LUMINAL_MPI_LIMIT=str(LIMIT))
    assert done.returncode != 0 and SILENT in done.stderr, done.stderr
    done = mpirun(2, compiled("block", 2), tmp_path / "y", 2, "killed", LUMINAL_MPI_LIMIT=str(LIMIT))
    assert done.returncode != 0 and "KILLED" in done.stdout.upper(), done.stdout
    # Left alone, the others report it, unless MPICH hears of it first: it ends them with no word.
    alone = ("-disable-auto-cleanup",)
    done = mpirun(2, compiled("block", 2), tmp_path / "z", 2, "killed", LUMINAL_MPI_LIMIT=str(LIMIT), more=alone)
    # The launcher says it, or is ended itself when it writes to what is gone.
    assert done.returncode == -signal.SIGPIPE or (done.returncode != 0 and "KILLED" in done.stdout.upper()), done.stdout
    error = tmp_path / "z.0.error"
    assert not error.exists() or SILENT in error.read_text()
    assert not (tmp_path / "z.0.1.npy").exists()


def test_ranks_with_different_libraries_are_told(tmp_path: Path) -> None:
    ways = [(compiled(kind, 2) / "library", compiled("block", 2) / "inputs.npz") for kind in ("block", "images")]
    first, second = ([*way, tmp_path / "y", 1, "none"] for way in ways)
    alone = ("-disable-auto-cleanup",)  # else the launcher ends the second as soon as the first has failed
    done = mpi_support.mpirun(1, RANK, *first, ":", "-n", 1, sys.executable, RANK, *second, more=alone)
    assert done.returncode != 0
    for rank in range(2):
        said = (tmp_path / f"y.{rank}.error").read_text()
        assert f"rank {1 - rank} has another library of" in said and "give all ranks the same files" in said


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
    folder = compiled("block", 2)
    done = mpirun(2, folder, tmp_path / "old", **mpi_support.older(tmp_path))
    assert done.returncode == 0, done.stderr
    assert mpirun(2, folder, tmp_path / "new").returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "old.0.0.npy"), np.load(tmp_path / "new.0.0.npy"))


def test_the_plan_is_explained() -> None:
    text = loader.read_manifest(compiled("block", 2) / "library" / "manifest.json")["plan"]
    assert any("up.weight: axis 0 in parts of 64 along tensor" in line for line in text), text
    assert any("a rank sends" in line for line in text)
    assert meshes.parse({"tensor": 2}) == {"tensor": 2}
