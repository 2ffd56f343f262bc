"""The models that demos, tests and benchmarks compile: real architectures at their real widths.

Every function gives a module in evaluation mode, example inputs and the symbolic dimensions of the dynamic variant.
``layers`` and ``depths`` shorten a model without narrowing it. Weights are random, from a fixed seed, except those of
MiniLM. Default initialisations leave some outputs near zero, where any answer would look right; here every layer is
scaled by what it does to real activations, so that each block's output has a standard deviation near one.
"""

import os

# The hub client reads this when it is imported; no model here is fetched.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks.zoo.language import LAYERS, bert_base, gpt2, minilm, minilm_path, sentences, tinyllama, tinyllama_step
from benchmarks.zoo.model import Model, to_onnx
from benchmarks.zoo.quantised import quantise
from benchmarks.zoo.speech import whisper_encoder
from benchmarks.zoo.vision import convnext, mobilenet, resnet18, resnet50, vgg16, vit
from benchmarks.zoo.weights import randomise

__all__ = [
    "LAYERS",
    "Model",
    "bert_base",
    "convnext",
    "gpt2",
    "minilm",
    "minilm_path",
    "mobilenet",
    "quantise",
    "randomise",
    "resnet18",
    "resnet50",
    "sentences",
    "tinyllama",
    "tinyllama_step",
    "to_onnx",
    "vgg16",
    "vit",
    "whisper_encoder",
]
