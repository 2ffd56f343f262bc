"""The whole path on a real model: ``make demo``.

all-MiniLM-L6-v2 with its real weights, from PyTorch and from ONNX, becomes two libraries that serve every batch up to
32 and every length up to 256. They are compared with PyTorch and onnxruntime, asked for the similarities of sentences,
exported, called from a C program that knows nothing of Python, and timed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import luminal  # noqa: E402
from benchmarks import zoo  # noqa: E402
from luminal.comparison.references import session_options  # noqa: E402
from luminal.display import Display  # noqa: E402
from luminal.module import Module  # noqa: E402
from luminal.timing import interleaved, text  # noqa: E402

BUILD = HERE / "build"
THREADS = 2
DIMS = {"batch": (1, 32), "seq": (1, 256)}
SENTENCES = (
    "A man is eating a piece of bread.",
    "Somebody has a slice of toast for breakfast.",
    "The orchestra plays a symphony by Mahler.",
    "Musicians perform classical music in a concert hall.",
    "The compiler turns a neural network into a library.",
)

console = Console(width=None if sys.stdout.isatty() else 110)
Inputs = Mapping[str, NDArray[np.int64]]


@contextmanager
def chapter(title: str) -> Iterator[Display]:
    """A heading, and progress for what happens under it."""
    console.print(f"\n[bold]{title}")
    with Display(Console(stderr=True)) as display:
        yield display


def tokenize(sentences: tuple[str, ...]) -> Inputs:
    """Token ids, mask and types of ``sentences``, padded to the longest."""
    tokenizer = Tokenizer.from_file(str(zoo.minilm_path() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(sentences))
    ids = np.array([e.ids for e in encoded], np.int64)
    mask = np.array([e.attention_mask for e in encoded], np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def similarities(module: Module, inputs: Inputs) -> NDArray[np.float64]:
    """Cosines of the sentences' embeddings, which have length one."""
    _, embeddings = module(**inputs)
    wide = np.asarray(embeddings, np.float64)
    return wide @ wide.T


def compiled(what: str, display: Display, *args: object, **options: object) -> Module:
    start = time.perf_counter()
    module = luminal.compile(*args, **options, threads=THREADS, progress=display.report)
    assert isinstance(module, Module)
    console.print(f"  {what}: compiled in {text(time.perf_counter() - start)}")
    return module


def show(matrix: NDArray[np.float64]) -> None:
    table = Table(box=None)
    table.add_column()
    for number in range(len(SENTENCES)):
        table.add_column(str(number + 1), justify="right")
    for number, (sentence, row) in enumerate(zip(SENTENCES, matrix, strict=True)):
        cells = [f"[bold green]{v:.3f}" if v > 0.5 and k != number else f"{v:.3f}" for k, v in enumerate(row)]
        table.add_row(f"{number + 1}  {sentence}", *cells)
    console.print(table)


def from_c(folder: Path, inputs: Inputs) -> NDArray[np.float64]:
    """The similarities as the C program beside this file computes them from the exported library alone."""
    program = BUILD / "similarities"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("the demo's C program needs a C compiler: install gcc or clang")
    command = [compiler, "-std=c99", "-O2", HERE / "c" / "main.c", "-I", folder, "-L", folder, "-lminilm"]
    subprocess.run([*map(str, command), f"-Wl,-rpath,{folder}", "-o", str(program)], check=True)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    tokens = " ".join(map(str, [*ids.shape, *ids.ravel(), *mask.ravel()]))
    done = subprocess.run([str(program)], input=tokens, text=True, capture_output=True, check=True)
    return np.array([[float(value) for value in line.split()] for line in done.stdout.splitlines()])


def timings(module: Module, path: Path, display: Display) -> Table:
    """A table of median times at three sizes, on the same threads, in turns."""
    session = onnxruntime.InferenceSession(
        path, session_options(THREADS, fastest=True), providers=["CPUExecutionProvider"]
    )
    table = Table(box=None)
    for heading in ("batch x length", "luminal", "onnxruntime", "luminal takes"):
        table.add_column(heading, justify="right")
    for batch, length in ((1, 16), (1, 128), (8, 128)):
        ids = np.random.default_rng(0).integers(1000, 30000, (batch, length))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        found = interleaved(
            {"luminal": lambda i=inputs: module.run(i), "onnxruntime": lambda i=inputs: session.run(None, i)},
            watch=lambda done, total, b=batch, n=length: display.report(f"time {b} x {n}", done / total),
        )
        ours, theirs = found["luminal"].median, found["onnxruntime"].median
        table.add_row(f"{batch} x {length}", text(ours), text(theirs), f"[bold]{ours / theirs:.2f}x")
    return table


def main() -> int:
    warnings.simplefilter("ignore")  # what PyTorch's exporters say of themselves
    BUILD.mkdir(exist_ok=True)
    torch.set_num_threads(THREADS)
    model = zoo.minilm()
    path = BUILD / "minilm.onnx"

    with chapter("all-MiniLM-L6-v2, batch 1..32, length 1..256") as display:
        display.report("export to ONNX", 0.0)
        zoo.to_onnx(model, path)
        display.report("export to ONNX", 1.0)
        from_torch = compiled("from PyTorch", display, model.module, model.inputs, dims=model.dims)
        from_onnx = compiled("from ONNX", display, path, dims=DIMS, name="minilm")

    with chapter("Compared with the frameworks and with float64") as display:
        reports = [
            luminal.diff(model.module, model.inputs, dims=model.dims, threads=THREADS, progress=display.report),
            luminal.diff(path, dims=DIMS, threads=THREADS, progress=display.report),
        ]
    for report in reports:
        console.print(report)

    inputs = tokenize(SENTENCES)
    ours = similarities(from_onnx, inputs)
    with chapter("Similarities of sentences"):
        show(ours)
    apart = float(np.abs(ours - similarities(from_torch, inputs)).max())
    console.print(f"  the library from PyTorch differs by at most {apart:.1e}")

    with chapter("The same from C"):
        folder = from_onnx.export(BUILD / "minilm")
        in_c = float(np.abs(ours - from_c(folder, inputs)).max())
    size = sum(file.stat().st_size for file in folder.glob("*minilm.[sw]*"))
    console.print(f"  examples/c/main.c with {folder.relative_to(HERE.parent)}: differs by at most {in_c:.1e}")
    console.print(f"  library and weights: {size / 1e6:.1f} MB, nothing else is needed")

    with chapter(f"Time on {THREADS} threads, medians of interleaved runs") as display:
        table = timings(from_onnx, path, display)
    console.print(table)

    good = all(report.ok for report in reports) and apart < 1e-5 and in_c < 1e-5
    console.print("\n[bold green]all agree" if good else "\n[bold red]something differs")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
