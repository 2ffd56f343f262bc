"""A language model from a folder or a GGUF file, or a small one with random weights: the examples of several families.

Without a model, tokens are bytes, and the text is what random weights say.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import luminal.llm
from examples.common import WrongFile, progress
from luminal.llm import LanguageModel, Sampling

_BYTES = 256
_SMALL: Mapping[str, Any] = {
    "vocab_size": _BYTES, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


def random_model(family: str, **sizes: Any) -> Any:
    """A small model of a family of transformers with random weights."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise WrongFile(
            f"random weights need torch and transformers ({error}): install them, or give a model"
        ) from error
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**_SMALL, **sizes})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def bytes_of(lm: LanguageModel, prompt: str, count: int, settings: Sampling) -> Iterator[int]:
    """What follows a text of which each byte is a token."""
    from luminal.llm.sampling import Sampler

    given = list(prompt.encode()) or [0]
    lm.prefill(0, given)
    sampler = Sampler(settings, lm.vocabulary, given)
    for _ in range(min(count, lm.context - len(given))):
        token = lm.sample({0: sampler})[0]
        sampler.accept(token)
        yield token
        lm.decode({0: token})


def main(family: str, says: str, arguments: list[str], **sizes: Any) -> None:
    """The program of one family; ``sizes`` are those of the config of its small model."""
    parser = argparse.ArgumentParser(description=says)
    parser.add_argument("prompt", nargs="?", default="Once upon a time")
    parser.add_argument("--model", type=Path, help="a folder with config.json and safetensors, or a GGUF file")
    parser.add_argument("--weights", help="round the matrices: q8_0, q4_0, int8, int4; default: as they are")
    parser.add_argument("--context", type=int, help="the most tokens; default: 4096, or as the model was made for")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: always the likeliest token")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--threads", type=int, default=0, help="0: one for each CPU")
    given = parser.parse_args(arguments)
    source = given.model if given.model is not None else random_model(family, **sizes)
    settings = Sampling(given.temperature, seed=given.seed)
    with progress() as report:
        lm = luminal.llm.compile(
            source, weights=given.weights, context=given.context, threads=given.threads, progress=report
        )
    started, count = time.perf_counter(), 0
    print(given.prompt, end="", flush=True)
    if given.model is None:
        for token in bytes_of(lm, given.prompt, given.max_tokens, settings):
            count += 1
            sys.stdout.write(bytes([token]).decode("ascii", "replace"))
            sys.stdout.flush()
    else:
        for piece in lm.generate(given.prompt, stream=True, max_tokens=given.max_tokens, sampling=settings):
            count += 1
            print(piece.text, end="", flush=True)
    print()
    seconds = time.perf_counter() - started
    sys.stderr.write(f"{count} tokens in {seconds:.2f} s\n")
