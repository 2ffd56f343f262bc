"""Stable Diffusion: a text in, a picture out.

    python examples/stable_diffusion/paint.py "a lighthouse" [--model FOLDER] [--steps 20] [-o picture.png]

FOLDER is a pipeline as diffusers saves it: model_index.json, and a folder each for text_encoder, tokenizer, unet, vae
and scheduler. Without one, small networks with random weights paint noise. It needs diffusers: pip install diffusers.

The library has an entry for each network: ``words``, ``noise`` and ``picture``. They share nothing but the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import luminal
from examples.common import WrongFile, progress, run
from examples.stable_diffusion.diffusion import Schedule
from examples.yolo import pictures
from luminal.progress import Progress

Array = np.ndarray[Any, Any]
_PARTS = ("text_encoder", "tokenizer", "unet", "vae", "scheduler")
# As in Stable Diffusion 1.
_SCHEDULER = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1,
              "set_alpha_to_one": False, "clip_sample": False}  # fmt: skip


@dataclass(frozen=True)
class Pipeline:
    """The networks, how a text becomes tokens, and the schedule."""

    text_encoder: Any
    unet: Any
    vae: Any
    tokens: Callable[[str], list[int]]
    schedule: Schedule

    @property
    def scale(self) -> int:
        """Pixels of a side of the picture for each of what is denoised."""
        return int(2 ** (len(self.vae.config.block_out_channels) - 1))

    @property
    def size(self) -> int:
        """The side of the picture that the network was made for."""
        return int(self.unet.config.sample_size) * self.scale


def diffusers() -> Any:
    try:
        import diffusers
    except ModuleNotFoundError as error:
        raise WrongFile(f"this example needs diffusers ({error}): pip install diffusers") from error
    return diffusers


def loaded(folder: Path | None) -> Pipeline:
    """The pipeline in a folder, or a small one with random weights. Raises WrongFile."""
    if folder is None:
        return random_pipeline()
    absent = [name for name in ("model_index.json", *_PARTS) if not (folder / name).exists()]
    if absent:
        raise WrongFile(f"{folder}: expected a pipeline as diffusers saves it, which has no {', '.join(absent)} here")
    package, options = diffusers(), {"local_files_only": True, "use_safetensors": True}
    try:
        encoder = transformers.CLIPTextModel.from_pretrained(folder / "text_encoder", **options, dtype=torch.float32)
        unet, vae = (
            kind.from_pretrained(folder / name, **options, torch_dtype=torch.float32)
            for kind, name in ((package.UNet2DConditionModel, "unet"), (package.AutoencoderKL, "vae"))
        )
        tokenizer = transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
        config = json.loads((folder / "scheduler" / "scheduler_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WrongFile(f"{folder}: {error}") from error
    if unet.config.addition_embed_type is not None:
        raise WrongFile(f"{folder}: expected a network that reads words alone, found one that reads more (SDXL)")

    def tokens(text: str) -> list[int]:
        found = tokenizer(
            text, padding="max_length", truncation=True, max_length=encoder.config.max_position_embeddings
        )
        result: list[int] = found["input_ids"]
        return result

    return Pipeline(encoder.eval(), unet.eval(), vae.eval(), tokens, Schedule.of(config))


def random_pipeline() -> Pipeline:
    """Small networks with random weights; a token is a byte."""
    package = diffusers()
    torch.manual_seed(0)
    length, width = 16, 32
    config = transformers.CLIPTextConfig(
        vocab_size=258, hidden_size=width, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=length, bos_token_id=256, eos_token_id=257, pad_token_id=257,
    )  # fmt: skip
    unet = package.UNet2DConditionModel(
        sample_size=16, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8, cross_attention_dim=width,
        attention_head_dim=8, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    vae = package.AutoencoderKL(
        block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip

    def tokens(text: str) -> list[int]:
        given = [256, *text.encode()[: length - 2]]
        return given + [257] * (length - len(given))

    encoder = transformers.CLIPTextModel(config)
    return Pipeline(encoder.eval(), unet.eval(), vae.eval(), tokens, Schedule.of(_SCHEDULER))


# ---- the entries -----------------------------------------------------------------------------------------------------


class Words(nn.Module):
    """Two texts ``int64[2, length]``, as the network for noise reads them."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.encoder(tokens).last_hidden_state
        return states


