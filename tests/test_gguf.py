"""GGUF: kinds of blocks against the package ``gguf``, files that it writes, models by name, and damaged files."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

import luminal
from luminal.core import interp, ir, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.errors import LuminalError, ModelError, UnsupportedError
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.program.ir import Program
from luminal.frontends.llm import blocks, families, gguf_names
from luminal.frontends.llm.blocks import Kind
from luminal.frontends.llm.checkpoint import Module
from luminal.frontends.llm.files import Blocked, Floats, Transposed, rounded
from luminal.frontends.llm.gguf import Gguf, Model
from luminal.module import Module as LoadedModule
from tests import gguf_support
from tests.schedule_support import contracts

Array = np.ndarray[Any, Any]
KINDS = [pytest.param(kind, id=name) for name, kind in blocks.ALL.items()]


def value(node: Node) -> Array:
    (found,) = interp.evaluate([node])
    return found


def random_blocks(kind: Kind, *shape: int, seed: int = 0) -> Array:
    """Blocks of any bytes, but that their numbers are of moderate size."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 256, (*shape, kind.layout.itemsize)).astype(np.uint8).view(kind.layout)[..., 0]
    for name in {"scale", "least"}.intersection(kind.layout.names or ()):
        found[name] = rng.uniform(-0.02, 0.02, shape).astype(np.float16)
    return found


def same(found: Array, wanted: Array) -> None:
    """Equal bits, but that any NaN is as good as another."""
    assert found.dtype == wanted.dtype == np.float32 and found.shape == wanted.shape
    differ = (found.view(np.uint32) != wanted.view(np.uint32)) & ~(np.isnan(found) & np.isnan(wanted))
    assert not differ.any(), (found[differ][:4], wanted[differ][:4])


# ---- kinds ---------------------------------------------------------------------------------------------------------


def test_the_table_has_gguf_s_numbers_and_sizes() -> None:
    for kind in blocks.ALL.values():
        known = Type[kind.name]
        assert known.value == kind.number
        assert gguf.GGML_QUANT_SIZES[known] == (kind.size, kind.layout.itemsize)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_blocks_are_decoded_to_the_bits_of_the_reference(kind: Kind) -> None:
    """Any bytes; of one byte all values in all places; zeros, infinities, NaN and subnormals as scales."""
    rng = np.random.default_rng(0)
    size = kind.layout.itemsize
    every = np.repeat(np.arange(256, dtype=np.uint8)[:, None], size, 1)
    mixed = rng.integers(0, 256, (64, size)).astype(np.uint8)
    extreme = rng.integers(0, 256, (64, size)).astype(np.uint8).view(kind.layout)[:, 0]
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 6e-8, -6e-5, 65504, 1], np.float16)
    for name in {"scale", "least"}.intersection(kind.layout.names or ()):
        extreme[name] = rng.choice(special, 64)
    raw = np.concatenate([every, mixed, extreme.view(np.uint8).reshape(64, size)]).reshape(8, -1)
    found = Blocked((8, 48 * kind.size), kind, lambda: raw.view(kind.layout))
    same(value(found.node()), gguf.quants.dequantize(raw, Type[kind.name]))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_hardly_larger_than_the_file(kind: Kind) -> None:
    raw = random_blocks(kind, 4, 8)
    kept = sum(np.ascontiguousarray(kind.taken(raw, part)).nbytes for part in kind.kept)
    assert raw.nbytes <= kept <= 1.03 * raw.nbytes


def floats() -> Array:
    """Rows of normal numbers of many sizes, of zeros, of equal numbers, of halves that must be rounded, and of numbers
    so small that the scale is none."""
    rng = np.random.default_rng(0)
    found = rng.standard_normal((60, 256)).astype(np.float32) * np.float32(10) ** rng.integers(-6, 4, (60, 1))
    found[3] = 0
    found[4] = -7.25
    found[5] = np.tile(np.arange(-16, 16, dtype=np.float32) / 2, 8)
    found[5, ::32] = 127
    found[6] = 1e-42
    found[7, ::2] = 0
    return found.astype(np.float32)


@pytest.mark.parametrize("name", blocks.ENCODED)
@pytest.mark.filterwarnings("ignore:(divide by zero|overflow|invalid value) encountered")
def test_floats_are_rounded_to_the_bytes_of_the_reference(name: str) -> None:
    kind, weight = blocks.ENCODED[name], floats()
    found = rounded(Floats(weight.shape, lambda: weight), kind)
    assert isinstance(found, Blocked)
    wanted = gguf.quants.quantize(weight, Type[kind.name])
    differ = found.blocks().view(np.uint8).reshape(60, -1) != wanted
    differ[6] = False  # 1 / scale is no float, and what the reference makes of that is chance; the scale is 0
    assert not differ.any()
    np.testing.assert_array_equal(value(found.node())[6], 0)


