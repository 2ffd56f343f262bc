"""Pipelines under MPI: the same results as one process, the same bits each time, what is sent, and ranks that fail."""

import os
import shutil
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

import luminal
from luminal.runtime import loader
from tests import mpi_support, test_mesh_gpus
from tests.mpi_support import MPI, MPIRUN
from tests.test_mesh_mpi import COUNTING, LIMIT, RANK, SILENT
from tests.test_mesh_pipeline import FREE, check, exact, subject

pytestmark = mpi_support.needed

MESHES = {
    "two": {"pipeline": 2},
    "three": {"pipeline": 3},
    "both": {"pipeline": 2, "tensor": 2},
    "four": {"pipeline": 4},
}


@cache
def compiled(kind: str, mesh: str, batches: int) -> Path:
    """The folder of a model in stages, with its inputs beside it."""
    module, inputs = subject(kind)
    shard = {"second.weight": {"tensor": 0}} if mesh == "both" else "auto"
    made = luminal.compile(
        module, inputs, name=f"{kind}_{mesh}", mesh=MESHES[mesh], shard=shard, link=FREE, micro_batches=batches
    )
    folder = Path(mkdtemp(prefix="luminal-pipeline-"))
    np.savez(folder / "inputs.npz", **{n: x.numpy() for n, x in zip(made.input_names, inputs, strict=True)})
    made.export(folder / "library", python_module=False)
    return folder


def mpirun(ranks, folder, output, runs=1, fate="none", **options):
    given = folder / "library", folder / "inputs.npz", output, runs, fate
    return mpi_support.mpirun(ranks, RANK, *given, **options)


@pytest.mark.parametrize(
    ("kind", "mesh", "ranks", "batches"),
    [("block", "two", 2, 4), ("layers", "two", 2, 1), ("single", "two", 2, 2), ("layers", "three", 3, 6),
     ("images", "both", 4, 2), ("block", "four", 4, 2)],
)  # fmt: skip
def test_ranks_give_what_one_process_does(kind: str, mesh: str, ranks: int, batches: int, tmp_path: Path) -> None:
    folder = compiled(kind, mesh, batches)
    done = mpirun(ranks, folder, tmp_path / "y", runs=3)
    assert done.returncode == 0, done.stderr
    outputs = [np.load(tmp_path / f"y.{rank}.{run}.npy") for rank in range(ranks) for run in range(3)]
    check(outputs[0], exact(*subject(kind))[0])
    if mesh == "two":
        assert mpirun(ranks, folder, tmp_path / "z", LUMINAL_MPI_OVERLAP="0").returncode == 0
        outputs.append(np.load(tmp_path / "z.0.0.npy"))
    for output in outputs[1:]:
        np.testing.assert_array_equal(output.view(np.uint32), outputs[0].view(np.uint32))


def test_stages_on_gpus(tmp_path: Path) -> None:
    """Emulated, and so is NCCL, whose transfers follow each other: none waits for another in a circle."""
    (module, inputs), counted = subject("block"), tmp_path / "counted"
    made = luminal.compile(
        module, inputs, name="gpus", mesh={"pipeline": 2}, micro_batches=4, target="cuda:sm_90", emulate=True
    )
    made.export(tmp_path / "library", python_module=False)
    np.savez(tmp_path / "inputs.npz", **{made.input_names[0]: inputs[0].numpy()})
    for name, overlap in (("y", "1"), ("z", "0")):
        env = {"LUMINAL_MPI_OVERLAP": overlap, "LUMINAL_NCCL_COUNTED": str(counted)}
        done = test_mesh_gpus.mpirun(2, tmp_path, tmp_path / name, runs=2, env=env)
        assert done.returncode == 0, done.stderr
        test_mesh_gpus.check_faults(tmp_path / name, 2)
    found = [test_mesh_gpus.outputs(tmp_path / n, rank, run)[0] for n, rank, run in product("yz", range(2), range(2))]
    check(found[0], exact(module, inputs)[0])
    for each in found[1:]:
        np.testing.assert_array_equal(each.view(np.uint32), found[0].view(np.uint32))
    assert counted.read_text().splitlines() == [f"{2 * 4} {2 * 4 * 6 * 32 * 4}"] * 4


