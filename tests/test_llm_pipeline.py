"""Language models in stages: each rank has the weights and the cache of its layers, and all give what one process
does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import luminal.llm
from luminal import pipelines
from luminal.core.errors import InputError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.program.ir import aligned
from luminal.core.target import AVX2
from luminal.frontends.llm import families, graph
from luminal.frontends.llm.cache import Room
from luminal.llm import reading, tokens
from luminal.runtime import loader
from tests import mpi_support
from tests.language_mesh_support import COUNT, PROMPTS, VOCABULARY
from tests.language_support import write_folder
from tests.llm_support import greedy, head_bound, logits
from tests.mpi_support import MPI
from tests.test_llm_mesh import RANK, models
from tests.test_mesh_mpi import COUNTING

MESHES = {"pipeline": {"pipeline": 2}, "both": {"pipeline": 2, "tensor": 2}}
LAYERS = {"llama": 3, "gpt2": 2, "mixtral": 2}


@cache
def graphs(kind: str, layers: int) -> dict[str, Graph]:
    source = reading.opened(models(kind, layers)[0])
    config, tensors = families.read(source, 64, None)
    return graph.graphs("m", config, tensors, Room(64, 2, 16))


@cache
def compiled(kind: str, mesh: str = "pipeline") -> luminal.llm.LanguageModel:
    made = models(kind, LAYERS[kind])[0]
    return luminal.llm.compile(made, context=128, slots=2, chunk=16, mesh=MESHES[mesh], name="staged")


# ---- where it is cut -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_decoder_is_cut_near_the_middle(kind: str) -> None:
    """Where one value crosses; what belongs to a layer lies on the same stage in each entry, weights and states."""
    found = pipelines.staged(graphs(kind, 4), MESHES["pipeline"], "auto", None, 1)
    width, named = 64 * 4, [set[str](), set[str]()]
    for entry, most in (("decode", 2), ("prefill", 16)):
        staged = found.staged[entry]
        assert [(c.source, c.targets, c.bytes) for c in staged.crossings] == [(0, (1,), most * width)]
        assert 0.4 < staged.seconds[0] / sum(staged.seconds) < 0.6
    for entry, staged in found.staged.items():
        for number, stage in enumerate(staged.stages):
            named[number] |= {*stage.graph.names.values()}
            assert all(found.states[state.name] == number for state in stage.graph.states), entry
    tied = {"transformer.wte.weight"} if kind == "gpt2" else set()
    assert named[0] & named[1] == tied
    assert [found.states[f"{what}_{k}"] for k in (0, 1, 3) for what in ("keys", "values")] == [0, 0, 0, 0, 1, 1]
    assert found.states["keys_2"] == found.states["values_2"] and found.states["logits"] == 1
    if kind == "gpt2":  # whose blocks have nearly all the work: between two of them
        assert {name.split(".")[2] for name in named[0] if ".h." in name} == {"0", "1"}
        assert {name.split(".")[2] for name in named[1] if ".h." in name} == {"2", "3"}


def test_a_rank_has_its_part_of_weights_and_cache_alone() -> None:
    """By the sizes of files, and of the states of a context."""
    folder, parameters = compiled("llama").module.folder, models("llama", LAYERS["llama"])[0].state_dict()
    whole = sum(value.numel() * 4 for value in parameters.values())
    angles = 2 * 128 * 8 * 4  # sines and cosines, on both
    sizes = [(folder / f"staged.weights{end}").stat().st_size - 4096 for end in ("", ".1")]
    assert max(sizes) <= 0.6 * whole and whole <= sum(sizes) <= whole + 2 * angles + 4096
    found = pipelines.staged(graphs("llama", 3), MESHES["pipeline"], "auto", None, 1)
    program = found.joined(compile_graphs("m", found.graphs(0), AVX2), AVX2)
    assert program.pipeline is not None
    held = {state.buffer: program.buffer(state.buffer).size for state in program.states}
    for number, size in enumerate(program.state_sizes):
        own = sum(aligned(held[name]) for name, home in program.pipeline.states.items() if home == number)
        assert 0.2 * sum(held.values()) < own < 0.8 * sum(held.values()) and own - 64 < size <= own


# ---- what the ranks give ---------------------------------------------------------------------------------------------


@mpi_support.needed
@pytest.mark.parametrize(
    ("kind", "mesh"), [("llama", "pipeline"), ("gpt2", "pipeline"), ("mixtral", "pipeline"), ("llama", "both")]
)
def test_ranks_generate_what_one_process_does(kind: str, mesh: str, tmp_path: Path) -> None:
    """Tokens are those of float64, logits within the bound of float32, all to the same bits on each rank, which has no
    other weights than its own; sequences are saved, restored, copied and rewound."""
    folder = compiled(kind, mesh).export(tmp_path / "staged", python_module=False)
    kept = [
        line for line in compiled(kind, mesh).module.explain().splitlines() if "mesh: decode: pipeline: stage" in line
    ]
    assert len(kept) == 2 and not any(" and 0 bytes of states" in line for line in kept)
    ranks = 2 if mesh == "pipeline" else 4
    files = ["staged.weights" + (f".{rank}" if rank else "") for rank in range(ranks)]
    for rank in range(ranks):
        others = [name for name in files if name != files[rank]]
        shutil.copytree(folder, tmp_path / f"of{rank}", ignore=lambda _, names, others=others: {*others} & {*names})
    done = mpi_support.mpirun(ranks, RANK, tmp_path / "of", tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 0, done.stderr
    said = [json.loads((tmp_path / f"said.{rank}.json").read_text()) for rank in range(ranks)]
    found = [np.load(tmp_path / f"logits.{rank}.npy") for rank in range(ranks)]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].view(np.uint32), other.view(np.uint32))
    single, double = models(kind, LAYERS[kind])
    for slot, prompt in enumerate(PROMPTS):
        sequence = greedy(double, np.array(prompt), COUNT)
        assert [row[slot] for row in said[0]["tokens"]] == list(sequence[len(prompt) :])
        wanted = logits(double, sequence)
        error = max(2 * np.abs(logits(single, sequence) - wanted).max(), head_bound(single, wanted))
        assert np.abs(found[0][:, slot] - wanted[len(prompt) - 1 : -1]).max() <= error
    assert len({tuple(each["drawn"]) for each in said}) == 1 and len({each["seed"] for each in said}) == ranks
    assert len(set(said[0]["drawn"])) > COUNT // 2  # with such a temperature


@mpi_support.needed
def test_what_is_sent_is_what_the_plan_says(tmp_path: Path) -> None:
    """A token: the value between the stages, and the logits of a slot, which all ranks get."""
    folder, stand_in = compiled("llama").module.folder, tmp_path / "libcounting.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(COUNTING), "-o", str(stand_in), "-ldl"], check=True)
    lm = compiled("llama")
    lm.export(tmp_path / "staged", python_module=False)
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys, luminal.llm\n"
        f"lm = luminal.llm.load({str(tmp_path / 'staged')!r}, threads=1)\n"
        "lm.decode({0: 5, 1: 6})\nlm.logits(1)\n"
    )
    done = mpi_support.mpirun(
        2, script, mpi=stand_in, REAL_MPI=str(MPI), COUNTED=str(tmp_path / "counted"),
        PYTHONPATH=os.pathsep.join(sys.path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hello = 168 + 56  # bytes by which a rank says where it runs and what it has opened
    sent = {0: 2 * 64 * 4, 1: VOCABULARY * 4}
    assert sorted((tmp_path / "counted").read_text().splitlines()) == sorted(
        f"{2 + 1} {hello + size}" for size in sent.values()
    )
    plan = loader.read_manifest(folder / "manifest.json")["plan"]
    for entry, rank in (("decode", 0), ("logits", 1)):
        said = f"{entry}: pipeline: a rank of stage {rank} sends 1 messages, {sent[rank]} bytes, in a run of 1 micro-"
        assert any(line.startswith(said) for line in plan), plan


@mpi_support.needed
def test_the_command_generates_in_stages(tmp_path: Path) -> None:
    """From a checkpoint, which it compiles once for all ranks; the first one writes."""
    single, double = models("llama")
    single.save_pretrained(tmp_path)
    write_folder(tmp_path)
    command = [sys.executable, "-m", "luminal", "generate", str(tmp_path), "Hello", "--raw", "--mesh", "pipeline=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, "--max-tokens", "6", "--context", "128"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    tokenizer = tokens.load(tmp_path)
    prompt = tokenizer.encode("Hello")
    answer = [int(token) for token in greedy(double, np.array(prompt), 6)[len(prompt) :]]
    ends = [k for k, token in enumerate(answer) if token in tokenizer.stops]
    assert done.stdout == tokenizer.decode(answer[: ends[0] if ends else None]) + "\n"
    assert done.stderr.count("prompt of") == 1


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_has_no_stages_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected at most \d+ stages, one for each step of the model, found 4000"):
        pipelines.staged(graphs("llama", 3), {"pipeline": 4000}, "auto", None, 1)
    with pytest.raises(InputError, match="micro_batches: decode: expected a model without states, found 'keys_0'"):
        pipelines.staged(graphs("llama", 3), {"pipeline": 2}, "auto", None, 2)