def test_columns_are_rounded_where_these_are_summed() -> None:
    weight = floats()[:32]
    found = rounded(Floats(weight.shape, lambda: weight), blocks.Q8_0, axis=0)
    by_rows = rounded(Floats((256, 32), lambda: np.ascontiguousarray(weight.T)), blocks.Q8_0)
    assert isinstance(found, Transposed) and found.shape == weight.shape
    same(value(found.node()), np.ascontiguousarray(value(by_rows.node()).T))


def test_what_does_not_fill_blocks_or_is_in_blocks_stays() -> None:
    vector, narrow = (Floats(shape, lambda: np.zeros(0)) for shape in ((64,), (64, 31)))
    of_blocks = Blocked((4, 256), blocks.Q6_K, lambda: random_blocks(blocks.Q6_K, 4, 1))
    for weight in (vector, narrow, of_blocks):
        assert rounded(weight, blocks.Q8_0) is weight


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e9])
def test_numbers_that_no_block_holds_are_refused(wrong: float) -> None:
    weight = floats()
    weight[9, 5] = wrong
    with np.errstate(all="ignore"), pytest.raises(ModelError, match="has numbers that Q8_0 cannot hold"):
        rounded(Floats(weight.shape, lambda: weight), blocks.Q8_0).node()


# ---- products ------------------------------------------------------------------------------------------------------


