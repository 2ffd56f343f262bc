"""What is measured on GPUs: functions by themselves, and models, at real and at tiny sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy
from transformers.initialization import no_init_weights

from benchmarks import zoo
from benchmarks.suite import CASES
from benchmarks.zoo import language
from benchmarks.zoo.model import Model


class Affine(nn.Module):
    """One read and one write of each element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.5 + 0.25


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


class Norm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:])


class Product(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


class Attention(nn.Module):
    """Plain code of attention, where ``causal`` each position on those up to it."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if self.causal:
            position = torch.arange(q.shape[-2], device=q.device)
            scores = scores.masked_fill(position[:, None] < position, float("-inf"))
        return torch.softmax(scores, -1) @ v


class Loss(nn.Module):
    """What a language model is trained by: the cross entropy of each token after those before it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids, attention_mask)
        return cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


ROWS = {False: (1 << 14, 4096), True: (6, 64)}  # of the functions that memory bounds; tiny or not
PRODUCTS = {  # rows, terms, columns
    False: ((8192, 8192, 8192), (4096, 4096, 4096), (1024, 1024, 1024), (512, 768, 3072), (1, 4096, 4096)),
    True: ((20, 12, 24), (1, 16, 8)),
}
ATTENTION = {False: (2, 16, 4096, 64), True: (1, 2, 12, 8)}  # batch, heads, sequence, width


def minilm(layers: int, batch: int, seq: int) -> Model:
    """MiniLM-L6 with drawn weights: a bare machine has no others."""
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=1536
    )
    with no_init_weights():
        module = language.SentenceEncoder(transformers.BertModel(config)).eval()
    inputs = zoo.sentences(batch, seq, config.vocab_size)
    return Model(zoo.randomise(module, inputs), inputs, {})


def _llama() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip


def decoder() -> Model:
    """A small model of Llama's shape."""
    torch.manual_seed(0)
    module = language.Decoder(transformers.LlamaForCausalLM(_llama())).eval()
    return Model(module, zoo.sentences(2, 5, 64)[:2], {})


def decoder_step() -> Model:
    """Its step: a token after six others."""
    torch.manual_seed(0)
    config = _llama()
    module = language.DecodeStep(transformers.LlamaForCausalLM(config)).eval()
    cache = torch.randn(2 * config.num_hidden_layers, 1, config.num_key_value_heads, 6, 16)
    return Model(module, (torch.tensor([[3]]), *cache.unbind()), {})


def _few(model: Model) -> Model:
    """Two images: its normalisations took their statistics of more."""
    return model._replace(inputs=(model.inputs[0][:2],))


# Few layers and small inputs, for checks and for emulation.
TINY: dict[str, Callable[[], Model]] = {
    "minilm": lambda: minilm(1, 1, 3),
    "bert-base": lambda: zoo.bert_base(1, 1, 3),
    "gpt2": lambda: zoo.gpt2(1, 1, 3),
    "vit": lambda: zoo.vit(1, 1, 32),
    "resnet50": lambda: _few(zoo.resnet50((1, 1, 1, 1), 16, 32)),
    "mobilenet": lambda: _few(zoo.mobilenet(False, 16, 32)),
    "convnext": lambda: zoo.convnext((1, 1, 1, 1), 1, 32),
    "whisper": lambda: zoo.whisper_encoder(1, 1, 16),
    "tinyllama": decoder,
    "tinyllama-step": decoder_step,
}
MODELS = tuple(name for name, case in CASES.items() if not case.decoder)  # the eight


def model(name: str, tiny: bool) -> Model:
    """A model of the suite at its real size, or its tiny form."""
    if tiny:
        return TINY[name]()
    return minilm(6, 1, 128) if name == "minilm" else CASES[name].build(zoo.LAYERS)


def step(tiny: bool) -> Model:
    """A loss to differentiate by the parameters of a decoder, and a batch."""
    made = decoder() if tiny else zoo.gpt2(12, 8, 256)
    ids, mask = made.inputs
    return Model(Loss(made.module), (ids, mask, ids.roll(-1, 1)), {})


def converted(made: Model, precision: str) -> Model:
    """The module and its inputs of floats in a precision."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in made.inputs)
    return made._replace(module=made.module.to(dtype), inputs=inputs)
