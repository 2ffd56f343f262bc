"""The page of what was counted without a device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gpu.static import quantised
from benchmarks.gpu.static.reasons import REASONS
from benchmarks.gpu.static.rows import OURS, TRITON, Row
from benchmarks.tables import markdown

BEHIND = 1.1  # times as much as Triton's that asks for a reason
# Below so many instructions for 1,000 multiply-adds or a KiB, a class decides nothing.
NEGLIGIBLE = 0.005
SCATTERED = 1.0  # sectors touched over the fewest that hold what a warp touches
ORDER = ("product", "attention", "causal attention", "softmax", "norm", *quantised.KINDS)

SHOWN = ("tensor", "shared", "global", "integer", "float", "barrier", "other", "local")

ABOUT = (
    "`python -m benchmarks.gpu static --triton PYTHON --write docs/gpu-static.md`. All rows are static: machine code "
    "was read, nothing ran on a GPU, and no row says how fast a kernel is. luminal's kernels are those that it ships "
    "by default, compiled by nvcc; Triton's are in the form and at the tile sizes of its tutorials, of which each row "
    "has the one that the limits below let expect to be the fastest. All compute in bfloat16, but a row of decoding "
    "times quantised weights, which Triton's tutorials do not have: activations in float32, or in 8 bits (q8)."
)

HOW = (
    "The block in the middle of each launch is followed through its machine code, as nvdisasm prints it, thread by "
    "thread: integers, predicates, branches and addresses are computed as the hardware does, with the arguments and "
    "sizes of the launch. Values in memory are ones, and so are products of matrices, so branches for infinities and "
    "denormals are not taken. Each instruction is therefore counted as often as each warp issues it, loops as often as "
    "they turn; nothing is estimated from the text. All blocks count as the middle one. The inner loop is the shortest "
    "stretch of code that a branch back closes and that has at least half of the products of matrices, or of all that "
    "is issued where there are none; a kernel without one counts whole. Counts are instructions of warps (one for 32 "
    "threads), divided by the multiply-adds that the work needs, or by the KiB that it has to read and write once."
)

CLASSES = (
    "`tensor`: products of matrices. `shared`: loads and stores of shared memory, `ldmatrix`. `global`: loads, stores "
    "and copies (`cp.async`, also into shared memory). `integer`: addresses, comparisons, moves. `float`: arithmetic "
    "and conversions. `barrier`: barriers, waits and fences. `other`: branches, shuffles. `local`: spills."
)

MORE = (
    "`B/unit` are bytes requested of shared and of global memory (caches included), for each multiply-add or byte of "
    "the work; wgmma's own reads of shared memory count. `width` is that of the inner loop's global accesses, in bytes "
    "of a thread: reads / writes. `ways` is the most words that one bank had to serve at once, `sectors` those touched "
    "over the fewest possible. `in flight` are groups of copies on their way while matrices are multiplied; where "
    "warps of their own copy, the slots besides the one that is read. "
    "`occupancy` follows from registers, shared memory and threads. `limit` is the highest of four: instructions "
    "issued at 4 a cycle, multiply-adds at the peak (1024 a cycle on sm_80, 2048 on sm_90; twice as many of bytes), "
    "waves of shared memory, 64 bytes a cycle of sectors; in cycles of one processor for each million multiply-adds or "
    "MiB. A kernel of "
    "several limits is slower than each of them. Where a row has several kernels, the worst of each is shown."
)


MODELS = (
    "Models at the sizes that they are timed at, with few layers, which have all their kernels; the training step is "
    "that of a tiny decoder. `ways` as above, of the worst kernel. `diverge` are kernels in which threads of a warp "
    "part at a branch. `narrow` are instructions of inner loops that read or write less than 16 bytes of global memory "
    "for a thread, but whose warps touch no more sectors than they have to; `scattered` are those that touch more."
)


ELEMENT, ROWS = 4, 4.0  # bytes of an element of a fragment; sectors over the fewest, of one that lies in eight rows
COLLIDING = (
    "Fragments of B are loaded from a stage that has no room between its terms (`StagedOperand.pitch` in "
    "`core/schedule/grid/staged.py`): eight rows of a matrix lie a multiple of 64 to 256 bytes apart."
)
NEIGHBOURS = "Threads of a warp read or write neighbouring elements, so no sector is touched in vain."
ELEMENTS = (
    "After a product whose results do not lie side by side in fours along its columns, or beside attention, each "
    "thread stores, and reads what is added, element by element as fragments have them: an "
    "instruction touches a part of a sector in each of eight rows (`core/schedule/grid/stage.py`)."
)
APART = 30  # sectors over the fewest, times bytes of a thread: nearly as many sectors as threads of a warp
FEW = (
    "A product of one row or few is summed by the threads of a block, each from terms of its own, and its weights lie "
    "term by term: an instruction touches a sector for each thread. The other elements of the sector are those of the "
    "blocks beside it."
)
STRAY = (
    "Terms of a step do not lie side by side where they are those of a window, or of an axis that is shorter than a "
    "step: neighbouring threads then copy neighbouring lines, element by element (`StagedOperand.contiguous` in "
    "`core/schedule/grid/staged.py`)."
)
MASKS = (
    "Masks of attention are read where the scores are, element by element as fragments have them, in eight rows "
    "(`core/schedule/grid/stream.py`)."
)
SHORT = (
    "Rows of fewer than 16 elements (`BlockCosts.short` in `core/grid.py`) are each reduced by one thread, and threads "
    "are a row apart: an instruction touches the sectors of 32 rows, and those after it the same ones."
)
BEST = 3  # candidates that are shown beside the default
CANDIDATES = (
    "The schedules that `python -m benchmarks.gpu --only tune/products` would time, in the order of their limits: the "
    "default, and the three best. A limit knows nothing of waiting, which occupancy and copies in flight hide, so a "
    "default may be better than its place."
)


def _figure(value: float) -> str:
    return "0" if value < 5e-4 else f"{value:.3f}" if value < 9.9995 else f"{value:.1f}"


def counts(rows: Iterable[Row], key: str) -> list[str]:
    """The table of instructions by class."""
    cells = []
    for row in rows:
        per = row[key]
        cells.append([row["what"], row["who"], row["how"], *(_figure(per.get(name, 0)) for name in SHOWN),
                      _figure(sum(per.values()))])  # fmt: skip
    return markdown(("work", "by", "how", *SHOWN, "all"), cells, left=3)


def _widths(kernels: Sequence[Mapping[str, Any]]) -> str:
    """The widths of global accesses, the most bytes first."""
    shown = []
    for how in ("read", "written"):
        total: dict[str, int] = {}
        for kernel in kernels:
            for width, count in kernel["widths"].get(how, {}).items():
                total[width] = total.get(width, 0) + count
        shown.append(", ".join(sorted(total, key=lambda width: -total[width])) or "-")
    return " / ".join(shown)


def limit(row: Row) -> tuple[str, float]:
    """What would bound the work, in cycles of a processor for a million multiply-adds or a MiB."""
    name = max(row["cycles"], key=lambda key: float(row["cycles"][key]))
    return name, row["cycles"][name] * (1000 if row["unit"] != "KiB" else 1024)


def resources(rows: Iterable[Row]) -> list[str]:
    """The table of what blocks take."""
    headings = ("work", "by", "registers", "shared", "spilled", "occupancy", "in flight", "shared B/unit",
                "global B/unit", "width", "ways", "sectors", "limit")  # fmt: skip
    cells = []
    for row in rows:
        kernels = row["kernels"]
        multiplying = [kernel["in_flight"] for kernel in kernels if kernel["multiplied"]]
        least = sum(kernel["moved"]["global"].get("least", 0) for kernel in kernels)
        sectors = sum(kernel["moved"]["global"].get("sectors", 0) for kernel in kernels) / max(least, 1)
        name, value = limit(row)
        cells.append([
            row["what"], row["who"], str(max(k["registers"] for k in kernels)),
            f"{max(k['shared'] for k in kernels)} B", f"{sum(k['spilled'] for k in kernels)} B",
            f"{min(k['occupancy'] for k in kernels):.0%}", str(min(multiplying)) if multiplying else "-",
            _figure(row["bytes"]["shared"]), _figure(row["bytes"]["global"]), _widths(kernels),
            str(max(k["ways"] for k in kernels)), f"{sectors:.2f}", f"{name}, {value:.0f}",
        ])  # fmt: skip
    return markdown(headings, cells, left=2)


def behind(rows: Sequence[Row]) -> list[tuple[Row, str, float, float]]:
    """Where luminal issues over a tenth more than Triton: the row, the class, both counts."""
    peers = {(row["what"], row["architecture"]): row for row in rows if row["who"] == TRITON}
    found = []
    for row in rows:
        other = peers.get((row["what"], row["architecture"]))
        if row["who"] != OURS or other is None:
            continue
        for name in SHOWN:
            mine, its = row["per"].get(name, 0), other["per"].get(name, 0)
            if mine > BEHIND * its and mine > NEGLIGIBLE:
                found.append((row, name, mine, its))
    return found


def reason(row: Row, name: str) -> str:
    """Why luminal issues more of a class there, as far as somebody has found out; empty where nobody has."""
    kind = row["kind"].removeprefix("causal ")
    for key in ((kind, row["architecture"], name), (kind, "", name)):
        if key in REASONS:
            return REASONS[key]
    return ""


def reasons(rows: Sequence[Row]) -> list[str]:
    """What luminal issues over a tenth more of, by reason."""
    grouped: dict[str, list[str]] = {}
    for row, name, mine, its in behind(rows):
        times = f"{mine / its:.1f} times" if its > NEGLIGIBLE / 10 else "Triton has none"
        grouped.setdefault(reason(row, name), []).append(f"{row['what']} on {row['architecture']}: {name} ({times})")
    lines = []
    for why, places in sorted(grouped.items(), key=lambda item: item[0] == ""):
        lines += [f"- {why or '**No reason is known yet.**'}", *(f"    - {place}" for place in places)]
    return lines


def known(kernel: str, place: Mapping[str, Any]) -> str:
    """Why an access of a model's kernel of that name collides or is scattered, as far as that was found out; empty
    where not."""
    if place["space"] == "shared":
        return COLLIDING if place["opcode"].startswith("LDSM") else ""
    if place["sectors"] <= SCATTERED:
        return NEIGHBOURS
    if kernel.startswith("row"):
        return FEW if place["sectors"] * place["width"] >= APART else SHORT
    if place["width"] <= ELEMENT and place["sectors"] <= ROWS:
        return ELEMENTS
    if kernel.startswith("chain") and place["width"] == 1:
        return MASKS
    return STRAY if kernel.startswith("contraction") and place["width"] <= ELEMENT and not place["write"] else ""


def of_models(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of models, and below it why accesses are narrow, scattered or collide."""
    cells, causes = [], Counter[str]()
    for one in found:
        kernels = one["kernels"]
        places = [place for kernel in kernels for place in kernel["places"]]
        narrow = [place for place in places if place["space"] == "global"]
        cells.append([
            one["model"], one["target"], one["precision"], str(len(kernels)), f"{sum(k['spilled'] for k in kernels)} B",
            str(max(k["ways"] for k in kernels)), str(sum(bool(k["diverged"]) for k in kernels)),
            str(sum(place["count"] for place in narrow if place["sectors"] <= SCATTERED)),
            str(sum(place["count"] for place in narrow if place["sectors"] > SCATTERED)),
        ])  # fmt: skip
        for name, place in ((kernel["name"], place) for kernel in kernels for place in kernel["places"]):
            causes[known(name, place) or f"**No reason is known yet** for {place['opcode']}."] += place["count"]
    headings = ("model", "target", "precision", "kernels", "spilled", "ways", "diverge", "narrow", "scattered")
    reasons = [f"- {count} instructions: {why}" for why, count in causes.most_common()]
    return [*markdown(headings, cells, left=3), "", *reasons]