def weights(kind: Kind, rows: int, columns: int, seed: int = 0) -> tuple[Array, Node]:
    raw = random_blocks(kind, rows, columns // kind.size, seed=seed)
    return raw, Blocked((rows, columns), kind, lambda: raw).node()


def stored_bytes(program: Program) -> int:
    return sum(b.size for b in program.buffers if b.space == "constant")  # type: ignore[misc]


@pytest.mark.parametrize("looked_up", [False, True], ids=["product", "table"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_row_and_many_read_the_blocks_as_they_lie(kind: Kind, looked_up: bool) -> None:
    """One copy serves a prompt, one token, several sequences, and look-ups of what the last product multiplies with."""
    raw, weight = weights(kind, 1024, 1024)
    graphs = {}
    for entry, rows in (("one", 1), ("prompt", sym.var("rows", 1, 64)), ("several", 4)):
        if looked_up:
            x = ir.input_("at", (rows,), types.i64)
            y = contraction.linear(ir.gather(weight, x, 0) * 2, weight, None)
        else:
            x = ir.input_("x", (rows, 1024), types.f32)
            y = contraction.linear(x, weight, None)
        graphs[entry] = Graph("products", (x,), (("y", y),), tuple(sym.variables(rows)))
    program = compile_graphs("products", graphs, targets.AVX512)
    assert len({tile.prologue for tile in contracts(program)} - {None}) >= 1
    assert stored_bytes(program) < 1.1 * raw.nbytes
    every = [b.size for b in program.buffers if b.space != "constant" and isinstance(b.size, int)]
    assert max(every, default=0) < raw.nbytes


def test_a_library_multiplies_with_blocks_of_every_kind() -> None:
    """At one row and at 17, against float64 over the decoded weights."""
    inputs: list[Node] = []
    outputs: list[tuple[str, Node]] = []
    exact: list[Array] = []
    for kind in blocks.ALL.values():
        raw, weight = weights(kind, 72, 512)
        real = gguf.quants.dequantize(raw.view(np.uint8).reshape(72, -1), Type[kind.name])
        for rows in (1, 17):
            inputs.append(ir.input_(f"x{len(inputs)}", (rows, 512), types.f32))
            outputs.append((f"{kind}_{rows}", contraction.linear(inputs[-1], weight, None)))
            exact.append(real.astype(np.float64))
    graph = Graph("kinds", tuple(inputs), tuple(outputs), ())
    module = luminal.compile(graph, threads=2)
    assert isinstance(module, LoadedModule) and module.program is not None
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(x.shape).astype(np.float32) for x in inputs]
    for (name, _), x, real, found in zip(outputs, given, exact, module(*given), strict=True):
        wanted, size = x.astype(np.float64) @ real.T, np.abs(x) @ np.abs(real).T
        assert (np.abs(found - wanted) <= 2 * np.sqrt(512) * types.f32.eps * size).all(), name
    assert stored_bytes(module.program) < 1.4 * sum(
        72 * 512 // kind.size * kind.layout.itemsize for kind in blocks.ALL.values()
    )  # scales of so small matrices are kept in float32


# ---- files ---------------------------------------------------------------------------------------------------------


def stored(seed: int = 0) -> dict[str, tuple[Type, Array]]:
    """A tensor of every kind, and of floats with one to four axes."""
    rng = np.random.default_rng(seed)
    found: dict[str, tuple[Type, Array]] = {}
    for kind in blocks.ALL.values():
        raw = random_blocks(kind, 3, 2, seed=seed)
        found[f"blocks.{kind}"] = Type[kind.name], raw.view(np.uint8).reshape(3, -1)
    for rank in range(1, 5):
        array = rng.standard_normal((2, 3, 4, 5)[:rank]).astype(np.float32)
        found[f"floats.{rank}"] = Type.F32, array
    found["half"] = Type.F16, rng.standard_normal((3, 7)).astype(np.float16)
    found["brain"] = Type.BF16, gguf.quants.quantize(rng.standard_normal((3, 8)).astype(np.float32), Type.BF16)
    return found


def file(folder: Path, seed: int = 0, alignment: int | None = None) -> Path:
    path = folder / "some.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{name}")(f"number.{name}", 77)
    writer.add_float32("number.float32", 0.5)
    writer.add_float64("number.float64", -2.25)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve\n🙂")
    writer.add_array("words", ["a", "", "▁the"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("reals", [1.5, -2.5])
    gguf_support.add(writer, stored(seed))
    return path


@pytest.mark.parametrize("alignment", [None, 8, 4096])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_files_of_the_reference_are_read(tmp_path: Path, alignment: int | None) -> None:
    found = Gguf(file(tmp_path, alignment=alignment))
    metadata = found.metadata
    assert all(metadata[f"number.{name}"] == 77 for name in ("uint8", "int16", "uint32", "int64"))
    assert (metadata["number.float32"], metadata["number.float64"], metadata["yes"]) == (0.5, -2.25, True)
    assert (metadata["text"], metadata["words"]) == ("naïve\n🙂", ["a", "", "▁the"])
    assert metadata["numbers"].tolist() == [1, -2, 3] and metadata["reals"].tolist() == [1.5, -2.5]
    for name, (kind, data) in stored().items():
        same(value(found.weight(name).node()), gguf.quants.dequantize(data, kind))


def test_tensors_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    path = file(tmp_path)
    found = Gguf(path)
    weight = found.weight("blocks.Q8_0")
    with path.open("r+b") as changed:
        changed.truncate(found.start)
    with pytest.raises(ModelError, match="truncated or damaged"):
        weight.node()


# ---- models --------------------------------------------------------------------------------------------------------


def roles(found: families.Tensors) -> dict[str, Array]:
    return {role: value(found[role]) for role in found._sources}


@pytest.mark.parametrize("name", gguf_support.MODELS)
def test_a_model_is_that_which_was_written(tmp_path: Path, name: str) -> None:
    """What it computes, and every tensor bit for bit."""
    source = gguf_support.model(name)
    gguf_support.write(tmp_path / "model.gguf", name, source)
    for context in (16, 64):
        wanted, theirs = families.read(Module(source), context)
        found, ours = families.read(Model(tmp_path / "model.gguf"), context)
        if name.startswith("gemma"):  # the file's norms have the 1 that is added
            assert found.norm.offset == 0 and wanted.norm.offset == 1
        assert repr(alike(found)) == repr(alike(wanted))
    before, after = roles(theirs), roles(ours)
    assert before.keys() == after.keys()
    for role, array in before.items():
        offset = np.float32(name.startswith("gemma") and "norm" in role)
        np.testing.assert_array_equal(after[role], array + offset, role)


def alike(config: Any) -> Any:
    """``config`` without the offsets of norms, and with numbers as float32 holds them, in which GGUF stores them."""
    if isinstance(config, float):
        return f"{config:.6g}"
    if isinstance(config, tuple):
        return [alike(x) for x in config]
    if hasattr(config, "__dataclass_fields__"):
        return {k: alike(getattr(config, k)) for k in config.__dataclass_fields__ if k != "offset"}
    return config


def test_a_model_in_several_files(tmp_path: Path) -> None:
    source = gguf_support.model("llama")
    gguf_support.write(tmp_path / "whole.gguf", "llama", source)
    whole = Gguf(tmp_path / "whole.gguf")
    names = list(whole.entries)
    for number, part in enumerate((names[:5], names[5:]), 1):
        writer = gguf.GGUFWriter(tmp_path / f"model-{number:05}-of-00002.gguf", "llama")
        if number == 1:
            gguf_support._describe(writer, "llama", source.config)
        tensors = {name: value(whole.weight(name).node()) for name in part}
        gguf_support.add(writer, {name: (Type.F32, array) for name, array in tensors.items()})
    found = Model(tmp_path / "model-00001-of-00002.gguf")
    assert set(found.names()) == set(Model(tmp_path / "whole.gguf").names())
    same(value(found.weight("model.norm.weight").node()), source.model.norm.weight.detach().numpy())
    (tmp_path / "model-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00002\.gguf, 1 of the 00002 files"):
        Model(tmp_path / "model-00001-of-00002.gguf")


def test_names_and_kinds_that_are_not_known_are_said(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "rwkv7")
    gguf_support.add(writer, {"token_embd.weight": (Type.F32, np.zeros((4, 4), np.float32))})
    with pytest.raises(UnsupportedError, match=r"expected an architecture of llama, .* found 'rwkv7'"):
        Model(tmp_path / "other.gguf")
    source = gguf_support.model("llama")
    gguf_support.write(tmp_path / "llama.gguf", "llama", source)
    with pytest.raises(ModelError, match=r"no tensor 'model.norms.weight'; the nearest to .* 'model.norm.weight'"):
        Model(tmp_path / "llama.gguf").weight("model.norms.weight")
    found = Gguf(tmp_path / "llama.gguf")
    entry = found.entries["output_norm.weight"]
    found.entries["output_norm.weight"] = type(entry)(entry.shape, Type.IQ2_XS.value, entry.begin)
    with pytest.raises(UnsupportedError, match=r"'output_norm.weight' is in IQ2_XS; expected one of float32, .* Q6_K"):
        found.weight("output_norm.weight")


# ---- damaged files -------------------------------------------------------------------------------------------------


def opened(path: Path) -> None:
    """Opens a file and reads all of it."""
    found = Gguf(path)
    for name in found.entries:
        found.weight(name).node()


def head(*parts: Any) -> bytes:
    """Texts with their length before them, and numbers as (format, number)."""
    made = b""
    for part in parts:
        if isinstance(part, tuple):
            made += struct.pack(part[0], part[1])
        elif isinstance(part, str):
            made += struct.pack("<Q", len(part.encode())) + part.encode()
        else:
            made += part
    return made


def u32(number: int) -> tuple[str, int]:
    return "<I", number


def u64(number: int) -> tuple[str, int]:
    return "<Q", number


START = (b"GGUF", u32(3))
TENSOR = (*START, u64(1), u64(0), "w")
HOSTILE = {
    "empty": (b"", "expected 4 bytes"),
    "letters": (b"GGML" + bytes(40), "does not begin with the letters GGUF"),
    "version": (head(b"GGUF", u32(1), u64(0), u64(0)), "version 2 or 3, found 1"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "it is big-endian"),
    "tensors": (head(*START, u64(1 << 62), u64(0)), "items do not fit"),
    "entries": (head(*START, u64(0), u64(1 << 63)), "items do not fit"),
    "key": (head(*START, u64(0), u64(1), u64(1 << 63), bytes(64)), "items do not fit"),
    "text": (head(*START, u64(0), u64(1), "k", u32(8), u64((1 << 64) - 1)), "items do not fit"),
    "kind": (head(*START, u64(0), u64(1), "k", u32(13), bytes(32)), "expected a type of 0 to 12, found 13"),
    "array": (head(*START, u64(0), u64(1), "k", u32(9), u32(5), u64(1 << 62)), "items do not fit"),
    "texts": (head(*START, u64(0), u64(1), "k", u32(9), u32(8), u64(1 << 40)), "items do not fit"),
    "nested": (head(*START, u64(0), u64(1), "k", *([u32(9)] + 40 * [u32(9), u64(1)])), "expected a type of 0 to 12"),
    "utf-8": (head(*START, u64(0), u64(1), u64(2), b"\xff\xfe", bytes(20)), "expected a name in UTF-8"),
    "twice": (head(*START, u64(0), u64(2), *(2 * ("k", u32(0), b"x"))), "'k' is there twice"),
    "rank": (head(*TENSOR, u32(1 << 30), bytes(64)), "expected 1 to 4 axes"),
    "no elements": (head(*TENSOR, u32(2), u64(0), u64(5), u32(0), u64(0), bytes(64)), "do not fit a file"),
    "elements": (head(*TENSOR, u32(2), u64(1 << 40), u64(1 << 40), u32(0), u64(0), bytes(64)), "do not fit a file"),
    "overflow": (head(*TENSOR, u32(2), u64(1 << 32), u64(1 << 32), u32(0), u64(0), bytes(64)), "do not fit a file"),
    "offset": (head(*TENSOR, u32(1), u64(4), u32(0), u64((1 << 64) - 32), bytes(64)), "should end at byte"),
    "unaligned": (head(*TENSOR, u32(1), u64(4), u32(0), u64(3), bytes(64)), "at a multiple of 32"),
    "blocks": (head(*TENSOR, u32(1), u64(33), u32(8), u64(0), bytes(640)), "not made of Q8_0's 32"),
    "cut": (head(*TENSOR, u32(1), u64(64), u32(0), u64(0), bytes(64)), "it is truncated"),
    "alignment": (head(*START, u64(0), u64(1), "general.alignment", u32(4), u32(48)), "a power of two, found 48"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_heads_give_a_sentence(tmp_path: Path, name: str) -> None:
    content, words = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words):
        opened(path)


def test_a_cut_anywhere_gives_a_sentence(tmp_path: Path) -> None:
    content = file(tmp_path).read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(0, 2000, 7), *range(2000, len(content) - 32, 301)]:
        path.write_bytes(content[:size])
        with pytest.raises(ModelError):
            opened(path)


@pytest.mark.parametrize("seed", range(6))
def test_changed_bytes_give_a_sentence_or_numbers(tmp_path: Path, seed: int) -> None:
    """Bits and bytes of the head are changed, numbers in it become huge ones: whatever is read then, nothing crashes,
    hangs or takes memory beyond the file's."""
    content = file(tmp_path).read_bytes()
    start = Gguf(tmp_path / "some.gguf").start
    rng = np.random.default_rng(seed)
    path = tmp_path / "changed.gguf"
    refused = 0
    for _ in range(120):
        changed = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(4, start - 8))
            match rng.integers(3):
                case 0:
                    changed[at] ^= 1 << int(rng.integers(8))
                case 1:
                    changed[at] = int(rng.integers(256))
                case _:
                    changed[at : at + 8] = struct.pack("<Q", (0, 1 << 31, 1 << 62, (1 << 64) - 1)[rng.integers(4)])
        path.write_bytes(changed)
        try:
            opened(path)
        except LuminalError as error:
            assert 20 < len(str(error)) < 1000
            refused += 1
    assert refused > 40


def test_a_constant_is_the_same_whenever_it_is_read(tmp_path: Path) -> None:
    """Nodes are equal by content: two readers of one tensor share it."""
    path = file(tmp_path)
    assert Gguf(path).weight("blocks.Q4_K").node() is Gguf(path).weight("blocks.Q4_K").node()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_moe"])
def test_changed_models_give_a_sentence_or_a_model(tmp_path: Path, name: str, seed: int) -> None:
    """The metadata say something else than what was written: sizes of a model that nothing could hold, among others."""
    path = tmp_path / "model.gguf"
    gguf_support.write(path, name, gguf_support.model(name, num_hidden_layers=1))
    content = path.read_bytes()
    start = Gguf(path).start
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(60):
        changed = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(24, start // 2))
            if rng.integers(2):
                changed[at] ^= 1 << int(rng.integers(8))
            else:
                changed[at : at + 4] = struct.pack("<I", (0, 1, 1 << 16, (1 << 31) - 1, 1 << 31)[rng.integers(5)])
        path.write_bytes(changed)
        try:
            families.read(Model(path), 64)
        except LuminalError as error:
            assert 20 < len(str(error)) < 1000
            refused += 1
    assert refused > 20


KEYS = {
    "context_length", "embedding_length", "block_count", "attention.head_count", "attention.head_count_kv",
    "feed_forward_length", "rope.dimension_count", "attention.key_length", "expert_count", "expert_used_count",
}  # fmt: skip


@pytest.mark.parametrize("name", ["mixtral", "gemma2", "phi3"])
def test_sizes_of_any_size_give_a_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.gguf"
    gguf_support.write(path, name, gguf_support.model(name))
    whole = Model(path)
    names = [key for key in whole.metadata if key.partition(".")[2] in KEYS]
    assert len(names) >= 7
    shapes = {tensor: entry.shape for tensor, entry in Gguf(path).entries.items()}
    for key in names:
        for number in (0, 3, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -1, "text", 2.5, [1, 2], None):
            metadata = {**whole.metadata, key: number}
            try:
                found = gguf_names.of(metadata, shapes, Gguf(path).weight, "the file")
                checkpoint = Changed(found.config, found.weights)
                families.read(checkpoint, 64)
            except LuminalError as error:
                assert 20 < len(str(error)) < 1000


@dataclass(frozen=True)
class Changed:
    config: Any
    weights: Any

    def names(self) -> Any:
        return self.weights.keys()

    def weight(self, name: str) -> Any:
        return self.weights[name]()
