"""Tied weights are stored once: a table that is looked up in lies in the panels that a contraction reads."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import luminal
from luminal.codegen import weights as files
from luminal.core import interp, ir, movement, ops, traverse, types
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.numeric import quantise
from luminal.core.schedule.program.ir import Launch, Program
from luminal.core.target import Target
from luminal.frontends.fx import importer as fx
from luminal.module import Module
from tests.schedule_support import run_program
from tests.test_quantise import rounded

WORDS, WIDTH, INNER = 1300, 64, 640
TABLE = WORDS * WIDTH  # elements
BITS = {None: 32, "int8": 8, "int4": 4}


class Language(nn.Module):
    """A table of words, two layers, and scores of the words: of all positions, or of the last."""

    def __init__(self, last: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.last = last

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(words))
        x = x + self.down(torch.relu(self.up(x)))
        return self.head(x[:, -1:] if self.last else x)


class Bag(nn.Module):
    """The sum of rows of the table of ``of``."""

    def __init__(self, of: Language) -> None:
        super().__init__()
        self.words = of.words

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.words(words).sum(1)


def language(**options: Any) -> Language:
    return Language(**options).eval()


def words(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, WORDS, shape, generator=torch.Generator().manual_seed(seed))


def expected(model: nn.Module, given: torch.Tensor, scheme: str | None = None) -> torch.Tensor:
    """What PyTorch computes with the table rounded."""
    table = dict(model.named_parameters())["words.weight"]
    exact = table.detach().clone()
    with torch.no_grad():
        if scheme is not None:
            table.copy_(torch.from_numpy(rounded(exact.numpy(), scheme)))
        result: torch.Tensor = model(given)
        table.copy_(exact)
    return result


def close(found: Any, wanted: torch.Tensor) -> None:
    wanted = wanted.detach()
    bound = 2e-5 * float(wanted.abs().max())
    np.testing.assert_allclose(np.asarray(found), wanted.numpy(), rtol=0, atol=bound)


def tables(program: Program) -> list[int]:
    """The bytes of each constant that has a row for every word: the table, or its scales."""
    stored = [
        b for b in program.buffers if b.space == "constant" and not {"up", "down"}.intersection(b.name.split("."))
    ]
    return [b.size for b in stored if isinstance(b.size, int) and b.size * 8 / b.dtype.bits >= WORDS]


def is_stored_once(program: Program, scheme: str | None) -> bool:
    """Whether the constants with a row for every word take the bytes of one table, which a panel may fill up."""
    scales = {None: 0, "int8": WORDS * 4, "int4": TABLE // 32 * 4}[scheme]
    found, most = tables(program), TABLE * BITS[scheme] // 8 + scales
    return len(found) == (1 if scheme is None else 2) and most <= sum(found) < 1.05 * most


def values_of_table_size(program: Program) -> list[str]:
    """What a run computes and stores that is as large as the table."""
    sizes = [(b.name, b.size * 8 // b.dtype.bits) for b in program.buffers if b.space != "constant"]  # type: ignore[operator]
    return [name for name, size in sizes if size >= TABLE]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
def test_a_module(scheme: str | None, last: bool) -> None:
    model = language(last=last)
    module = luminal.compile(model, (words(2, 3),), weights=scheme, threads=2)
    assert isinstance(module, Module) and module.program is not None
    close(module(words(2, 3)), expected(model, words(2, 3), scheme))
    assert is_stored_once(module.program, scheme)
    assert not values_of_table_size(module.program)
    rest = 4096 + 4 * (2 * WIDTH + (WIDTH + 32) * INNER + (INNER + 32) * WIDTH) + 64 * 8
    (file,) = module.folder.glob("*.weights")
    assert file.stat().st_size < sum(tables(module.program)) + rest
    names = [row["name"] for row in module.library.metadata["constants"]]
    assert {"words.weight", "head.weight"} & {*names}
    assert module.approximated("weights") == (0 if scheme is None else 2)
    with pytest.raises(IndexError):
        module(torch.full((2, 3), WORDS))


@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
def test_symbolic_sizes(scheme: str | None) -> None:
    model = language()
    dims = {"words": {0: torch.export.Dim("batch", min=1, max=4), 1: torch.export.Dim("length", min=1, max=16)}}
    module = luminal.compile(model, (words(2, 3),), dims=dims, weights=scheme, threads=2)
    assert isinstance(module, Module) and module.program is not None
    for shape in ((1, 1), (4, 16), (3, 5)):
        close(module(words(*shape)), expected(model, words(*shape), scheme))
    assert is_stored_once(module.program, scheme)


@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
def test_entries(scheme: str | None) -> None:
    """Many words, and one, after each of which all that is said is the next."""
    model = language(last=True)
    dims = {"many": {"words": {1: torch.export.Dim("length", min=2, max=16)}}}
    inputs = {"many": (words(1, 5),), "one": (words(1, 1),)}
    module = luminal.compile({"many": model, "one": model}, inputs, dims=dims, weights=scheme, name="language")
    assert isinstance(module, Module) and module.program is not None
    for entry, shape in (("many", (1, 2)), ("many", (1, 16)), ("one", (1, 1))):
        close(module[entry](words(*shape)), expected(model, words(*shape), scheme))
    assert is_stored_once(module.program, scheme)


@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
def test_entries_of_one_row_and_of_several(scheme: str | None) -> None:
    """One row has tiles of more columns to choose from than several rows: both read panels of as many."""
    model = language(last=True)
    dims = {"many": {"words": {1: torch.export.Dim("length", min=2, max=16)}},
            "some": {"words": {0: torch.export.Dim("batch", min=1, max=8)}}}  # fmt: skip
    inputs = {"many": (words(1, 5),), "some": (words(3, 1),)}
    module = luminal.compile({"many": model, "some": model}, inputs, dims=dims, weights=scheme, name="language")
    assert isinstance(module, Module) and module.program is not None
    for entry, shape in (("many", (1, 16)), ("some", (1, 1)), ("some", (8, 1))):
        close(module[entry](words(*shape)), expected(model, words(*shape), scheme))
    assert is_stored_once(module.program, scheme)


@pytest.mark.parametrize("first", ["bag", "scores"])
@pytest.mark.parametrize("scheme", [None, "int8"])
def test_an_entry_that_only_looks_up(scheme: str | None, first: str) -> None:
    model = language(last=True)
    models = {"bag": Bag(model).eval(), "scores": model}
    models = dict(sorted(models.items(), key=lambda item: item[0] != first))
    inputs = {"bag": (words(1, 1),), "scores": (words(1, 1),)}
    module = luminal.compile(models, inputs, weights=scheme, name="language")
    assert isinstance(module, Module) and module.program is not None
    assert is_stored_once(module.program, scheme)
    names = {row["name"] for row in module.library.metadata["constants"]}
    assert names & {"words.weight", "head.weight"} and not names & {"words.weight.1", "head.weight.1"}
    for entry, source in models.items():
        close(module[entry](words(1, 1)), expected(source, words(1, 1), scheme))
        assert module[entry].approximated("weights") > 0 or scheme is None


def greedy(model: Language) -> nn.Module:
    """The words that a model says after one, each the likeliest."""

    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, word: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            def step(i: torch.Tensor, word: torch.Tensor, total: torch.Tensor) -> Any:
                scores = self.model(word)
                return i + 1, scores.argmax(-1), total + scores.sum()

            start = torch.zeros((), dtype=torch.int64), word, torch.zeros(())
            return while_loop(lambda i, word, total: i < count, step, start)[1:]  # type: ignore[no-any-return]

    return Greedy().eval()


def test_a_loop_that_says_one_word_after_another() -> None:
    model = language()
    with torch.no_grad():
        model.down.weight.mul_(3)  # else it repeats itself
    source, given = greedy(model), (words(2, 1), torch.tensor(5))
    module = luminal.compile(source, given, threads=1)
    assert isinstance(module, Module) and module.program is not None
    said, total = module(*given)
    wanted, sum_ = source(*given)
    np.testing.assert_array_equal(np.asarray(said), wanted.numpy())
    np.testing.assert_allclose(float(total), sum_.item(), rtol=1e-4)
    assert is_stored_once(module.program, None)


# ---- targets -------------------------------------------------------------------------------------------------------


def graph_of(table: Node, rows: int, *, twice: bool = False) -> Graph:
    """Scores of the words at ``rows`` places; ``twice``: the table is multiplied with a number of the run, too."""
    at = ir.input_("at", (rows,), types.i64)
    found = ir.gather(table, at, 0)
    wide = movement.transpose(ir.cast(table, types.f32), 0, 1)
    outputs: tuple[tuple[str, Node], ...] = (("y", contraction.matmul(ir.cast(found, types.f32), wide)),)
    inputs: tuple[Node, ...] = (at,)
    if twice:
        scale = ir.input_("scale", (), types.f32)
        inputs, outputs = (at, scale), (*outputs, ("z", ir.expand(scale, table.shape) * table))
    return Graph("scores", inputs, outputs, ())


def matrix(dtype: types.DType) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((WORDS, 32)).astype(np.float32).astype(dtype.numpy)


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        (targets.X86_64, types.f32), (targets.AVX512, types.f32), (targets.AVX512, types.f16),
        (targets.AVX512_BF16, types.bf16), (targets.AVX512_AMX, types.bf16),
        (targets.GPUS["cuda:sm_80"], types.f32), (targets.GPUS["cuda:sm_90"], types.bf16),
    ],
    ids=str,
)  # fmt: skip
def test_targets(target: Target, dtype: types.DType) -> None:
    graph = graph_of(ir.constant(matrix(dtype)), 3)
    program = compile_graph(graph, target)
    (stored,) = [b for b in program.buffers if b.space == "constant"]
    assert stored.dtype == dtype and TABLE // 2 <= stored.size * 8 // dtype.bits < 1.1 * TABLE // 2  # type: ignore[operator]
    at = np.array([0, WORDS - 1, 77])
    exact = matrix(dtype).astype(np.float64)
    found = run_program(program, {"at": at})["y"]
    wanted = exact[at] @ exact.T
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_a_table_that_something_else_reads_has_rows_too() -> None:
    graph = graph_of(ir.constant(matrix(types.f32)), 3, twice=True)
    program = compile_graph(graph, targets.AVX2)
    (rows,) = (b.name for b in program.buffers if b.space == "constant" and b.shape == (WORDS, 32))
    assert len([b for b in program.buffers if b.space == "constant"]) == 2
    read = [step.arguments for step in program.entries[0].region.steps if isinstance(step, Launch)]
    looking_up = [arguments for arguments in read if "at" in arguments]
    assert looking_up and all(rows in arguments for arguments in looking_up)


@pytest.mark.parametrize(("apart", "count"), [(WORDS, 1), (WORDS + 1, 2)])
def test_rows_that_are_looked_up_often_are_stored(apart: int, count: int) -> None:
    """There are as many products for each element that is looked up as there are words."""
    costs = targets.AVX2.costs
    target = replace(targets.AVX2, costs=replace(costs, memory=replace(costs.memory, apart=apart)))
    program = compile_graph(graph_of(ir.constant(matrix(types.f32)), 3), target)
    assert len([b for b in program.buffers if b.space == "constant"]) == count


# ---- narrow tables -------------------------------------------------------------------------------------------------


class Narrow(nn.Module):
    """A table of integers with a scale for each row, two in a byte if ``halves``; a function of it is looked up in."""

    def __init__(self, halves: bool = False, function: Any = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.halves, self.function = halves, function or (lambda x: x)
        width = WIDTH // 2 if halves else WIDTH
        self.bytes: torch.Tensor
        self.scale: torch.Tensor
        self.register_buffer("bytes", torch.randint(0, 256, (WORDS, width), dtype=torch.uint8, generator=generator))
        self.register_buffer("scale", torch.rand(WORDS, 1, generator=generator) / 100)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        whole = self.bytes
        if self.halves:
            whole = torch.stack([whole & 15, whole >> 4], -1).reshape(WORDS, WIDTH)
        table = self.function((whole.float() - 7) * self.scale)
        return nn.functional.embedding(words, table) + 1


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("target", ["host", "cuda:sm_90"])
def test_a_narrow_table_is_decoded_where_it_is_read(target: str, halves: bool) -> None:
    model, given = Narrow(halves).eval(), words(2, 3)
    module = luminal.compile(model, (given,), target=target, emulate=target != "host", threads=1)
    assert isinstance(module, Module) and module.program is not None
    close(module(given), model(given))
    assert not values_of_table_size(module.program) and len(module.program.kernels) == 1
    stored = sum(b.size for b in module.program.buffers if b.space == "constant")  # type: ignore[misc]
    assert stored <= TABLE + WORDS * 4


@pytest.mark.parametrize(("rows", "whole"), [(3, False), (WORDS, False), (WORDS + 1, True)])
def test_what_takes_long_is_not_computed_more_often_than_the_table_has_rows(rows: int, whole: bool) -> None:
    model, given = Narrow(function=torch.exp).eval(), words(rows)
    program = compile_graph(fx.load(model, (given,), name="narrow"), targets.AVX2)
    assert (len(program.kernels) == 2) == whole
    found = run_program(program, {program.entries[0].inputs[0].name: given.numpy()}) if rows == 3 else {}
    for one in found.values():
        close(one, model(given))


def test_a_table_that_is_looked_up_and_summed_is_stored() -> None:
    """Only what nothing but look-ups reads is computed where they read it."""
    at = ir.input_("at", (3,), types.i64)
    codes = ir.constant(np.arange(WORDS * 64, dtype=np.int8).reshape(WORDS, 64))
    scale = ir.input_("scale", (WORDS, 64), types.f32)
    table = ir.cast(codes, types.f32) * ir.constant(np.linspace(1, 2, WORDS, dtype=np.float32)[:, None].repeat(64, 1))
    graph = Graph("both", (at, scale), (("y", ir.gather(table, at, 0)), ("z", table * scale), ("table", table)), ())
    program = compile_graph(graph, targets.AVX2)
    given = {"at": np.array([5, 0, 7]), "scale": np.ones((WORDS, 64), np.float32)}
    wanted = interp.run(graph, given).outputs
    for found, one in zip(run_program(program, given).values(), wanted, strict=True):
        np.testing.assert_array_equal(found, one)
    assert values_of_table_size(program)


# ---- replaced weights ----------------------------------------------------------------------------------------------


def test_replaced_weights_are_looked_up_and_multiplied_with(tmp_path: Path) -> None:
    model = language()
    module = luminal.compile(model, (words(2, 3),), name="language", threads=1)
    folder = tmp_path / "doubled"
    shutil.copytree(module.folder, folder)
    (place,) = (row for row in module.library.metadata["constants"] if row["bytes"] >= TABLE * 4)
    path = folder / "language.weights"
    content = bytearray(path.read_bytes())
    start, end = (files.PAYLOAD_OFFSET + place["offset"] + at for at in (0, place["bytes"]))
    content[start:end] = (2 * np.frombuffer(content[start:end], np.float32) ** 3).tobytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    source, identity = (bytes.fromhex(manifest[key]) for key in ("source_hash", "content_id"))
    payload = content[files.PAYLOAD_OFFSET :]
    summed = files.checksum(np.frombuffer(payload, np.uint64))
    path.write_bytes(files.header(source, identity, len(payload), summed) + payload)
    with torch.no_grad():
        model.words.weight.copy_(2 * model.words.weight**3)
    close(luminal.load(folder)(words(2, 3)), model(words(2, 3)))


# ---- rounding ------------------------------------------------------------------------------------------------------


def test_a_matrix_that_is_rounded_is_looked_up_in_rounded() -> None:
    graph = fx.load(language(), (words(2, 3),), name="language")
    for scheme in ("int8", "int4"):
        made = quantise.quantised(graph, quantise.ALL[scheme])
        large = [n for n in traverse.topological(made.roots) if n.op is ops.CONSTANT and n.size == TABLE]
        assert [n.dtype.bits for n in large] == [BITS[scheme]]
    assert [n.dtype for n in traverse.topological(graph.roots) if n.op is ops.CONSTANT and n.size == TABLE] == [
        types.f32
    ]


# ---- models of transformers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["GPT2", "Gemma"])
@pytest.mark.parametrize("scheme", [None, "int8"])
def test_language_models_of_transformers(kind: str, scheme: str | None) -> None:
    import transformers

    own = {"n_positions": 16, "n_embd": WIDTH, "n_layer": 1, "n_head": 4, "n_inner": INNER}
    if kind == "Gemma":
        own = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": 4}
        own |= {"num_key_value_heads": 2, "head_dim": 16}
    config = getattr(transformers, f"{kind}Config")(vocab_size=WORDS, use_cache=False, tie_word_embeddings=True, **own)
    torch.manual_seed(0)
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else "GemmaForCausalLM")(config).eval()
    table = model.get_input_embeddings().weight
    assert table is model.get_output_embeddings().weight

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.model(words).logits
            return scores

    given = words(1, 6)
    graph = fx.load(Scores().eval(), (given,), name="scores")
    if scheme is not None:
        graph = quantise.quantised(graph, quantise.ALL[scheme])
    program = compile_graph(graph, targets.AVX2)
    shapes = [b.shape for b in program.buffers if b.space == "constant" and b.size * 8 // b.dtype.bits >= TABLE]  # type: ignore[operator]
    assert len(shapes) == 1 and len(shapes[0]) == 3  # in panels
    assert not values_of_table_size(program)
    (wanted,) = interp.run(graph, {graph.inputs[0].attr.name: given.numpy()}).outputs
    if scheme is None:
        close(wanted, model(given).logits)
    module = luminal.compile(Scores().eval(), (given,), weights=scheme, threads=1)
    close(module(given), torch.from_numpy(wanted))
