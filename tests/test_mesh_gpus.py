"""Libraries of a mesh of NVIDIA's GPUs: each rank's GPU is emulated, and so is NCCL between them."""

import json
import os
import pickle
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import luminal
from luminal import api, artifact, cli
from luminal.core import exchange, interp, ir, movement, ops
from luminal.core import target as targets
from luminal.core.errors import UnsupportedError
from luminal.core.mesh import traffic
from luminal.core.pipeline import compile_graph
from luminal.core.types import f32
from luminal.progress import Stages
from tests import device_support, mpi_support
from tests.compiled_support import exactly
from tests.mpi_support import MPI, MPIRUN
from tests.test_mesh import FREE, SHARDS, model

RANK = Path(__file__).with_name("rank_of_gpus.py")
TARGET = "cuda:sm_90"
LIMIT = 4  # seconds that a rank waits for another that fails

by_mpi = mpi_support.needed


@cache
def compiled(kind: str, mesh: tuple[int, ...]) -> Path:
    """The folder of a model for a mesh of these sizes, with its inputs beside it, its output in float64 and the
    bound."""
    module, x = model(kind)
    axes = dict(zip(("tensor", "data"), mesh, strict=False))
    name = "_".join(map(str, (kind, *mesh)))
    shard = SHARDS.get(kind, "auto")
    made = luminal.compile(module, (x,), name=name, mesh=axes, shard=shard, link=FREE, target=TARGET, emulate=True)
    folder = Path(mkdtemp(prefix="luminal-mesh-"))
    inputs = {made.input_names[0]: x.numpy()}
    np.savez(folder / "inputs.npz", **inputs)
    ((wanted, bound),) = exactly(api.read(module, (x,)), inputs)
    np.savez(folder / "expected.npz", wanted=wanted, bound=bound)
    made.export(folder / "library", python_module=False)
    sent = traffic.sent(made.graph).values()
    (folder / "sent").write_text(f"{sum(t.messages for t in sent)} {sum(t.bytes for t in sent)}")
    return folder


def check(found: np.ndarray, folder: Path) -> None:
    """That ``found`` is what the model in ``folder`` computes, within the bound of float32."""
    expected = np.load(folder / "expected.npz")
    np.testing.assert_allclose(found, expected["wanted"], rtol=0, atol=float(expected["bound"]))


