"""PyTorch's operator database differentiated: whether gradients are as near to float64 as eager PyTorch's are.

``python -m tests.gradient_suite`` takes the first sample of each entry that PyTorch differentiates, in float32, for
which the forward graph is imported, and writes ``tests/gradients_passed.txt`` and ``tests/gradients_failed.txt``: the
names of those that pass, and of those that fail with the reason. ``--only text`` takes the entries whose name holds the
text, and writes nothing.

A gradient passes if its largest distance from the one in float64 is at most twice that of eager PyTorch in float32, or
``FLOOR`` units in the last place of the largest gradient; and if it is NaN or infinite where one of these two is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from luminal.core import derivative, interp, ir
from luminal.core.errors import LuminalError
from luminal.core.gradient import pulled_back
from luminal.frontends.fx import importer
from tests.torch_cases import Case, Excluded, entries, is_random, operators, traced, traced_core

PASSED = Path(__file__).with_name("gradients_passed.txt")
FAILED = Path(__file__).with_name("gradients_failed.txt")
FLOOR = 4  # units in the last place
SECONDS = 60
SAMPLES = 12  # looked at to find one that has a gradient


@dataclass(frozen=True)
class Sample:
    """A case, and which of its tensors need gradients."""

    case: Case
    wanted: tuple[int, ...]


def samples(entry: OpInfo) -> Iterator[Sample]:
    """Samples of float32 of which a tensor needs a gradient."""
    torch.manual_seed(0)
    drawn = entry.sample_inputs("cpu", torch.float32, requires_grad=True)
    for number, sample in enumerate(islice(drawn, SAMPLES)):
        leaves, tree = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(
            *tensors: torch.Tensor, leaves: list[Any] = leaves, tree: Any = tree, places: list[int] = places
        ) -> list[torch.Tensor]:
            given = dict(zip(places, tensors, strict=True))
            arguments, named = pytree.tree_unflatten([given.get(k, leaf) for k, leaf in enumerate(leaves)], tree)
            results = pytree.tree_leaves(entry.op(*arguments, **named))
            return [result for result in results if isinstance(result, torch.Tensor)]

        wanted = tuple(k for k, place in enumerate(places) if leaves[place].requires_grad)
        tensors = tuple(leaves[place].detach() for place in places)
        if wanted and all(tensors[k].numel() and tensors[k].is_floating_point() for k in wanted):
            yield Sample(Case(entry, torch.float32, number, tensors, function), wanted)


def eager(
    sample: Sample, dtype: torch.dtype, weights: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[np.ndarray[Any, Any] | None]]:
    """The outputs, and PyTorch's gradients in ``dtype`` of their sum weighted by ``weights``."""
    tensors = [x.to(dtype) if x.is_floating_point() else x for x in sample.case.tensors]
    leaves = [x.clone().requires_grad_(k in sample.wanted) for k, x in enumerate(tensors)]
    results = sample.case.function(*(x.clone() for x in leaves))
    if not weights:
        generator = torch.Generator().manual_seed(1)
        weights += [torch.rand(x.shape, generator=generator, dtype=torch.float64) + 0.5 for x in results]
    pairs = [(x, w.to(x.dtype)) for x, w in zip(results, weights, strict=True) if x.requires_grad]
    if not pairs or any(x.is_complex() for x in results):
        raise Excluded("it has no real output with a gradient")
    outputs, cotangents = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, [leaves[k] for k in sample.wanted], cotangents, allow_unused=True)
    zeros = [torch.zeros_like(leaves[k], dtype=torch.float64) for k in sample.wanted]
    return results, [None if x is None else (x + zero).detach().numpy() for x, zero in zip(found, zeros, strict=True)]


