"""llama.cpp, through its Python package, on random weights in the shapes of known models.

``pip install llama-cpp-python gguf`` compiles it for this machine, which takes about ten minutes on two processors.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

INSTALL = "pip install llama-cpp-python gguf"
WITHOUT_AMX = (
    'CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"'
)
CONTEXT = 512
KINDS = ("f32", "bf16", "q8_0", "q4_0", "q4_k")
FILE_TYPES = {
    "f32": "ALL_F32", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0", "q4_k": "MOSTLY_Q4_K_M",
}  # fmt: skip
ROUNDED = ("q8_0", "q4_0", "q4_k")  # kinds for which llama.cpp rounds activations to 8 bits
BLOCKS = {"q8_0": 32, "q4_0": 32, "q4_k": 256}  # numbers of a row that are quantised together


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder. Of ``tied`` ones, the table of tokens is the matrix of the logits, too; with ``biases``,
    queries, keys and values have some."""

    architecture: str
    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    key_value_heads: int
    tied: bool = False
    biases: bool = False

    @property
    def head(self) -> int:
        return self.width // self.heads

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The matrices of products, [rows, columns], by their names in the file."""
        narrow = self.head * self.key_value_heads
        found: dict[str, tuple[int, int]] = {}
        for layer in range(self.layers):
            block = f"blk.{layer}"
            found |= {
                f"{block}.attn_q": (self.width, self.width),
                f"{block}.attn_k": (narrow, self.width),
                f"{block}.attn_v": (narrow, self.width),
                f"{block}.attn_output": (self.width, self.width),
                f"{block}.ffn_gate": (self.inner, self.width),
                f"{block}.ffn_up": (self.inner, self.width),
                f"{block}.ffn_down": (self.width, self.inner),
            }
        return {**found, "token_embd" if self.tied else "output": (self.vocabulary, self.width)}

    def cache(self, tokens: int) -> int:
        """The bytes of keys and values of so many tokens, in float32."""
        return 2 * 4 * self.layers * self.head * self.key_value_heads * tokens


TINYLLAMA = Shape("llama", 32000, 2048, 5632, 22, 32, 4)
QWEN = Shape("qwen2", 151936, 896, 4864, 24, 14, 2, tied=True, biases=True)  # Qwen 2.5, 0.5B


def missing() -> list[str]:
    """The packages that are not installed."""
    return [name for name in ("llama_cpp", "gguf") if importlib.util.find_spec(name) is None]


def version() -> str:
    """The package that is installed."""
    return f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"


def write(path: Path, kind: str, shape: Shape, context: int = 2048, words: Sequence[str] = ()) -> Path:
    """A model of that shape with weights of a kind (one of ``KINDS``), random, in llama.cpp's format; with a tokenizer
    of ``words`` where there are any."""
    import gguf

    stored = gguf.GGMLQuantizationType[kind.upper()]
    draw = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_block_count(shape.layers)
    writer.add_context_length(context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_value_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("gpt2" if words else "no_vocab")
    if words:  # what reads them also wants to be told what most weights are, and where angles start
        writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[kind]])
        writer.add_rope_freq_base(10000.0)
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(words)
        # OpenVINO's tokenizer does not compile without a special token.
        writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(words) - 2))
        writer.add_token_merges([f"{words[0]} {words[1]}"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)

    def vector(name: str, size: int, value: float) -> None:
        writer.add_tensor(name, np.full(size, value, np.float32))

    for layer in range(shape.layers):
        vector(f"blk.{layer}.attn_norm.weight", shape.width, 1.0)
        vector(f"blk.{layer}.ffn_norm.weight", shape.width, 1.0)
        for name in ("attn_q", "attn_k", "attn_v") if shape.biases else ():
            vector(f"blk.{layer}.{name}.bias", shape.matrices()[f"blk.{layer}.{name}"][0], 0.1)
    vector("output_norm.weight", shape.width, 1.0)
    for name, size in {"token_embd": (shape.vocabulary, shape.width), **shape.matrices()}.items():
        writer.add_tensor(f"{name}.weight", _drawn(draw, size, kind, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _drawn(draw: np.random.Generator, size: tuple[int, int], kind: str, stored: Any) -> np.ndarray[Any, Any]:
    """A matrix as the file has it, whose numbers have a deviation of about one over the root of a row's length."""
    import gguf

    rows, columns = size
    if kind != "q4_k":  # gguf has no code to make these
        values = draw.standard_normal(size, np.float32) * np.float32(columns**-0.5)
        found: np.ndarray[Any, Any] = gguf.quants.quantize(values, stored)
        return found
    # Blocks of 256: a scale and an offset in float16, 12 bytes of scales and offsets of 6 bits, 128 of 4 bits. The
    # offset makes up for the mean of the numbers, 7.5 times a scale.
    block, size_in_bytes = gguf.GGML_QUANT_SIZES[stored]
    blocks = draw.integers(0, 256, (rows, columns // block, size_in_bytes), np.uint8)
    scale = columns**-0.5 / (32 * 4.6)
    blocks[..., :4] = np.array([scale, 7.5 * scale], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def opened(path: Path, context: int, batch: int, threads: int) -> Any:
    """The model of a file."""
    from llama_cpp import Llama

    return Llama(
        str(path), n_ctx=context, n_batch=batch, n_threads=threads, n_threads_batch=threads, verbose=False,
        logits_all=False,
    )  # fmt: skip


def logits(model: Any) -> np.ndarray[Any, Any]:
    """Those of the token that was read last."""
    import llama_cpp

    found = llama_cpp.llama_get_logits_ith(model.ctx, -1)
    return np.ctypeslib.as_array(found, (model.n_vocab(),)).copy()


def open_step(path: Path, past: int, threads: int) -> Callable[[], object]:
    """What computes one token after ``past`` others, whose keys and values are in the cache."""
    from llama_cpp import Llama

    model = Llama(str(path), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False, logits_all=False)
    tokens = np.random.default_rng(2).integers(0, model.n_vocab(), past + 1).tolist()
    for token in tokens[:past]:  # one by one: of several at once, a build by GCC 12 for AMX dies
        model.eval([token])

    def step() -> None:
        model.n_tokens = past  # the cache forgets what came after
        model.eval(tokens[past:])

    return step
