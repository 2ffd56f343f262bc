"""Compiles a language model from a folder of about 110 MB and says how far memory rose: see ``test_checkpoints.py``.

python -m tests.large_checkpoint FOLDER [q8_0]
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from pathlib import Path

import numpy as np

import luminal.llm
from luminal.core.types import bf16

VOCABULARY, WIDTH, INNER = 48_000, 1024, 1024
CONFIG = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 1,
    "num_attention_heads": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip


def write(folder: Path) -> int:
    """Writes weights in bfloat16; returns their bytes."""
    layer = "model.layers.0."
    square, wide = (WIDTH, WIDTH), (INNER, WIDTH)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    shapes |= {f"{layer}self_attn.{x}_proj.weight": square for x in "qkvo"}
    shapes |= {f"{layer}mlp.{x}_proj.weight": wide for x in ("gate", "up", "down")}
    norms = ("model.norm", f"{layer}input_layernorm", f"{layer}post_attention_layernorm")
    shapes |= {f"{norm}.weight": (WIDTH,) for norm in norms}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape)) * 2
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    (folder / "config.json").write_text(json.dumps(CONFIG))
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            file.write((0.02 * rng.standard_normal(shape, np.float32)).astype(bf16.numpy).tobytes())
    return at


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    before = peak()
    luminal.llm.compile(Path(sys.argv[1]), weights=(sys.argv[2:] or [None])[0], context=64, chunk=8, threads=2)
    print(peak() - before)


if __name__ == "__main__":
    main()