class Noise(nn.Module):
    """What the network predicts of ``latents [2, channels, height, width]`` at a step of training, ``int64[1]``."""

    def __init__(self, unet: Any) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, latents: torch.Tensor, time: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.unet(latents, time, encoder_hidden_states=words, return_dict=False)[0]
        return found


class Picture(nn.Module):
    """The picture ``[1, 3, height, width]``, of -1 to 1, of latents."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.vae.decode(latents / self.vae.config.scaling_factor, return_dict=False)[0]
        return found


def compiled(pipeline: Pipeline, size: int, threads: int = 0, report: Progress | None = None) -> luminal.Module:
    """The library for pictures of ``size`` pixels a side. Raises WrongFile for a size that the networks do not take."""
    step = pipeline.scale * int(2 ** (len(pipeline.unet.config.block_out_channels) - 1))
    if size < step or size % step:
        raise WrongFile(f"--size: expected a multiple of {step}, found {size}")
    tokens = torch.tensor([pipeline.tokens("")] * 2)
    with torch.no_grad():
        words = Words(pipeline.text_encoder)(tokens)
    side = size // pipeline.scale
    latents = torch.zeros(2, pipeline.unet.config.in_channels, side, side)
    found = luminal.compile(
        {"words": Words(pipeline.text_encoder), "noise": Noise(pipeline.unet), "picture": Picture(pipeline.vae)},
        {"words": (tokens,), "noise": (latents, torch.tensor([1]), words), "picture": (latents[:1],)},
        name="diffusion", threads=threads, progress=report,
    )  # fmt: skip
    assert isinstance(found, luminal.Module)
    return found


def start(pipeline: Pipeline, size: int, seed: int) -> Array:
    """The noise that a picture is made of."""
    side = size // pipeline.scale
    shape = (1, pipeline.unet.config.in_channels, side, side)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def painted(
    module: luminal.Module, pipeline: Pipeline, text: str, latents: Array, steps: int, guidance: float,
    done: Callable[[int], None] = lambda step: None,
) -> Array:  # fmt: skip
    """The picture ``float32[height, width, 3]`` of 0 to 1. What no text suggests is left behind, ``guidance`` times as
    far as what the text suggests (Ho and Salimans, "Classifier-Free Diffusion Guidance", 2022)."""
    tokens = np.array([pipeline.tokens(""), pipeline.tokens(text)])
    (words,) = module["words"].run({"tokens": tokens}).values()
    x = latents.astype(np.float64)
    for number, time in enumerate(pipeline.schedule.times(steps)):
        both = np.repeat(x, 2, 0).astype(np.float32)
        (found,) = module["noise"].run({"latents": both, "time": np.array([time]), "words": words}).values()
        without, suggested = found.astype(np.float64)
        x = pipeline.schedule.before(x, (without + guidance * (suggested - without))[None], time, steps)
        done(number + 1)
    (picture,) = module["picture"].run({"latents": x.astype(np.float32)}).values()
    result: Array = np.clip(picture[0].transpose(1, 2, 0) / 2 + 0.5, 0, 1)
    return result


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", default="a lighthouse at night")
    parser.add_argument("--model", type=Path, help="a folder of diffusers; default: random weights")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=7.5, help="how much the text counts")
    parser.add_argument("--size", type=int, help="pixels of a side; default: what the model was made for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("picture.png"))
    parser.add_argument("--threads", type=int, default=0, help="0: one for each CPU")
    given = parser.parse_args(arguments)
    pipeline = loaded(given.model)
    size = given.size or pipeline.size
    with progress() as report:
        module = compiled(pipeline, size, given.threads, report)

    def done(step: int) -> None:
        sys.stderr.write(f"\rstep {step} of {given.steps} ")

    latents = start(pipeline, size, given.seed)
    picture = painted(module, pipeline, given.text, latents, given.steps, given.guidance, done)
    pictures.write(given.output, np.rint(picture * 255).astype(np.uint8))
    sys.stderr.write(f"\n{given.output}\n")


if __name__ == "__main__":
    run(main)
