"""Whisper: sound in, text out.

    python examples/whisper/transcribe.py [SOUND.wav] [--model FOLDER] [--language de] [--task translate]

FOLDER is a model as transformers saves it: config.json, safetensors, tokenizer.json, generation_config.json. Without
one, the weights are random and tokens are shown, not text; without SOUND, a tone that rises is listened to.

The library has two entries. ``listen`` reads a spectrogram of 30 seconds, and leaves what the decoder's layers look up
in it as state. ``speak`` appends a token; what its attention keeps of the tokens before is state too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import luminal
from examples.common import WrongFile, progress, run
from examples.whisper import sound
from luminal.progress import Progress

Array = np.ndarray[Any, Any]


def loaded(folder: Path | None) -> Any:
    """The model in a folder, or one of the smallest size with random weights. Raises WrongFile."""
    if folder is None:
        torch.manual_seed(0)
        return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig()).eval()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise WrongFile(f"{folder}: expected a folder with config.json and safetensors: {error}") from error
    if config.model_type != "whisper":
        raise WrongFile(f"{folder}: expected a model of type 'whisper', found {config.model_type!r}")
    found = transformers.WhisperForConditionalGeneration.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
    )
    return found.eval()


# ---- the two entries -------------------------------------------------------------------------------------------------


class Memory(nn.Module):
    """What the layers of the decoder keep, ``[1, heads, positions, size]`` each: keys and values of the sound, and of
    the tokens so far."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        heads, size = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
        for number in range(config.decoder_layers):
            for kind in ("keys", "values"):
                for what, rows in (("heard", config.max_source_positions), ("said", config.max_target_positions)):
                    self.register_buffer(f"{what}_{kind}_{number}", torch.zeros(1, heads, rows, size))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.get_buffer(name)


class Listen(nn.Module):
    """``[1, bands, frames]`` into the memory. Returns the encoder's states."""

    def __init__(self, model: Any, memory: Memory) -> None:
        super().__init__()
        self.encoder, self.layers, self.memory = model.model.encoder, model.model.decoder.layers, memory

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.encoder(spectrogram).last_hidden_state
        for number, layer in enumerate(self.layers):
            attention = layer.encoder_attn
            self.memory[f"heard_keys_{number}"].copy_(split(attention.k_proj(states), attention))
            self.memory[f"heard_values_{number}"].copy_(split(attention.v_proj(states), attention))
        return states


class Speak(nn.Module):
    """A token ``int64[1, 1]`` at a position ``int64[1]``. Returns the scores of the next one."""

    def __init__(self, model: Any, memory: Memory) -> None:
        super().__init__()
        self.decoder, self.head, self.memory = model.model.decoder, model.proj_out, memory

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        decoder = self.decoder
        x = decoder.embed_tokens(token) + decoder.embed_positions.weight[position][None]
        seen = torch.arange(decoder.embed_positions.weight.shape[0]) <= position
        for number, layer in enumerate(decoder.layers):
            own = layer.self_attn
            normed = layer.self_attn_layer_norm(x)
            said = [self.memory[f"said_{kind}_{number}"] for kind in ("keys", "values")]
            for rows, made in zip(said, (own.k_proj(normed), own.v_proj(normed)), strict=True):
                rows.index_copy_(2, position, split(made, own))
            x = x + attended(own, normed, *said, seen)
            other = layer.encoder_attn
            heard = [self.memory[f"heard_{kind}_{number}"] for kind in ("keys", "values")]
            x = x + attended(other, layer.encoder_attn_layer_norm(x), *heard)
            x = x + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(x))))
        scores: torch.Tensor = self.head(decoder.layer_norm(x))[0, 0]
        return scores


def split(x: torch.Tensor, attention: Any) -> torch.Tensor:
    """``[1, length, width]`` as ``[1, heads, length, size]``."""
    return x.view(1, x.shape[1], attention.num_heads, attention.head_dim).transpose(1, 2)


def attended(
    attention: Any, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor | None = None
) -> torch.Tensor:
    query = split(attention.q_proj(x), attention)
    mask = None if seen is None else seen[None, None, None]
    found = functional.scaled_dot_product_attention(query, keys, values, mask, scale=attention.scaling)
    result: torch.Tensor = attention.out_proj(found.transpose(1, 2).reshape(x.shape))
    return result


