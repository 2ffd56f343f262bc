"""Folders of safetensors against the library of that name, damaged ones, and models compiled from what lies on disk."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
from gguf import GGMLQuantizationType as Type

import luminal
import luminal.llm
from luminal.core import interp, ops, traverse, types
from luminal.core.errors import InputError, LuminalError, ModelError
from luminal.core.ir import Node
from luminal.frontends.llm import blocks, families, stored
from luminal.frontends.llm.checkpoint import Module
from luminal.frontends.llm.safetensors import Folder, Tensors
from tests import gguf_support, large_checkpoint

Array = np.ndarray[Any, Any]


def value(node: Node) -> Array:
    (found,) = interp.evaluate([node])
    return found


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(3, 5), "b.weight": torch.randn(4, 2, 3).half(), "c": torch.randn(7).bfloat16(),
        "empty": torch.zeros(0, 4), "scalar": torch.tensor(2.5), "whole": torch.arange(5),
    }  # fmt: skip


def folder(path: Path) -> Path:
    """A folder of one file."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    safetensors.torch.save_file(tensors(), path / "model.safetensors", {"format": "pt"})
    return path


# ---- safetensors ---------------------------------------------------------------------------------------------------


def test_files_of_the_library_are_read_to_the_bit(tmp_path: Path) -> None:
    found = Folder(folder(tmp_path))
    assert found.config["model_type"] == "llama" and set(found.names()) == tensors().keys()
    for name, tensor in tensors().items():
        if not tensor.is_floating_point():
            with pytest.raises(ModelError, match=r"expected weight 'whole' in F32, F16, BF16, found I64"):
                found.weight(name)
            continue
        weight = found.weight(name)
        assert weight.shape == tuple(tensor.shape)
        np.testing.assert_array_equal(value(weight.node()), tensor.float().numpy())


def test_what_is_stored_in_16_bits_stays_so(tmp_path: Path) -> None:
    found = Folder(folder(tmp_path))
    for name, dtype in (("b.weight", types.f16), ("c", types.bf16)):
        (constant,) = (x for x in traverse.topological([found.weight(name).node()]) if x.op is ops.CONSTANT)
        assert constant.dtype == dtype


def test_a_model_in_several_files_is_the_same(tmp_path: Path) -> None:
    source = gguf_support.model("llama")
    source.save_pretrained(tmp_path / "one")
    source.save_pretrained(tmp_path / "many", max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    wanted, theirs = families.read(Module(source), 64)
    for name in ("one", "many"):
        found, ours = families.read(stored.opened(tmp_path / name), 64)
        assert found == wanted
        for role in theirs._sources:
            np.testing.assert_array_equal(value(ours[role]), value(theirs[role]))


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "phi3", "gpt2", "gemma3"])
def test_families_are_read_from_the_folders_that_transformers_writes(tmp_path: Path, name: str) -> None:
    source = gguf_support.model(name)
    source.save_pretrained(tmp_path)
    wanted, theirs = families.read(Module(source), 64)
    found, ours = families.read(stored.opened(tmp_path), 64)
    assert found == wanted
    for role in theirs._sources:
        np.testing.assert_array_equal(value(ours[role]), value(theirs[role]))


def test_what_lacks_is_said(tmp_path: Path) -> None:
    found = Folder(folder(tmp_path / "a"))
    with pytest.raises(ModelError, match=r"no tensor 'a.wieght'; the nearest to 'a.wieght' are 'a.weight'"):
        found.weight("a.wieght")
    for name, words in (("nothing", "there is no "), ("a/model.safetensors", "take the folder that it is in")):
        with pytest.raises(ModelError, match=words):
            stored.opened(tmp_path / name)
    with pytest.raises(ModelError, match=r"expected config.json .* found neither that nor a .gguf file"):
        stored.opened(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"expected model.safetensors, .* found no safetensors file"):
        stored.opened(tmp_path)


def sharded(path: Path, **files: str) -> Path:
    folder(path)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return path


def test_indices_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    wrong = {
        r"lacks b.safetensors, 1 of the 2 files": {"scalar": "model.safetensors", "x": "b.safetensors"},
        r"expected files of the same folder, found '../b.safetensors'": {"x": "../b.safetensors"},
        r"has no tensor 'x'": {"x": "model.safetensors"},
        r"expected a weight_map": {},
    }
    for words, files in wrong.items():
        with pytest.raises(ModelError, match=words):
            Folder(sharded(tmp_path / "s", **files))


