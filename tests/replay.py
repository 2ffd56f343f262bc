"""The generated sources of a fixed set of models, as one line each: ``python -m tests.replay FILE``.

A change that only moves code must not change them. Write the lines before and after it, and compare the two files::

    python -m tests.replay before.txt        # on the commit that the change starts from
    python -m tests.replay after.txt
    diff before.txt after.txt                # a line names the model, the target and the file that differ

``--against REVISION`` does all three, with the other commit in a folder of its own. ``--sources FOLDER`` keeps the
sources, to see what changed in them.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Each model at its real sizes, and shrunken ones of many kinds; for each, the targets with their precision.
REAL = ("minilm", "bert-base", "gpt2", "vit", "resnet50", "mobilenet", "convnext", "whisper")
REAL_FOR = (("avx512", "fp32"), ("amx", "bf16"))
SHRUNKEN = (
    "bert", "deberta", "fnet", "xlnet", "llama", "gemma2", "bloom", "mixtral", "gpt_oss", "mamba", "rwkv", "jamba",
    "qwen3_next", "t5", "beit", "cvt", "convnext", "resnet", "segformer", "swin",
)  # fmt: skip
SHRUNKEN_FOR = (
    ("avx2", "fp32"), ("avx512-bf16", "bf16"), ("aarch64", "fp32"), ("cuda:sm_90", "bf16"), ("metal", "fp32"),
)  # fmt: skip


def lines(name: str, keep: Path | None = None) -> list[str]:
    """A line for each file that is generated for the model ``name``, for each of its targets."""
    import torch

    from luminal.codegen import render
    from luminal.core import target as targets
    from luminal.core.errors import LuminalError
    from luminal.core.pipeline import compile_graph
    from luminal.frontends.fx import importer
    from tests import architectures

    torch.set_num_threads(1)
    kind, _, called = name.partition(":")
    result: list[str] = []
    if kind == "real":
        from benchmarks.suite import CASES

        model = CASES[called].build(1)
        graphs = [importer.load(model.module, model.inputs), importer.load(model.module, model.inputs, dims=model.dims)]
    else:
        table = {architecture.name: architecture for architecture in architectures.TABLE}
        graphs = [importer.load(*architectures.build(table[called]))]
    for number, graph in enumerate(graphs):
        for target, precision in REAL_FOR if kind == "real" else SHRUNKEN_FOR:
            title = f"{name}{' symbolic' if number else ''} {target} {precision}"
            chosen = targets.parse(target, precision, threads=2)
            try:
                program = compile_graph(graph, chosen)
                bundle = render.render(program, chosen)
            except LuminalError as error:
                result.append(f"{title}: {type(error).__name__} {error}")
                continue
            packed = sorted(
                (name, digest.hex(), program.buffer(name).order) for name, digest in program.digests.items()
            )
            result.append(f"{title} constants {hashlib.sha256(repr(packed).encode()).hexdigest()[:16]}")
            for path, text in sorted(bundle.files.items()):
                result.append(f"{title} {path} {hashlib.sha256(text.encode()).hexdigest()[:16]}")
                if keep is not None:
                    file = keep / title.replace(" ", "-").replace(":", "-") / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text)
    return result


def everything(jobs: int, only: str, keep: Path | None) -> Iterator[str]:
    """The lines of all models whose name contains ``only``."""
    names = [f"real:{name}" for name in REAL] + [f"shrunken:{name}" for name in SHRUNKEN]
    names = [name for name in names if only in name]
    work: Callable[[str], list[str]] = _Kept(keep)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for number, found in enumerate(pool.map(work, names), 1):
            print(f"{number}/{len(names)} {names[number - 1]}: {len(found)} files", file=sys.stderr, flush=True)
            yield from found


class _Kept:
    """``lines`` with a folder to keep sources in; it goes to other processes."""

    def __init__(self, keep: Path | None) -> None:
        self.keep = keep

    def __call__(self, name: str) -> list[str]:
        return lines(name, self.keep)


def before(revision: str, arguments: list[str]) -> list[str]:
    """The lines of another commit."""
    with tempfile.TemporaryDirectory() as folder:
        tree, file = Path(folder, "tree"), Path(folder, "lines.txt")
        subprocess.run(["git", "worktree", "add", "--detach", tree, revision], cwd=ROOT, check=True)
        try:
            environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
            code = Path(__file__).read_text()  # the other commit may not have this file
            (tree / "tests" / "replay.py").write_text(code)
            command = [sys.executable, "-m", "tests.replay", file, *arguments]
            subprocess.run(command, cwd=tree, env=environment, check=True)
            return file.read_text().splitlines()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="where the lines go; default: the screen")
    parser.add_argument("--against", metavar="REVISION", help="compare with another commit")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sources", metavar="FOLDER", type=Path, help="keep the sources")
    given = parser.parse_args()
    keep = given.sources.resolve() if given.sources else None
    found = list(everything(given.jobs, given.only, keep))
    if given.file:
        given.file.write_text("\n".join(found) + "\n")
    if given.against:
        then = before(given.against, ["--only", given.only, "--jobs", str(given.jobs)])
        changed = list(difflib.unified_diff(then, found, given.against, "now", lineterm="", n=0))
        print("\n".join(changed) if changed else f"{len(found)} files, all as in {given.against}")
        sys.exit(bool(changed))
    if not given.file:
        print("\n".join(found))


if __name__ == "__main__":
    main()