def check(sample: Sample) -> str:
    """What is wrong with the gradients, or nothing. Raises Excluded where there is nothing to compare with."""
    case, weights = sample.case, []
    try:
        results, theirs = eager(sample, torch.float32, weights)
        _, exact = eager(sample, torch.float64, weights)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError) as error:
        raise Excluded(f"eager PyTorch fails: {str(error).splitlines()[0][:100]}") from error
    core, used = traced_core(case)
    if any(map(is_random, operators(core))):
        raise Excluded("it draws random numbers")
    own = traced(case, core, used)
    try:
        with np.errstate(all="ignore"):
            interp.run(importer.load(own), _values(importer.load(own), sample))
    except Exception as error:
        raise Excluded(f"the forward graph fails: {type(error).__name__}") from error
    with derivative.recorded():
        graph = importer.load(own)
        given = [graph.inputs[k] for k in sample.wanted]
        rows = zip(graph.results, weights, results, strict=True)
        pairs = [(y, ir.input_(f"weight {k}", y.shape, y.dtype), w) for k, (y, w, x) in enumerate(rows)
                 if x.requires_grad]  # fmt: skip
        cotangents = [node for _, node, _ in pairs]
        parts = pulled_back([y for y, _, _ in pairs], cotangents, given, dict(graph.origins))
    named = tuple((f"gradient {k}", part) for k, part in enumerate(parts) if part is not None)
    graph = derivative.plain(replace(graph, inputs=(*graph.inputs, *cotangents), outputs=named))
    inputs = _values(graph, sample) | {node.attr.name: w.numpy().astype(node.dtype.numpy) for _, node, w in pairs}
    with np.errstate(all="ignore"):
        values = iter(interp.run(graph, inputs).outputs)
    for number, (part, ours, there) in enumerate(zip(parts, theirs, exact, strict=True)):
        found = np.zeros(tuple(given[number].shape)) if part is None else next(values).astype(np.float64)
        zero = np.zeros(found.shape)
        problem = difference(found, zero if ours is None else ours, zero if there is None else there)
        if problem:
            return f"gradient {number}: {problem}"
    return ""


def _values(graph: ir.Graph, sample: Sample) -> dict[str, np.ndarray[Any, Any]]:
    return {node.attr.name: x.numpy() for node, x in zip(graph.inputs, sample.case.tensors, strict=False)}


def difference(found: np.ndarray[Any, Any], eager: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> str:
    """What is wrong with a gradient, beside eager PyTorch's in float32 and in float64; or nothing."""
    if found.shape != exact.shape:
        return f"expected the shape {exact.shape}, found {found.shape}"
    finite = np.isfinite(exact) & np.isfinite(eager)
    odd = ~(finite & np.isfinite(found))
    same = (found == exact) | (found == eager) | (np.isnan(found) & (np.isnan(exact) | np.isnan(eager)))
    if (odd & ~same).any():
        return f"{found[odd & ~same][0]} where PyTorch has {eager[odd & ~same][0]}"
    finite &= np.isfinite(found)
    scale = np.abs(exact[finite]).max(initial=0)
    ours, theirs = (np.abs(x[finite] - exact[finite]).max(initial=0) for x in (found, eager))
    allowed = max(2 * theirs, FLOOR * float(np.finfo(np.float32).eps) * scale, float(np.finfo(np.float32).tiny))
    return "" if ours <= allowed else f"off by {ours:.3g} at scale {scale:.3g}, eager by {theirs:.3g}"


class Slow(Exception):
    """A case that takes too long."""


def _alarm(number: int, frame: FrameType | None) -> None:
    raise Slow(f"more than {SECONDS} seconds")


def run(name: str) -> tuple[str, str]:
    """``passed``, ``failed`` or ``excluded``, and why, of the first sample of an entry that can be differentiated."""
    reason = "no sample needs a gradient"
    signal.signal(signal.SIGALRM, _alarm)
    try:
        for sample in samples(entries()[name]):
            signal.alarm(SECONDS)
            try:
                problem = check(sample)
                return ("failed", problem) if problem else ("passed", "")
            except Excluded as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - a crash is a line of the report
                text = " ".join(str(error).split())
                return "failed", (text if isinstance(error, LuminalError) else f"{type(error).__name__}: {text}")[:200]
            finally:
                signal.alarm(0)
    except Exception as error:  # noqa: BLE001 - PyTorch cannot make samples
        reason = f"no samples: {type(error).__name__}"
    return "excluded", reason


def names() -> list[str]:
    """Entries that PyTorch differentiates in float32."""
    return [
        name for name, entry in entries().items()
        if entry.supports_autograd and torch.float32 in entry.supported_dtypes("cpu")
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="entries whose name holds this text")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = [name for name in names() if options.only in name]
    found: dict[str, tuple[str, str]] = {}
    with multiprocessing.Pool(options.jobs) as pool:
        for name, (how, why) in zip(chosen, pool.imap(run, chosen), strict=True):
            found[name] = how, why
            if how != "passed":
                print(name, how, why, flush=True)
    passed = [name for name, (how, _) in found.items() if how == "passed"]
    failed = [f"{name}: {why}" for name, (how, why) in found.items() if how == "failed"]
    print(f"{len(passed)} of {len(passed) + len(failed)} pass", flush=True)
    if not options.only:
        PASSED.write_text("".join(f"{name}\n" for name in passed))
        FAILED.write_text("".join(f"{line}\n" for line in failed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
