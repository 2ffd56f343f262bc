"""llama.cpp, through its Python package, on random weights in the shape of TinyLlama-1.1B.

``pip install llama-cpp-python gguf`` compiles it for this machine, which takes about ten minutes on two processors.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np

INSTALL = "pip install llama-cpp-python gguf"
WITHOUT_AMX = (
    'CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"'
)
VOCABULARY, WIDTH, INNER, HEADS, KEY_VALUE_HEADS = 32000, 2048, 5632, 32, 4
CONTEXT = 512
KINDS = ("q8_0", "q4_0", "bf16", "f32")


def missing() -> list[str]:
    """The packages that are not installed."""
    return [name for name in ("llama_cpp", "gguf") if importlib.util.find_spec(name) is None]


def version() -> str:
    """The package that is installed."""
    return f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"


def write(path: Path, kind: str, layers: int) -> Path:
    """A model of ``layers`` layers with weights of a kind (one of ``KINDS``), random, in llama.cpp's format."""
    import gguf

    kinds = gguf.GGMLQuantizationType
    stored = {"q8_0": kinds.Q8_0, "q4_0": kinds.Q4_0, "bf16": kinds.BF16, "f32": kinds.F32}[kind]
    draw = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, rows: int, columns: int) -> None:
        values = draw.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, stored), raw_dtype=stored)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    matrix("token_embd", VOCABULARY, WIDTH)
    narrow = WIDTH // HEADS * KEY_VALUE_HEADS
    for layer in range(layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        for name, rows in (("attn_q", WIDTH), ("attn_k", narrow), ("attn_v", narrow), ("attn_output", WIDTH)):
            matrix(f"{block}.{name}", rows, WIDTH)
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.ffn_gate", INNER, WIDTH)
        matrix(f"{block}.ffn_up", INNER, WIDTH)
        matrix(f"{block}.ffn_down", WIDTH, INNER)
    norm("output_norm")
    matrix("output", VOCABULARY, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def open_step(path: Path, past: int, threads: int) -> Callable[[], object]:
    """What computes one token after ``past`` others, whose keys and values are in the cache."""
    from llama_cpp import Llama

    model = Llama(str(path), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False, logits_all=False)
    tokens = np.random.default_rng(2).integers(0, VOCABULARY, past + 1).tolist()
    for token in tokens[:past]:  # one by one: of several at once, a build by GCC 12 for AMX dies
        model.eval([token])

    def step() -> None:
        model.n_tokens = past  # the cache forgets what came after
        model.eval(tokens[past:])

    return step
