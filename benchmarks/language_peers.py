"""What language models are timed beside, each in a process of its own: ``python -m benchmarks.language_peers OPTIONS``,
a line of JSON on standard output. Weights are random, of the shape that luminal's are.

eager and inductor are transformers' modules with its static cache, whose steps ``torch.compile`` compiles for the
latter. onnxruntime-genai runs what its own model builder makes of such a module, openvino-genai a GGUF file; both
choose by themselves how activations are rounded where weights have 8 or 4 bits.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import llama
from benchmarks.language import CONTEXT, PLACES, PROMPT, SHAPES, SLOTS, WORK, drawn
from luminal.timing import Timing, interleaved

NEAR, FAR, BATCH, PREFILL = WORK
BUDGET = 40.0  # seconds of each piece of work
Times = dict[str, Timing]


@dataclass(frozen=True)
class Peer:
    """A runtime: the packages that it needs, and what ``time(folder, shape, kind, threads, runs)`` calls each of the
    kinds of weights that it knows; ``time`` gives the times of those of ``WORK`` that it can do."""

    packages: tuple[str, ...]
    kinds: dict[str, str]
    time: Callable[[Path, llama.Shape, str, int, int], Times]


def module(shape: llama.Shape, kind: str = "float32") -> Any:
    """transformers' module of that shape."""
    import torch
    import transformers

    made = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[shape.architecture]
    config = made(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=CONTEXT, tie_word_embeddings=shape.tied, rms_norm_eps=1e-5, bos_token_id=0,
        eos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, kind)).eval()


def repeated(step: Callable[[], object], runs: int) -> Timing:
    return interleaved({"": step}, runs, warmup=1, budget=BUDGET)[""]


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def time_torch(folder: Path, shape: llama.Shape, kind: str, threads: int, runs: int, compiled: bool = False) -> Times:
    """A step writes its row of the cache at the same place again and again."""
    import torch
    import torch._inductor.config
    import transformers

    torch.set_num_threads(threads)
    model = module(shape, kind)
    forward = torch.compile(model, dynamic=False) if compiled else model
    found: Times = {}
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):

        def timed(what: str, slots: int, place: int, count: int) -> None:
            cache = transformers.StaticCache(config=model.config, max_cache_len=CONTEXT)
            given = torch.tensor([drawn(shape.vocabulary, CONTEXT)] * slots)

            def step(call: Any = forward) -> object:
                for layer in cache.layers:
                    layer.cumulative_length.fill_(place)
                part = given[:, place : place + count].contiguous()
                return call(input_ids=part, cache=cache, use_cache=True, logits_to_keep=1)

            if place:
                model(input_ids=given[:, :place], cache=cache, use_cache=True, logits_to_keep=1)
            else:
                step(model)  # it makes the memory of the cache
            found[what] = repeated(step, runs)

        timed(NEAR, 1, PLACES[0], 1)
        timed(FAR, 1, PLACES[1], 1)
        timed(BATCH, SLOTS, PLACES[0], 1)
        timed(PREFILL, 1, 0, PROMPT)
    return found


# ---- onnxruntime -----------------------------------------------------------------------------------------------------


