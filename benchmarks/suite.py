"""The models that are timed and checked at their real sizes, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import zoo

DECODER_LAYERS = 22


@dataclass(frozen=True)
class Case:
    """A model at the sizes that it is timed at; ``build(layers)`` makes it, ``layers`` being those of a decoder, and
    ``step`` says that it is a decoder's step: one token after those in its cache."""

    name: str
    title: str
    build: Callable[[int], zoo.Model]
    decoder: bool = False
    step: bool = False


CASES = {
    case.name: case
    for case in (
        Case("minilm", "MiniLM-L6, 128 tokens", lambda layers: zoo.minilm(batch=1, seq=128)),
        Case("bert-base", "BERT-base, 128 tokens", lambda layers: zoo.bert_base(batch=1, seq=128)),
        Case("gpt2", "GPT-2, 256 tokens", lambda layers: zoo.gpt2(batch=1, seq=256)),
        Case("vit", "ViT-B/16, 224", lambda layers: zoo.vit(batch=1)),
        Case("resnet50", "ResNet-50, 224", lambda layers: zoo.resnet50(batch=1)),
        Case("mobilenet", "MobileNetV2, 224", lambda layers: zoo.mobilenet(batch=1)),
        Case("convnext", "ConvNeXt-T, 224", lambda layers: zoo.convnext(batch=1)),
        Case("whisper", "Whisper-tiny's encoder, 30 s", lambda layers: zoo.whisper_encoder(batch=1)),
        Case(
            "tinyllama",
            "TinyLlama's decoder, 64 tokens",
            lambda layers: zoo.tinyllama(layers, batch=1, seq=64),
            decoder=True,
        ),
        Case(
            "tinyllama-step",
            "TinyLlama's decoder, 1 token after 256",
            lambda layers: zoo.tinyllama_step(layers, batch=1, past=256),
            decoder=True,
            step=True,
        ),
    )
}


def chosen(names: list[str] | None) -> list[Case]:
    """The cases of these names, in the order of the suite; all without. Raises ValueError for a name that none has."""
    unknown = [name for name in names or () if name not in CASES]
    if unknown:
        raise ValueError(f"no model is called {', '.join(unknown)}; there are {', '.join(CASES)}")
    return [case for name, case in CASES.items() if not names or name in names]