def written(path: Path, header: Any, data: bytes = bytes(64)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(kind: Any = "F32", shape: Any = (16,), ends: Any = (0, 64)) -> Mapping[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": ends}


HOSTILE: Mapping[str, tuple[Any, str]] = {
    "no json": (b"{", "expected JSON"),
    "no object": (b"[]", "expected an object"),
    "deep": (b'{"a":' * 100000, "expected JSON"),
    "twice": (b'{"a": 1, "a": 2}', "'a' is there twice"),
    "digits": (b'{"a": ' + b"9" * 9000 + b"}", "expected JSON"),
    "no entry": ({"a": 3}, "expected a dtype, a shape and two data_offsets"),
    "type": ({"a": entry("F33")}, "expected a type of BOOL"),
    "no type": ({"a": entry(5)}, "expected a dtype"),
    "shape": ({"a": entry(shape=[4, -4])}, "expected a dtype, a shape"),
    "real": ({"a": entry(shape=[16.0])}, "expected a dtype, a shape"),
    "overflow": ({"a": entry(shape=[1 << 32, 1 << 32])}, "expected a value of at most"),
    "many axes": ({"a": entry(shape=[1] * 90)}, "expected at most 24 axes"),
    "size": ({"a": entry(shape=[15])}, "takes 60 bytes, but its data_offsets are 0 and 64"),
    "ends": ({"a": entry(ends=[64, 0])}, "data_offsets are 64 and 0"),
    "beyond": ({"a": entry(shape=[32], ends=[0, 128])}, "it is truncated"),
    "overlap": ({"a": entry(shape=[8], ends=[0, 32]), "b": entry(shape=[12], ends=[16, 64])}, "'b' overlaps that of"),
    "gap": ({"a": entry(shape=[8], ends=[0, 32]), "b": entry(shape=[4], ends=[48, 64])}, "'b' leaves a gap after"),
    "rest": ({"a": entry(shape=[8], ends=[0, 32])}, "32 bytes follow"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_give_a_sentence(tmp_path: Path, name: str) -> None:
    header, words = HOSTILE[name]
    with pytest.raises(ModelError, match=words):
        Tensors(written(tmp_path / "x.safetensors", header))


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 101_000_000, 10_000])
def test_a_header_of_any_length_gives_a_sentence(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + bytes(100))
    with pytest.raises(ModelError, match=rf"should have {length} bytes, but the file has 108"):
        Tensors(path)


@pytest.mark.parametrize("seed", range(4))
def test_changed_and_cut_files_give_a_sentence_or_numbers(tmp_path: Path, seed: int) -> None:
    content = (folder(tmp_path / "a") / "model.safetensors").read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    rng = np.random.default_rng(seed)
    path = tmp_path / "x.safetensors"
    refused = 0
    for _ in range(150):
        changed = bytearray(content[: rng.integers(len(content))] if rng.integers(3) == 0 else content)
        for _ in range(rng.integers(1, 4)):
            if changed:
                changed[int(rng.integers(min(start, len(changed))))] = int(rng.integers(256))
        path.write_bytes(changed)
        try:
            found = Tensors(path)
            for name in found.entries:
                found.weight(name).node()
        except LuminalError as error:
            assert 20 < len(str(error)) < 1000
            refused += 1
    assert refused > 60


def test_a_file_that_shrinks_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = folder(tmp_path) / "model.safetensors"
    weight = Tensors(path).weight("a.weight")
    with path.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(ModelError, match="truncated or damaged"):
        weight.node()


# ---- compiled ------------------------------------------------------------------------------------------------------


def logits(model: Any, tokens: list[int]) -> Array:
    with torch.no_grad():
        found: Array = model(torch.tensor([tokens])).logits[0].double().numpy()
    return found


def check(found: luminal.llm.LanguageModel, single: Any, tokens: list[int]) -> None:
    """Logits after a prompt and each further token: at most twice as far from float64 as those of transformers."""
    wanted = logits(single.double(), tokens)
    own = np.abs(logits(single.float(), tokens) - wanted).max()
    bound = max(2 * own, single.config.hidden_size * 2.0**-24 * np.abs(wanted).max())
    found.prefill(0, tokens[:5])
    for position in range(4, len(tokens)):
        if position > 4:
            found.decode({0: tokens[position]})
        assert np.abs(found.logits(0) - wanted[position]).max() <= bound, position


TOKENS = [3, 90, 5, 77, 11, 64, 2, 8]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": True}


def constant_bytes(found: luminal.llm.LanguageModel) -> int:
    assert found.module.program is not None
    return sum(b.size for b in found.module.program.buffers if b.space == "constant")  # type: ignore[misc]


def test_a_model_in_blocks_of_many_kinds(tmp_path: Path) -> None:
    """Each kind is read as it lies, the embedding's by a look-up and by the head: the library is about as large as the
    file, and its logits are those of the decoded weights."""
    source = gguf_support.model("llama", **SIZES)
    kinds = {
        "attn_q": "Q4_K", "attn_k": "Q5_K", "attn_v": "Q6_K", "attn_output": "Q4_0", "ffn_gate": "Q4_1",
        "ffn_up": "Q5_0", "ffn_down": "Q8_0", "token_embd": "Q6_K",
    }  # fmt: skip
    rng = np.random.default_rng(0)
    tensors: dict[str, tuple[Type, Array]] = {}
    for name, array in gguf_support._tensors("llama", source).items():
        kind = next((kind for part, kind in kinds.items() if part in name), "F32")
        tensors[name] = Type[kind], array if kind == "F32" else near(array, blocks.ALL[kind], rng)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    gguf_support._describe(writer, "llama", source.config)
    gguf_support.add(writer, tensors)
    found = luminal.llm.compile(tmp_path / "model.gguf", context=32, chunk=8, threads=2)
    check(found, gguf_support.decoded(source, tensors), TOKENS)
    assert constant_bytes(found) < 1.2 * sum(data.nbytes for _, data in tensors.values())


def near(array: Array, kind: blocks.Kind, rng: np.random.Generator) -> Array:
    """Blocks of any integers, with scales such that the numbers are about as large as those of ``array``."""
    count = array.shape[-1] // kind.size
    found = rng.integers(0, 256, (array.shape[0], count, kind.layout.itemsize)).astype(np.uint8).view(kind.layout)
    found = found[..., 0]
    for name in {"scale", "least"}.intersection(kind.layout.names or ()):
        found[name] = np.float16(1e-4)
    raw = found.view(np.uint8).reshape(array.shape[0], -1)
    size = np.abs(gguf.quants.dequantize(raw, Type[kind.name])).mean() / np.abs(array).mean()
    for name in {"scale", "least"}.intersection(kind.layout.names or ()):
        found[name] = (np.float32(1e-4) / size * rng.uniform(0.5, 1.5, found.shape)).astype(np.float16)
    return raw


@pytest.mark.parametrize("weights", ["q8_0", "q4_0"])
def test_matrices_are_rounded_to_blocks_on_request(tmp_path: Path, weights: str) -> None:
    source = gguf_support.model("llama", **SIZES)
    kind = Type[weights.upper()]
    tensors = gguf_support.write(
        tmp_path / "model.gguf", "llama", source, lambda name, array: kind if array.ndim > 1 else Type.F32
    )
    source.save_pretrained(tmp_path / "folder")
    found = luminal.llm.compile(tmp_path / "folder", weights=weights, context=32, chunk=8, threads=2)
    check(found, gguf_support.decoded(source, tensors), TOKENS)
    assert found.module.approximated("weights") > 0
    assert constant_bytes(found) < 1.2 * sum(data.nbytes for _, data in tensors.values())


def test_other_words_for_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown weights 'q3_k': expected q4_0, q8_0, int8, int4"):
        luminal.llm.compile(gguf_support.model("llama"), weights="q3_k")


@pytest.mark.parametrize("weights", [(), ("q8_0",)], ids=["as stored", "rounded"])
def test_weights_are_streamed_through_the_compiler(tmp_path: Path, weights: tuple[str, ...]) -> None:
    """In a process of its own. The weights are there once, in the library that is loaded in the end; of what is read,
    packed and written, a table of words is never there in float32."""
    size = large_checkpoint.write(tmp_path)
    command = [sys.executable, "-m", "tests.large_checkpoint", str(tmp_path), *weights]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) < size + large_checkpoint.VOCABULARY * large_checkpoint.WIDTH * 3