def of_candidates(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each product the schedule that luminal takes, and those with the lowest limits."""
    cells = []
    for one in found:
        default = one["candidates"][0]
        ordered = sorted(one["candidates"], key=lambda c: (max(c["limits"].values()), c["issued"]))
        for tried in [default, *(c for c in ordered[:BEST] if c is not default)]:
            name = max(tried["limits"], key=lambda key: float(tried["limits"][key]))
            taken = "default" if tried is default else ""
            cells.append([
                one["what"], one["target"], tried["how"], f"{ordered.index(tried) + 1} of {len(ordered)}", taken,
                f"{name}, {1000 * tried['limits'][name]:.0f}", _figure(tried["issued"]), f"{tried['occupancy']:.0%}",
            ])  # fmt: skip
    headings = ("work", "target", "schedule", "place", "", "limit", "issued", "occupancy")
    return markdown(headings, cells, left=3)


def text(found: Mapping[str, Any]) -> str:
    """The page for ``docs/``."""
    rows = sorted(
        found["rows"], key=lambda row: (ORDER.index(row["kind"]), -math.prod(row["sizes"]), row["who"] != OURS)
    )
    with_triton = f"Triton {found['triton']}; " if found["triton"] else ""
    lines = ["# Kernels for NVIDIA's GPUs, read and counted", "", ABOUT, "", with_triton + found["about"], ""]
    lines += ["## How it is counted", "", HOW, "", CLASSES, "", MORE, ""]
    for architecture in dict.fromkeys(row["architecture"] for row in rows):
        own = [row for row in rows if row["architecture"] == architecture]
        products, others = ([row for row in own if (row["unit"] == "KiB") == bound] for bound in (False, True))
        lines += [f"## {architecture}, static", ""]
        for title, some in (("1,000 multiply-adds", products), ("KiB", others)):
            if some:
                lines += [f"Instructions of whole kernels for each {title}:", "", *counts(some, "per"), ""]
                lines += [f"Of inner loops alone, for each {title}:", "", *counts(some, "per_loop"), ""]
        lines += ["What blocks take, and how they read:", "", *resources(own), ""]
    lines += ["## Where luminal issues over a tenth more", "", *(reasons(rows) or ["Nowhere."])]
    if found["candidates"]:
        lines += ["", "## Candidates for products, static", "", CANDIDATES, "", *of_candidates(found["candidates"])]
    if found["models"]:
        lines += ["", "## Kernels of models, static", "", MODELS, "", *of_models(found["models"])]
    if found["failed"]:
        lines += ["", "## What Triton could not compile", "", *(f"- {line}" for line in found["failed"])]
    return "\n".join(lines) + "\n"