def words(count: int) -> list[str]:
    """So many tokens, the bytes first: what a runtime insists on having, and what nothing here reads."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*letters, *(f"<{k}>" for k in range(count - len(letters)))][:count]


def time_onnxruntime(folder: Path, shape: llama.Shape, kind: str, threads: int, runs: int) -> Times:
    """Its builder and its generator, on the CPU."""
    import onnxruntime_genai
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    source, built = folder / "model", folder / "built"
    module(shape).save_pretrained(source)
    table = words(shape.vocabulary)
    made = Tokenizer(models.BPE({word: k for k, word in enumerate(table)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = {"bos_token": table[0], "eos_token": table[1], "pad_token": table[1]}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(source)
    builder: list[str | Path] = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        source,
        "-o",
        built,
        "-p",
        kind,
    ]
    subprocess.run([*builder, "-e", "cpu", "-c", folder / "cache"], check=True, capture_output=True)
    config = onnxruntime_genai.Config(str(built))
    session = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": session}}))
    model = onnxruntime_genai.Model(config)
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=CONTEXT, batch_size=1)
    generator = onnxruntime_genai.Generator(model, parameters)
    tokens = np.array(drawn(shape.vocabulary, CONTEXT), np.int32)

    def step(place: int, count: int) -> None:
        generator.append_tokens(tokens[place : place + count])
        generator.get_logits()
        generator.rewind_to(place)

    found: Times = {PREFILL: repeated(partial(step, 0, PROMPT), runs)}
    for what, place in ((NEAR, PLACES[0]), (FAR, PLACES[1])):
        generator.append_tokens(tokens[generator.token_count() : place])
        found[what] = repeated(partial(step, place, 1), runs)
    return found


# ---- OpenVINO --------------------------------------------------------------------------------------------------------


def time_openvino(folder: Path, shape: llama.Shape, kind: str, threads: int, runs: int) -> Times:
    """Its pipeline, which says itself how long each step took: first that of the prompt, then those of single tokens,
    of which the first is left out."""
    import openvino
    import openvino_genai

    path = llama.write(folder / "model.gguf", kind, shape, CONTEXT, words(shape.vocabulary))
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    pipeline = openvino_genai.LLMPipeline(str(path), "CPU", ATTENTION_BACKEND="SDPA", **settings)
    config = openvino_genai.GenerationConfig()
    config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False

    def steps(prompt: int, count: int) -> list[float]:
        config.max_new_tokens = count
        given = openvino.Tensor(np.array([drawn(shape.vocabulary, prompt)], np.int64))
        made = pipeline.generate(given, config)
        return [1e-6 * microseconds for microseconds in made.perf_metrics.raw_metrics.token_infer_durations]

    steps(PROMPT, 1)  # the first call makes things ready
    found = {PREFILL: Timing(tuple(steps(PROMPT, 1)[0] for _ in range(min(runs, 5))))}
    for what, place in ((NEAR, PLACES[0]), (FAR, PLACES[1])):
        found[what] = Timing(tuple(steps(place, runs + 2)[2:]))
    return found


PEERS = {
    "eager": Peer(("torch", "transformers"), {"f32": "float32", "bf16": "bfloat16"}, time_torch),
    "inductor": Peer(
        ("torch", "transformers"), {"f32": "float32", "bf16": "bfloat16"}, partial(time_torch, compiled=True)
    ),
    "onnxruntime-genai": Peer(
        ("onnxruntime_genai", "torch", "transformers"), {"f32": "fp32", "q8_0": "int8", "q4_0": "int4"},
        time_onnxruntime,
    ),
    "openvino-genai": Peer(
        ("openvino_genai", "gguf", "tokenizers"), {"q8_0": "q8_0", "q4_0": "q4_0", "q4_k": "q4_k"},
        time_openvino,
    ),
}  # fmt: skip


def missing(peers: Sequence[str]) -> dict[str, list[str]]:
    """Of each of ``peers``, the packages that this Python lacks."""
    return {name: [p for p in PEERS[name].packages if importlib.util.find_spec(p) is None] for name in peers}


def measure(peer: str, name: str, kind: str, layers: int, threads: int, runs: int) -> dict[str, Any]:
    """The medians and minimums of a peer's pieces of work, and its version."""
    found, shape = PEERS[peer], SHAPES[name][1]
    shape = replace(shape, layers=layers or shape.layers)
    with tempfile.TemporaryDirectory(prefix="luminal-benchmarks-") as folder:
        times = found.time(Path(folder), shape, found.kinds[kind], threads, runs)
    package = found.packages[0].replace("_", "-")
    version = f"{peer} {importlib.metadata.version(package)}"
    medians = {what: (time.median, time.best) for what, time in times.items()}
    return {"times": medians, "version": version, "layers": shape.layers}


def main() -> None:
    """Reads its options as JSON: it is called by ``benchmarks.llm``."""
    warnings.simplefilter("ignore")
    options = json.loads(sys.argv[1])
    print(json.dumps(missing(options["missing"]) if "missing" in options else measure(**options)))


if __name__ == "__main__":
    main()