def compiled(model: Any, threads: int = 0, report: Progress | None = None) -> luminal.Module:
    """The library of both entries."""
    config, memory = model.config, Memory(model.config)
    spectrum = torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions)
    token = torch.zeros(1, 1, dtype=torch.int64)
    found = luminal.compile(
        {"listen": Listen(model, memory).eval(), "speak": Speak(model, memory).eval()},
        {"listen": (spectrum,), "speak": (token, token[0])},
        name="whisper", threads=threads, progress=report,
    )  # fmt: skip
    assert isinstance(found, luminal.Module)
    return found


# ---- from sound to tokens --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """Tokens that an answer begins with, those it ends with, and those that never come, or not at first."""

    start: list[int]
    ends: frozenset[int]
    never: list[int]
    not_first: list[int]

    @classmethod
    def of(cls, model: Any, language: str | None = None, task: str | None = None) -> Rules:
        """Those of a model's ``generation_config``. Raises WrongFile where it does not know a language or task."""
        given, config = model.generation_config, model.config
        start = [config.decoder_start_token_id]
        for name, wanted, form in (("lang_to_id", language, "<|{}|>"), ("task_to_id", task, "{}")):
            known = getattr(given, name, None) or {}
            if wanted is not None:
                if form.format(wanted) not in known:
                    listed = ", ".join(key.strip("<|>") for key in known) or "none: it knows one language"
                    raise WrongFile(f"{name}: the model does not know {wanted!r}; it knows {listed}")
                start.append(known[form.format(wanted)])
        without_times = getattr(given, "no_timestamps_token_id", None)
        if without_times is not None:
            start.append(without_times)
        ends = given.eos_token_id if given.eos_token_id is not None else config.eos_token_id
        return cls(
            start, frozenset([ends] if isinstance(ends, int) else ends or ()),
            *(list(getattr(given, name, None) or ()) for name in ("suppress_tokens", "begin_suppress_tokens")),
        )  # fmt: skip


def tokens(module: luminal.Module, spectrogram: Array, rules: Rules, most: int) -> Iterator[int]:
    """The likeliest tokens, one after the other: up to ``most``, or to one that ends."""
    module["listen"].run({"spectrogram": spectrogram})
    speak, at, scores = module["speak"], 0, np.zeros(0, np.float32)
    pending = list(rules.start)
    for count in range(most):
        for token in pending:
            given = {"token": np.array([[token]]), "position": np.array([at])}
            (scores,) = speak.run(given).values()
            at += 1
        scores[[*rules.never, *(rules.not_first if not count else ())]] = -np.inf
        pending = [int(scores.argmax())]
        yield pending[0]
        if pending[0] in rules.ends:
            return


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sound", type=Path, nargs="?", help="a WAV file; default: a tone that rises")
    parser.add_argument("--model", type=Path, help="a folder of transformers; default: random weights")
    parser.add_argument("--language", help="of the sound, as the model names it: en, de, ..")
    parser.add_argument("--task", choices=("transcribe", "translate"), help="translate: into English")
    parser.add_argument("--max-tokens", type=int, default=100, help="of each 30 seconds")
    parser.add_argument("--threads", type=int, default=0, help="0: one for each CPU")
    given = parser.parse_args(arguments)
    samples = sound.chirp() if given.sound is None else sound.read(given.sound)
    model = loaded(given.model)
    rules = Rules.of(model, given.language, given.task)
    with progress() as report:
        module = compiled(model, given.threads, report)
    text = None
    if given.model is not None and (given.model / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        text = Tokenizer.from_file(str(given.model / "tokenizer.json"))
    frames = 2 * model.config.max_source_positions
    room = model.config.max_target_positions - len(rules.start)
    part = frames * sound.HOP
    for start in range(0, len(samples), part):
        spectrogram = sound.spectrogram(samples[start : start + part], model.config.num_mel_bins, frames)
        found: list[int] = []
        for token in tokens(module, spectrogram, rules, min(given.max_tokens, room)):
            found.append(token)
            sys.stderr.write(f"\r{start / sound.RATE:.0f} s: {len(found)} tokens ")
        sys.stderr.write("\n")
        print(" ".join(map(str, found)) if text is None else text.decode(found).strip())


if __name__ == "__main__":
    run(main)
