"""Language models on a mesh of processes: each has its part of the weights and of the cache, and all give what one
process does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import transformers
from typer.testing import CliRunner

import luminal.llm
from luminal import api, cli, launch, meshes
from luminal.core.errors import InputError
from luminal.core.schedule.numeric import quantise
from luminal.frontends.llm import blocks, families, graph
from luminal.frontends.llm.cache import Room
from luminal.llm import reading, tokens
from tests import mpi_support
from tests.drawn import draw
from tests.language_mesh_support import COUNT, PROMPTS, VOCABULARY
from tests.language_support import write_folder
from tests.llm_support import InFloat64, greedy, head_bound, logits
from tests.test_mesh import FREE

RANK = Path(__file__).with_name("rank_of_language_model.py")
MESH = {"tensor": 2}


EXPERTS = {f"model.layers.0.mlp.experts.{name}": {"tensor": 0} for name in ("gate_up_proj", "down_proj")}
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


@cache
def models(kind: str = "llama", layers: int = 1) -> tuple[Any, Any]:
    """A model in float32 and the same in float64."""
    sizes = {**SIZES, "num_hidden_layers": layers}
    eager = {"attn_implementation": "eager"}
    if kind == "mixtral":
        config = transformers.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
        eager["experts_implementation"] = "eager"
    elif kind == "gpt2":
        sizes |= {"n_embd": 64, "n_layer": layers, "n_head": 4, "n_positions": 128}
        config = transformers.GPT2Config(**sizes)
    else:
        config = transformers.LlamaConfig(**sizes)
    single = transformers.AutoModelForCausalLM.from_config(config, **eager).eval()
    draw(single, 3, 0.25)
    with InFloat64():
        double = transformers.AutoModelForCausalLM.from_config(config, **eager).double().eval()
    double.load_state_dict(single.state_dict())
    return single, double


@cache
def compiled(kind: str = "llama") -> luminal.llm.LanguageModel:
    """On two ranks; experts are divided by their number."""
    shard = EXPERTS if kind == "mixtral" else "auto"
    lm = luminal.llm.compile(models(kind)[0], context=128, slots=2, chunk=16, mesh=MESH, shard=shard, name="divided")
    files = write_folder(Path(mkdtemp(prefix="luminal-files-")))
    lm.files |= {name: (files / name).read_bytes() for name in tokens.FILES if (files / name).is_file()}
    return lm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled().export(tmp_path_factory.mktemp("exported") / "divided", python_module=False)


def test_heads_are_divided_and_entries_share_what_a_rank_has() -> None:
    """Megatron's plan, in each entry that reads the matrices, over a cache of which a rank has half of the heads."""
    plan = compiled().module.manifest["plan"]
    for entry in ("decode", "prefill"):
        for name, cut in {
            "self_attn.q_proj": "axis 0 in parts of 32", "self_attn.k_proj": "axis 0 in parts of 16",
            "self_attn.v_proj": "axis 0 in parts of 16", "self_attn.o_proj": "axis 1 in parts of 32",
            "mlp.gate_proj": "axis 0 in parts of 64", "mlp.up_proj": "axis 0 in parts of 64",
            "mlp.down_proj": "axis 1 in parts of 64",
        }.items():  # fmt: skip
            assert f"{entry}: model.layers.0.{name}.weight: {cut} along tensor" in plan
    for entry in ("decode", "prefill", "read", "write"):
        for name in ("keys_0", "values_0"):
            assert f"{entry}: {name}: axis 0 in parts of 1 along tensor" in plan, plan
    states = {state.name: state.shape for state in compiled().module.interface.states}
    assert states["keys_0"][0] == states["values_0"][0] == 1