def test_a_rank_opens_the_weights_of_its_stage_alone() -> None:
    folder = compiled("block", "two", 4) / "library"
    sizes = [(folder / f"block_two.weights{end}").stat().st_size - 4096 for end in ("", ".1")]
    parameters = sum(value.numel() * 4 for value in subject("block")[0].parameters())
    assert all(parameters * 0.4 < size < parameters * 0.6 for size in sizes)
    nothing = compiled("single", "two", 2) / "library" / "single_two.weights.1"
    assert nothing.stat().st_size == 4096


def test_what_is_sent_is_what_the_plan_says(tmp_path: Path) -> None:
    folder = compiled("block", "two", 4)
    stand_in = tmp_path / "libcounting.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(COUNTING), "-o", str(stand_in), "-ldl"], check=True)
    done = mpirun(2, folder, tmp_path / "y", 3, mpi=stand_in, REAL_MPI=str(MPI), COUNTED=str(tmp_path / "counted"))
    assert done.returncode == 0, done.stderr
    hello = 168 + 56  # bytes by which a rank says where it runs and what it has opened
    # What passes between the stages, of the last the outputs: a micro-batch after the other.
    messages, size = 2 + 3 * 4, hello + 3 * 4 * 6 * 32 * 4
    assert (tmp_path / "counted").read_text().splitlines() == [f"{messages} {size}"] * 2
    plan = loader.read_manifest(folder / "library" / "manifest.json")["plan"]
    for stage in range(2):
        assert (
            f"pipeline: a rank of stage {stage} sends 4 messages, {4 * 6 * 32 * 4} bytes, in a run of 4 micro-batches"
            in plan
        )
    assert any("pipeline: stage 0 has 50% of the work" in line for line in plan)


def test_a_rank_that_fails_is_an_error_of_the_other(tmp_path: Path) -> None:
    """One that hangs is named; one that is killed, the launcher sees, and ends the other."""
    folder = compiled("block", "two", 4)
    environment = {**os.environ, "LUMINAL_MPI": str(MPI), "LUMINAL_MPI_LIMIT": str(LIMIT)}
    command = [MPIRUN, "-disable-auto-cleanup", "-n", "2", sys.executable, RANK, folder / "library"]
    command += [folder / "inputs.npz", tmp_path / "y", "2", "stopped"]
    said = mpi_support.left(tmp_path / "y", command, environment)
    assert SILENT in said and "another rank failed in step" in said
    assert not (tmp_path / "y.0.1.npy").exists()
    done = mpirun(2, folder, tmp_path / "z", 2, "killed", LUMINAL_MPI_LIMIT=str(LIMIT))
    assert done.returncode != 0 and "KILLED" in done.stdout.upper(), done.stdout
    assert not (tmp_path / "z.0.1.npy").exists()


def test_weights_of_another_stage_are_told_apart(tmp_path: Path) -> None:
    shutil.copytree(compiled("layers", "three", 6), tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "library" / "layers_three.weights"
    shard = weights.with_name(weights.name + ".2")
    whole = shard.read_bytes()
    shutil.copy(weights, shard)
    done = mpirun(3, tmp_path, tmp_path / "y")
    assert done.returncode != 0 and "is that of rank 0, expected that of rank 2" in done.stderr
    shard.write_bytes(whole[:-64])
    done = mpirun(3, tmp_path, tmp_path / "y")
    assert done.returncode != 0 and "is truncated" in done.stderr and "rank 2 could not open" in done.stderr


def test_an_older_mpi_through_the_shim(tmp_path: Path) -> None:
    """OpenMPI 4.1, where this machine has it: the same bits as under MPICH."""
    folder = compiled("block", "two", 4)
    done = mpirun(2, folder, tmp_path / "old", **mpi_support.older(tmp_path))
    assert done.returncode == 0, done.stderr
    assert mpirun(2, folder, tmp_path / "new").returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "old.1.0.npy"), np.load(tmp_path / "new.0.0.npy"))
