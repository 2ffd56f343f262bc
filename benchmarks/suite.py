"""The models that are timed and checked at their real sizes, by name, and the settings that they are timed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import zoo

DECODER_LAYERS = zoo.LAYERS
# As they are called in prose. What is in integers are the contractions of the ONNX file itself, quantised.
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "int8": "8-bit integers"}
COMPUTED = {"fp32": "fp32", "bf16": "bf16", "int8": "fp32"}  # how luminal computes what is not in integers
LASTING = 20.0  # seconds that contenders take turns for at least: the median of a short model needs more runs
FRONT_ENDS = ("PyTorch", "ONNX")
KINDS = ("fixed", "symbolic")


@dataclass(frozen=True)
class Case:
    """A model at the sizes that it is timed at; ``make(layers, batch)`` makes it, ``layers`` being those of a decoder.
    ``step`` says that it is a decoder's step: one token after those in its cache. It is timed at each of ``batches``.
    """

    name: str
    title: str
    make: Callable[[int, int], zoo.Model]
    decoder: bool = False
    step: bool = False
    batches: tuple[int, ...] = (1, 8)

    def build(self, layers: int, batch: int = 1) -> zoo.Model:
        """The model with an example of that batch."""
        return self.make(layers, batch)


@dataclass(frozen=True)
class Setting:
    """What everybody gets: ``precision`` (one of ``PRECISIONS``), samples in a ``batch``, threads."""

    precision: str = "fp32"
    batch: int = 1
    threads: int = 2

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{PRECISIONS[self.precision]}, batch {self.batch}, {threads}"

    @property
    def main(self) -> bool:
        """Whether luminal is timed in it through both front ends, and with symbolic sizes too."""
        return self.batch == 1 and self.threads == 2 and not self.quantised

    @property
    def quantised(self) -> bool:
        """Whether everybody gets the ONNX file with its contractions in integers, and nothing else."""
        return self.precision == "int8"

    @property
    def front_ends(self) -> tuple[str, ...]:
        """Those that luminal is timed through; the first is the one that ratios speak of."""
        if self.quantised:
            return ("ONNX",)
        return FRONT_ENDS if self.main else FRONT_ENDS[:1]

    @property
    def headline(self) -> str:
        """What of luminal is timed in every setting."""
        return luminal(self.front_ends[0])


def luminal(front_end: str, kind: str = "fixed") -> str:
    """The name of luminal among the contenders."""
    return f"luminal {front_end} {kind}"


LARGE = (1, 8, 32)

CASES = {
    case.name: case
    for case in (
        Case("minilm", "MiniLM-L6, 128 tokens", lambda layers, batch: zoo.minilm(batch=batch, seq=128), batches=LARGE),
        Case("bert-base", "BERT-base, 128 tokens", lambda layers, batch: zoo.bert_base(batch=batch, seq=128)),
        Case("gpt2", "GPT-2, 256 tokens", lambda layers, batch: zoo.gpt2(batch=batch, seq=256)),
        Case("vit", "ViT-B/16, 224", lambda layers, batch: zoo.vit(batch=batch)),
        Case("resnet50", "ResNet-50, 224", lambda layers, batch: zoo.resnet50(batch=batch), batches=LARGE),
        Case("mobilenet", "MobileNetV2, 224", lambda layers, batch: zoo.mobilenet(batch=batch), batches=LARGE),
        Case("convnext", "ConvNeXt-T, 224", lambda layers, batch: zoo.convnext(batch=batch), batches=LARGE),
        Case("whisper", "Whisper-tiny's encoder, 30 s", lambda layers, batch: zoo.whisper_encoder(batch=batch)),
        Case(
            "tinyllama",
            "TinyLlama's decoder, 64 tokens",
            lambda layers, batch: zoo.tinyllama(layers, batch=batch, seq=64),
            decoder=True,
        ),
        Case(
            "tinyllama-step",
            "TinyLlama's decoder, 1 token after 256",
            lambda layers, batch: zoo.tinyllama_step(layers, batch=batch, past=256),
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