@pytest.mark.parametrize(("kind", "weights"), [("q8_0", None), (None, "int8"), (None, "int4")])
def test_rounded_weights_are_divided_as_they_are(
    kind: str | None, weights: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers of a matrix are cut where the matrix would be: a rank has about half of them."""
    monkeypatch.setattr(quantise, "LEAST_ELEMENTS", 1)
    source = reading.opened(models()[0])
    config, tensors = families.read(source, 64, blocks.ENCODED[kind] if kind else None)
    graphs = {"decode": graph.graphs("m", config, tensors, Room(64))["decode"]}
    if weights:
        _, choices = api.options(weights=weights, named=("decode",), target="avx2")
        graphs = api._approximated(graphs, choices, api.options("avx2")[0], api.Stages(None))
    parts = meshes.plans(graphs, MESH, link=FREE)["decode"]
    narrow = [weight for weight in parts.weights.values() if weight.constant.dtype.bits <= 8]
    whole = sum(weight.constant.attr.nbytes for weight in narrow)
    assert whole and sum(weight.of(1).attr.nbytes for weight in narrow) <= 0.55 * whole


@pytest.mark.parametrize("kind", [None, "q8_0"])
def test_experts_are_divided_by_their_number_in_each_entry(kind: str | None) -> None:
    """A rank has half of them and no other copy, rounded or not. Of tokens, it computes what is routed to its own; of
    prompts, what is routed to each of its own."""
    source = reading.opened(models("mixtral")[0])
    config, tensors = families.read(source, 64, blocks.ENCODED[kind] if kind else None)
    graphs = graph.graphs("m", config, tensors, Room(64))
    parts = meshes.plans({entry: graphs[entry] for entry in ("decode", "prefill")}, MESH, EXPERTS, FREE)
    for entry, part in parts.items():
        stacked = [
            weight for weight in part.weights.values() if weight.constant.shape[0] == 4 and weight.constant.rank > 2
        ]
        cuts = [[str(cut) for _, cut in weight.cuts] for weight in stacked]
        assert cuts == [["axis 0 in parts of 2"]] * (4 if kind else 2), (entry, cuts)
    assert [size.name for size in parts["decode"].graph.measured] == ["owned"]
    assert [size.name for size in parts["prefill"].graph.measured] == ["routed"]


@mpi_support.needed
@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_ranks_generate_what_one_process_does(kind: str, tmp_path: Path) -> None:
    """Tokens are those of float64, logits within the bound of float32, all to the same bits on each rank. A rank has
    no other weights than its own."""
    folder = compiled(kind).export(tmp_path / "divided", python_module=False)
    for rank, others in enumerate((".weights.1", ".weights")):
        shutil.copytree(folder, tmp_path / f"of{rank}", ignore=shutil.ignore_patterns(f"*{others}"))
    done = mpi_support.mpirun(2, RANK, tmp_path / "of", tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 0, done.stderr
    said = [json.loads((tmp_path / f"said.{rank}.json").read_text()) for rank in range(2)]
    found = [np.load(tmp_path / f"logits.{rank}.npy") for rank in range(2)]
    np.testing.assert_array_equal(found[0].view(np.uint32), found[1].view(np.uint32))
    single, double = models(kind)
    for slot, prompt in enumerate(PROMPTS):
        sequence = greedy(double, np.array(prompt), COUNT)
        assert [row[slot] for row in said[0]["tokens"]] == list(sequence[len(prompt) :])
        wanted = logits(double, sequence)
        error = max(2 * np.abs(logits(single, sequence) - wanted).max(), head_bound(single, wanted))
        assert np.abs(found[0][:, slot] - wanted[len(prompt) - 1 : -1]).max() <= error
    assert said[0]["seed"] != said[1]["seed"] and said[0]["drawn"] == said[1]["drawn"]
    assert len(set(said[0]["drawn"])) > COUNT // 2  # with such a temperature


@mpi_support.needed
def test_the_command_starts_the_ranks(folder: Path) -> None:
    """One answer is written, by the first rank; the prompt may come by standard input."""
    command = [sys.executable, "-m", "luminal", "generate", str(folder), "-", "--raw", "--max-tokens", "12"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, input="Hello", capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    lm = compiled()
    prompt = lm.tokenizer.encode("Hello")
    sequence = greedy(models()[1], np.array(prompt), 12)[len(prompt) :]
    ends = [k for k, token in enumerate(sequence) if token in lm.tokenizer.stops]
    answer = sequence[: ends[0] if ends else None]
    assert done.stdout == lm.tokenizer.decode([int(token) for token in answer]) + "\n"
    assert done.stderr.count("prompt of") == 1


def test_what_runs_on_one_process_alone_refuses_a_mesh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("chat", "serve"):
        found = CliRunner().invoke(cli.app, [command, str(folder)])
        assert found.exit_code == 2 and "compiled for a mesh of 2 processes" in found.stderr.replace("\n", " ")
    found = CliRunner().invoke(cli.app, ["generate", str(folder), "x", "--mesh", "tensor=2", "--threads", "1"])
    assert found.exit_code == 2 and "--mesh" in found.stderr and "compiled already" in found.stderr.replace("\n", " ")
    monkeypatch.setenv("PMI_RANK", "1")
    found = CliRunner().invoke(cli.app, ["generate", str(folder), "-"], input="Hello")
    assert found.exit_code == 2 and "first rank alone" in found.stderr.replace("\n", " ")


def test_which_rank_this_is_and_what_starts_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in launch.RANKS:
        monkeypatch.delenv(name, raising=False)
    assert launch.rank() is None
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    assert launch.rank() == 3
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="there is no mpirun"):
        launch.start(2, ["true"])