def mpirun(ranks, folder, output, library="library", more=(), env=None, **settings):
    """The finished command."""
    given = folder / library, folder / "inputs.npz", output, json.dumps(settings)
    path = os.pathsep.join([str(RANK.parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {"TMPDIR": str(output.parent), "PYTHONPATH": path, **(env or {})}
    return mpi_support.mpirun(ranks, RANK, *given, more=more, **environment)


def outputs(output: Path, rank: int, run: int = 0) -> list[np.ndarray]:
    return list(np.load(f"{output}.{rank}.{run}.npz").values())


def check_faults(output: Path, ranks: int) -> None:
    assert [Path(f"{output}.{rank}.faults").read_text() for rank in range(ranks)] == [""] * ranks


@by_mpi
@pytest.mark.parametrize(
    ("kind", "mesh"), [("block", (2,)), ("block", (2, 2)), ("images", (2,)), ("experts", (2,)), ("experts", (4,))]
)
def test_ranks_give_what_one_process_does(kind: str, mesh: tuple[int, ...], tmp_path: Path) -> None:
    folder, ranks = compiled(kind, mesh), int(np.prod(mesh))
    counted = {"LUMINAL_NCCL_COUNTED": str(tmp_path / "counted")}
    done = mpirun(ranks, folder, tmp_path / "y", runs=2, env=counted)
    assert done.returncode == 0, done.stderr
    check_faults(tmp_path / "y", ranks)
    found = [outputs(tmp_path / "y", rank, run)[0] for rank in range(ranks) for run in range(2)]
    check(found[0], folder)
    if (kind, mesh) == ("block", (2,)):
        assert mpirun(ranks, folder, tmp_path / "z", env={"LUMINAL_MPI_OVERLAP": "0"}).returncode == 0
        found.append(outputs(tmp_path / "z", 0)[0])
    for each in found[1:]:
        np.testing.assert_array_equal(each.view(np.uint32), found[0].view(np.uint32))
    messages, size = map(int, (folder / "sent").read_text().split())
    for rank in range(ranks):
        made, launched, single = json.loads((tmp_path / f"y.{rank}.calls").read_text()).values()
        if kind == "experts":  # how many of them a rank needs, data decides
            assert (made, launched) == (0, 0) and single > 0
        else:  # a graph for each stretch of kernels between exchanges
            assert 1 < made <= 2 * messages + 1 and (launched, single) == (2 * made, 0)
    assert (tmp_path / "counted").read_text().splitlines() == [f"{2 * messages} {2 * size}"] * ranks
    assert not list(tmp_path.glob("luminal-nccl-*"))  # the last rank has removed what there was


def exchanges(sizes: tuple[int, ...]) -> ir.Graph:
    """All kinds of exchange along the axes of a mesh, over one after the other and at once."""
    count = int(np.prod(sizes))
    x = ir.input_("x", (4, 4, 3), f32)
    found, stride = {}, count
    for axis, size in zip("ab", sizes, strict=False):
        stride //= size
        group = ops.Group(axis, size, stride)
        part = movement.slice_(x, 0, 0, size) * 2
        for kind, number in (("gather", 0), ("transpose", 0), ("part", 0), ("broadcast", size - 1), ("shift", 1),
                             ("shift", -1)):  # fmt: skip
            found[f"{kind}{number}{axis}"] = ir.exchange(kind, group, part, number) + 1
    mesh = tuple(zip("ab", sizes, strict=False))
    return ir.Graph("exchanges", (x,), tuple(found.items()), mesh=mesh)


@by_mpi
@pytest.mark.parametrize("sizes", [(4,), (2, 2)])
def test_kinds_of_exchange(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """Among all ranks, and among some."""
    graph, target = exchanges(sizes), targets.GPUS[TARGET]
    library = artifact.build(compile_graph(graph, target), target, Stages(None), emulate=True)
    given = np.random.default_rng(0).standard_normal((4, 4, 4, 3), np.float32)
    np.savez(tmp_path / "inputs.npz", **{"x.of": given})
    done = mpirun(4, tmp_path, tmp_path / "y", library=library, runs=2)
    assert done.returncode == 0, done.stderr
    check_faults(tmp_path / "y", 4)
    expected = exchange.lockstep(4, lambda rank, other: interp.run(graph, {"x": given[rank]}, exchange=other).outputs)
    for rank, run in product(range(4), range(2)):
        for one, wanted in zip(outputs(tmp_path / "y", rank, run), expected[rank], strict=True):
            np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("way", ["id", "communicator"])
def test_ranks_that_find_each_other_without_mpi(way: str, tmp_path: Path) -> None:
    """By an id of NCCL that the caller hands round, or a communicator of the caller."""
    folder = compiled("block", (2,))
    for done in processes(folder, tmp_path, way):
        assert done.returncode == 0, done.stderr
    check_faults(tmp_path / "y", 2)
    for rank in range(2):
        check(outputs(tmp_path / "y", rank)[0], folder)


def processes(folder, tmp_path, way, others=None, ranks=2, **settings):
    """The finished processes of the ranks, started without a launcher; ``others``: the folder of all but the first."""
    path = os.pathsep.join([str(RANK.parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TMPDIR": str(tmp_path), "LUMINAL_MPI": "none", "PYTHONPATH": path}
    environment["LUMINAL_MPI_LIMIT"] = "60"
    running = []
    for rank in range(ranks):
        its = others if others is not None and rank else folder
        command = [sys.executable, RANK, its / "library", its / "inputs.npz", tmp_path / "y"]
        command.append(json.dumps({"way": way, **settings}))
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(list(map(str, command)), env=environment | {"RANK": str(rank)}, **streams))
    for process in running:
        out, said = process.communicate(timeout=150)
        yield subprocess.CompletedProcess(process.args, process.returncode, out, said)


def test_ranks_with_different_libraries_are_told(tmp_path: Path) -> None:
    """Without MPI, over NCCL itself."""
    first, second = compiled("block", (2,)), compiled("images", (2,))
    for rank, done in enumerate(processes(first, tmp_path, "id", second)):
        assert done.returncode != 0
        said = (tmp_path / f"y.{rank}.error").read_text()
        assert f"rank {1 - rank} has another library of" in said and "give all ranks the same files" in said
    check_faults(tmp_path / "y", 2)


def test_a_number_that_no_rank_has_is_refused(tmp_path: Path) -> None:
    (*_, last) = processes(compiled("block", (2,)), tmp_path, "id", ranks=3)
    assert last.returncode != 0 and "lm_options.rank is 2" in (tmp_path / "y.2.error").read_text()


@by_mpi
@pytest.mark.parametrize(
    ("fate", "sentence"),
    [
        ("stopped", f"rank 0: rank 1 did not answer within {LIMIT} seconds"),
        ("absent", f'not all ranks have opened the library of "block_2" within {LIMIT} seconds'),
    ],
)
def test_a_rank_that_fails_is_an_error_of_those_that_are_left(fate: str, sentence: str, tmp_path: Path) -> None:
    """They end by themselves, within the limit and what the start takes."""
    folder = compiled("block", (2,))
    path = os.pathsep.join([str(RANK.parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "LUMINAL_MPI": str(MPI), "LUMINAL_MPI_LIMIT": str(LIMIT), "TMPDIR": str(tmp_path)}
    environment["PYTHONPATH"] = path
    command = [MPIRUN, "-disable-auto-cleanup", "-n", "2", sys.executable, RANK, folder / "library"]
    command += [folder / "inputs.npz", tmp_path / "y", json.dumps({"runs": 2, "fate": fate})]
    said = mpi_support.left(tmp_path / "y", command, environment)
    assert sentence in said
    assert ("another rank failed in step" in said) == (fate != "absent")
    assert not (tmp_path / "y.0.1.npz").exists()


def test_a_rank_that_is_killed_is_an_error_of_those_that_are_left(tmp_path: Path) -> None:
    """Without MPI, which may hear of it first from its launcher, and ends the others with no word."""
    left, _ = processes(compiled("block", (2,)), tmp_path, "id", runs=2, fate="killed")
    said = (tmp_path / "y.0.error").read_text()
    assert "rank 0 cannot exchange data with other ranks: NCCL says remote process exited" in said
    assert left.returncode != 0 and "another rank failed in step" in said
    assert not (tmp_path / "y.0.1.npz").exists()


ALONE = ("-disable-auto-cleanup",)  # else the launcher ends the others as soon as one has failed


@by_mpi
def test_ranks_of_a_machine_take_a_gpu_each(tmp_path: Path) -> None:
    """Those that see the same ones. The stand-in for NCCL refuses two ranks of one GPU."""
    folder = compiled("block", (2,))
    done = mpirun(2, folder, tmp_path / "y", being={"machine": 7, "devices": 2})
    assert done.returncode == 0, done.stderr
    done = mpirun(2, folder, tmp_path / "z", more=ALONE, being={"machine": 7, "devices": 1})
    assert done.returncode != 0
    for rank in range(2):
        said = (tmp_path / f"z.{rank}.error").read_text()
        assert '2 ranks of "block_2" run on this machine, which has 1 GPU from lm_options.device_id 0 on' in said


@by_mpi
@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"LUMINAL_NCCL": "/none/libnccl.so"}, 'cannot open NCCL, by which GPUs exchange data, as "/none/libnccl.so"'),
        ({"LUMINAL_NCCL_VERSION": "21304"}, "is of version 21304, expected 21400 or later"),
        ({"LUMINAL_CUDA_FAIL": "cuDeviceGetUuid:1:999"}, "cannot tell GPUs apart: cuDeviceGetUuid says an error"),
        (
            {"LUMINAL_CUDA_FAIL": "cuEventQuery:1:999"},
            "exchange data with other ranks: cuEventQuery says an error",
        ),
        ({"LUMINAL_CUDA_FAIL": "cuStreamQuery:1:999"}, 'cannot carry out entry "main": cuStreamQuery says an error'),
    ],
)
def test_what_is_missing_is_said(env: dict[str, str], sentence: str, tmp_path: Path) -> None:
    done = mpirun(2, compiled("block", (2,)), tmp_path / "y", more=ALONE, env={**env, "LUMINAL_MPI_LIMIT": str(LIMIT)})
    assert done.returncode != 0
    for rank in range(2):
        assert sentence in (tmp_path / f"y.{rank}.error").read_text()


@by_mpi
def test_a_rank_that_cannot_open_its_library_is_told_of(tmp_path: Path) -> None:
    """One has no NCCL: the other hears of it at once, not when its limit is over."""
    assert mpirun(2, compiled("block", (2,)), tmp_path / "y", more=ALONE, fate="without").returncode != 0
    assert "cannot open NCCL" in (tmp_path / "y.1.error").read_text()
    assert 'rank 1 could not open the library of "block_2"' in (tmp_path / "y.0.error").read_text()


@by_mpi
def test_steps_of_training_are_those_of_one_process(tmp_path: Path) -> None:
    """States are on the GPUs, gradients are added up by kernels; each rank has half of a batch."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    rng = np.random.default_rng(0)
    batches = rng.standard_normal((3, 8, 6), np.float32), rng.standard_normal((3, 8, 4), np.float32)
    first = [torch.from_numpy(part[0]) for part in batches]
    loss = torch.nn.MSELoss()
    training = luminal.compile_training(
        module, loss, optimizer, (first[0],), (first[1],), mesh={"data": 2}, link=FREE, target=TARGET, emulate=True,
        shard={name: {"data": 0} for name in ("input", "target")},
    )  # fmt: skip
    training.export(tmp_path / "step", python_module=False)
    (tmp_path / "described").write_bytes(pickle.dumps((training._described, training.lr, training._plan)))
    np.savez(tmp_path / "batches.npz", *batches)
    path = os.pathsep.join([str(RANK.parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": path}
    done = mpi_support.mpirun(2, RANK.with_name("rank_of_gpu_training.py"), tmp_path, 2, **environment)
    assert done.returncode == 0, done.stderr
    expected = []
    for x, target in zip(*map(torch.from_numpy, batches), strict=True):
        optimizer.zero_grad()
        error = loss(module(x), target)
        error.backward()
        optimizer.step()
        expected.append(error.item())
    found = [np.load(tmp_path / f"found.{rank}.npz") for rank in range(2)]
    for each in found:
        np.testing.assert_allclose(each["losses"], expected, rtol=1e-5)
        np.testing.assert_allclose(each["0.weight"], module[0].weight.detach().numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(each["2.weight"], found[0]["2.weight"])


@device_support.needs_nvcc
def test_nvcc_builds_the_library_of_a_mesh(tmp_path: Path) -> None:
    """By the command; it needs no NCCL to be built, or to be loaded."""
    module, x = model("images")
    torch.onnx.export(module, (x,), str(tmp_path / "images.onnx"), dynamo=False)
    command = ["compile", str(tmp_path / "images.onnx"), "-o", str(tmp_path / "out"), "--mesh", "tensor=2"]
    done = CliRunner().invoke(cli.app, [*command, "--link", FREE, "--target", TARGET])
    assert done.exit_code == 0, done.output
    (library,) = (tmp_path / "out").glob("lib*.so")
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    assert "_open" in symbols and "nccl" not in symbols and "MPI_" not in symbols
    assert "context.start(" in (tmp_path / "out" / "library.cpp").read_text()


def test_other_gpus_have_no_meshes() -> None:
    module, x = model("images")
    with pytest.raises(UnsupportedError, match="for CPUs and for NVIDIA's GPUs, found one of Apple's GPUs"):
        luminal.compile(module, (x,), mesh={"tensor": 2}, link=FREE, target="metal", emulate=True)
