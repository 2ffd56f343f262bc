"""Triton's kernels for the same work, in the form and at the tile sizes of its tutorials: compiled for an architecture
that is named, so without a GPU.

Run by a Python that has Triton, and needs nothing else: ``python peers.py FOLDER WORK``, where ``WORK`` is JSON: what
is computed and for which architectures. The machine code and ``kernels.json``, which says how it is launched, are
written into the folder.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import itertools
import json
import struct
import sys
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

PROGRAMS = 1024  # of a softmax: each goes through several rows


@triton.jit
def product(a, b, c, m_size, n_size, k_size, a_row, b_row, c_row, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
            GROUP: tl.constexpr):  # fmt: skip
    """A tile of a @ b. Blocks that run at once lie in groups of rows, so that they share what they read."""
    number = tl.program_id(0)
    row_tiles, column_tiles = tl.cdiv(m_size, M), tl.cdiv(n_size, N)
    first = number // (GROUP * column_tiles) * GROUP
    height = min(row_tiles - first, GROUP)
    row = first + number % (GROUP * column_tiles) % height
    column = number % (GROUP * column_tiles) // height
    rows = (row * M + tl.arange(0, M)) % m_size
    columns = (column * N + tl.arange(0, N)) % n_size
    depth = tl.arange(0, K)
    left = a + rows[:, None] * a_row + depth[None, :]
    right = b + depth[:, None] * b_row + columns[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in range(tl.cdiv(k_size, K)):
        x = tl.load(left, mask=depth[None, :] < k_size - step * K, other=0.0)
        y = tl.load(right, mask=depth[:, None] < k_size - step * K, other=0.0)
        total = tl.dot(x, y, total)
        left += K
        right += K * b_row
    rows = row * M + tl.arange(0, M)
    columns = column * N + tl.arange(0, N)
    inside = (rows[:, None] < m_size) & (columns[None, :] < n_size)
    tl.store(c + rows[:, None] * c_row + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def attended(q, k, v, total, top, weight, first, end, rows, scale, WIDTH: tl.constexpr, N: tl.constexpr,
             MASKED: tl.constexpr):  # fmt: skip
    """The sums of attention after the keys from ``first`` to ``end``."""
    width = tl.arange(0, WIDTH)
    for start in range(first, end, N):
        start = tl.multiple_of(start, N)
        columns = start + tl.arange(0, N)
        keys = tl.load(k + columns[None, :] * WIDTH + width[:, None])
        scores = tl.dot(q, keys) * scale
        if MASKED:
            scores = tl.where(rows[:, None] >= columns[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shares = tl.math.exp2(scores - higher[:, None])
        factor = tl.math.exp2(top - higher)
        weight = weight * factor + tl.sum(shares, 1)
        values = tl.load(v + columns[:, None] * WIDTH + width[None, :])
        total = tl.dot(shares.to(values.dtype), values, total * factor[:, None])
        top = higher
    return total, top, weight


@triton.jit
def attention(q, k, v, out, length, scale, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
              CAUSAL: tl.constexpr):  # fmt: skip
    """Rows of softmax(q @ k.T * scale) @ v, in one pass over the keys; ``scale`` has the logarithm's base in it."""
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64) * length * WIDTH
    rows, width = tile * M + tl.arange(0, M), tl.arange(0, WIDTH)
    places = rows[:, None] * WIDTH + width[None, :]
    queries = tl.load(q + head + places)
    total = tl.zeros((M, WIDTH), dtype=tl.float32)
    top = tl.full((M,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((M,), dtype=tl.float32)
    k += head
    v += head
    if CAUSAL:
        total, top, weight = attended(queries, k, v, total, top, weight, 0, tile * M, rows, scale, WIDTH, N, False)
        total, top, weight = attended(
            queries, k, v, total, top, weight, tile * M, tile * M + M, rows, scale, WIDTH, N, True
        )
    else:
        total, top, weight = attended(queries, k, v, total, top, weight, 0, length, rows, scale, WIDTH, N, False)
    tl.store(out + head + places, (total / weight[:, None]).to(out.dtype.element_ty))


@triton.jit
def softmax(x, y, rows, columns, SIZE: tl.constexpr, STAGES: tl.constexpr):
    """Rows in registers, one after the other."""
    place = tl.arange(0, SIZE)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        values = tl.load(x + row * columns + place, mask=place < columns, other=-float("inf")).to(tl.float32)
        powers = tl.exp(values - tl.max(values, 0))
        tl.store(y + row * columns + place, (powers / tl.sum(powers, 0)).to(y.dtype.element_ty), mask=place < columns)


@triton.jit
def norm_read_thrice(x, y, columns, epsilon, SIZE: tl.constexpr):
    """A row, read for its mean, for its variance, and to be normalised."""
    x += tl.program_id(0) * columns
    y += tl.program_id(0) * columns
    sums = tl.zeros((SIZE,), dtype=tl.float32)
    for start in range(0, columns, SIZE):
        place = start + tl.arange(0, SIZE)
        sums += tl.load(x + place, mask=place < columns, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / columns
    squares = tl.zeros((SIZE,), dtype=tl.float32)
    for start in range(0, columns, SIZE):
        place = start + tl.arange(0, SIZE)
        values = tl.load(x + place, mask=place < columns, other=0.0).to(tl.float32)
        apart = tl.where(place < columns, values - mean, 0.0)
        squares += apart * apart
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / columns + epsilon)
    for start in range(0, columns, SIZE):
        place = start + tl.arange(0, SIZE)
        values = tl.load(x + place, mask=place < columns, other=0.0).to(tl.float32)
        tl.store(y + place, ((values - mean) * scale).to(y.dtype.element_ty), mask=place < columns)


@triton.jit
def norm_in_registers(x, y, columns, epsilon, SIZE: tl.constexpr):
    """A row that is read once."""
    place = tl.arange(0, SIZE)
    start = tl.program_id(0) * columns
    values = tl.load(x + start + place, mask=place < columns, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / columns
    apart = tl.where(place < columns, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(apart * apart, 0) / columns + epsilon)
    tl.store(y + start + place, (apart * scale).to(y.dtype.element_ty), mask=place < columns)


# Tiles of rows, columns and depth, stages, warps: those that the tutorial on matrix products tries.
PRODUCTS = (
    (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2),
)  # fmt: skip
# Rows, keys at once, stages, warps: of those that the tutorial on attention tries.
ATTENTIONS = ((64, 64, 3, 4), (128, 64, 3, 4), (128, 64, 3, 8))


def _above(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def variants(work: dict[str, Any]) -> list[dict[str, Any]]:
    """How a piece of work is launched: kernel, arguments with their types, constants, grid, options."""
    found = []
    if work["kind"] == "product":
        m, k, n = work["sizes"]
        for rows, columns, depth, stages, warps in PRODUCTS:
            sizes = {"m_size": m, "n_size": n, "k_size": k, "a_row": k, "b_row": n, "c_row": n}
            found.append({
                "kernel": "product", "pointers": ("a", "b", "c"), "sizes": sizes,
                "constants": {"M": rows, "N": columns, "K": depth, "GROUP": 8}, "stages": stages, "warps": warps,
                "grid": (-(-m // rows) * -(-n // columns), 1, 1),
                "how": f"{rows} x {columns} x {depth}, {stages} stages, {warps} warps",
            })  # fmt: skip
    elif work["kind"] in ("attention", "causal attention"):
        batch, heads, length, width = work["sizes"]
        for rows, keys, stages, warps in ATTENTIONS:
            found.append({
                "kernel": "attention", "pointers": ("q", "k", "v", "out"), "sizes": {"length": length},
                "floats": {"scale": width**-0.5 * 1.4426950408889634},
                "constants": {"WIDTH": width, "M": rows, "N": keys, "CAUSAL": work["kind"] != "attention"},
                "grid": (length // rows, batch * heads, 1), "stages": stages, "warps": warps,
                "how": f"{rows} x {keys}, {stages} stages, {warps} warps",
            })  # fmt: skip
    elif work["kind"] == "softmax":
        rows, columns = work["sizes"]
        found += [{
            "kernel": "softmax", "pointers": ("x", "y"), "sizes": {"rows": rows, "columns": columns},
            "constants": {"SIZE": _above(columns), "STAGES": stages}, "grid": (min(rows, PROGRAMS), 1, 1),
            "stages": stages, "warps": 8, "how": f"{stages} stages, 8 warps",
        } for stages in (2, 4)]  # fmt: skip
    else:
        rows, columns = work["sizes"]
        warps = min(max(_above(columns) // 256, 1), 8)
        found += [{
            "kernel": kernel, "pointers": ("x", "y"), "sizes": {"columns": columns}, "floats": {"epsilon": 1e-5},
            "constants": {"SIZE": _above(columns)}, "grid": (rows, 1, 1), "stages": 3, "warps": warps,
            "how": f"{kernel.removeprefix('norm_').replace('_', ' ')}, {warps} warps",
        } for kernel in ("norm_read_thrice", "norm_in_registers")]  # fmt: skip
    return found


def compiled(variant: dict[str, Any], architecture: int) -> Any:
    """A kernel's machine code for an architecture."""
    floats = variant.get("floats", {})
    signature = {
        **dict.fromkeys(variant["pointers"], "*bf16"), **dict.fromkeys(variant["sizes"], "i32"),
        **dict.fromkeys(floats, "fp32"), **dict.fromkeys(variant["constants"], "constexpr"),
    }  # fmt: skip
    even = [*variant["pointers"], *(name for name, size in variant["sizes"].items() if size % 16 == 0)]
    names = list(signature)
    source = ASTSource(
        globals()[variant["kernel"]], signature=signature, constexprs=variant["constants"],
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in even},
    )  # fmt: skip
    options = {"num_warps": variant["warps"], "num_stages": variant["stages"]}
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def main(folder: Path, request: dict[str, Any]) -> None:
    """Compiles all variants of what is asked for. What does not fit an architecture is left out, and named."""
    listed = []
    for architecture, work in itertools.product(request["architectures"], request["works"]):
        for number, variant in enumerate(variants(work)):
            about = {"work": work, "architecture": architecture, "how": variant["how"]}
            try:
                made = compiled(variant, architecture)
            except Exception as error:  # noqa: BLE001  whatever a compiler says of a variant
                listed.append({**about, "failed": str(error).strip().splitlines()[-1][:200]})
                continue
            stem = f"{work['kind']}-{'-'.join(map(str, work['sizes']))}-{architecture}-{number}".replace(" ", "-")
            (folder / f"{stem}.cubin").write_bytes(made.asm["cubin"])
            (folder / f"{stem}.ptx").write_text(made.asm["ptx"], encoding="utf-8")
            listed.append({
                **about, "file": stem, "kernel": made.metadata.name, "threads": 32 * variant["warps"],
                "assembler": [get_ptxas(architecture).path, "-lineinfo", "--regAllocOptLevel=2"],
                "shared": made.metadata.shared, "grid": variant["grid"],
                "arguments": [*(None for _ in variant["pointers"]), *variant["sizes"].values(),
                              *map(_bits, variant.get("floats", {}).values()), None, None],
            })  # fmt: skip
    text = json.dumps({"version": triton.__version__, "kernels": listed})
    (folder / "kernels.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
