"""Machine code that is followed without a GPU, against numpy and against what kernels must do; the command's page."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.static import models, page, rows
from benchmarks.gpu.static.rows import OURS, TRITON, Work
from luminal.codegen import toolchain
from luminal.core import target as targets
from luminal.core.errors import BuildError
from luminal.core.pipeline import compile_graph
from luminal.frontends.fx import importer
from luminal.machine_code import follow, memory, sass, tools
from luminal.machine_code import kernels as counting
from luminal.machine_code.operands import Lanes, UnknownInstruction

Array = np.ndarray[Any, Any]


def lacking() -> str:
    """What is not there to make and read machine code."""
    try:
        tools.find("nvdisasm")
        toolchain.find_nvcc()
    except BuildError as error:
        return str(error)
    return ""


needs_tools = pytest.mark.skipif(bool(lacking()), reason=lacking())

THREADS = 64
# Places in an array as functions of the thread's number, in C++ and in numpy.
FORMULAS = {
    "i * 7919 % 1000": lambda i, n, w: i * 7919 % 1000,
    "i * i / (n + 2)": lambda i, n, w: i * i // (n + 2),
    "(n - 40 - i) % 7 + 20": lambda i, n, w: np.fmod(n - 40 - i, 7) + 20,
    "(i - 30) / 4 + 9": lambda i, n, w: np.trunc((i - 30) / 4).astype(np.int64) + 9,
    "(i ^ n) & 0x5a | i >> 1": lambda i, n, w: (i ^ n) & 0x5A | i >> 1,
    "min(i * 3, n) + max(i - n, 2)": lambda i, n, w: np.minimum(i * 3, n) + np.maximum(i - n, 2),
    "(int)(w * i >> 33)": lambda i, n, w: w * i >> 33,
    "(int)((w + i) / 1000003 % 5000)": lambda i, n, w: (w + i) // 1000003 % 5000,
    "(int)__umulhi(i * 123456789u, 0x9e3779b9u) & 0xfff": lambda i, n, w: (
        (i * 123456789 & 0xFFFFFFFF) * 0x9E3779B9 >> 32 & 0xFFF
    ),
    "__popc(i * 77) * 3 + __clz(i + 1)": lambda i, n, w: np.array(
        [bin(int(x) * 77).count("1") * 3 + 32 - int(x + 1).bit_length() for x in i]
    ),
    "i % 3 == 1 ? n - i : i * 5": lambda i, n, w: np.where(i % 3 == 1, n - i, i * 5),
    "(int)(i * 1.5f) + (int)rintf(i / 3.0f)": lambda i, n, w: (
        (i * 1.5).astype(np.int64) + np.rint(i.astype(np.float32) / np.float32(3)).astype(np.int64)
    ),
    "__shfl_xor_sync(~0u, i * 4, 5) + __shfl_down_sync(~0u, i, 3)": lambda i, n, w: (
        (i ^ 5) * 4 + np.where(i % 32 < 29, i + 3, i)
    ),
}  # fmt: skip


def assembled(text: str, architecture: str, folder: Path) -> sass.Code:
    (folder / "kernel.cu").write_text(text)
    cubin = folder / "kernel.cubin"
    done = toolchain.find_nvcc().run(["-cubin", f"-arch={architecture}", "kernel.cu", "-o", str(cubin)], folder)
    assert done.returncode == 0, done.stderr
    return tools.disassembled(cubin)["kernel"]


def written_by(code: sass.Code, architecture: int, launch: follow.Launch) -> list[Array]:
    """The bytes of the first argument's memory at which each store to global memory begins, store by store."""
    found: list[Array] = []

    def watch(i: sass.Instruction, space: str, write: bool, at: Array, active: Array, width: int) -> None:
        if space == "global" and write:
            found.append(at[active] - (1 << follow.BUFFER))

    follow.follow(code, architecture, launch, watch)
    return found


@needs_tools
@pytest.mark.parametrize("architecture", [80, 90])
def test_addresses_are_those_that_the_source_says(architecture: int, tmp_path: Path) -> None:
    """Each formula is the place of a store; numpy says where it must be."""
    stores = "\n".join(f"    out[{k}][{formula}] = i;" for k, formula in enumerate(FORMULAS))
    text = (
        'extern "C" __global__ void kernel(char (*out)[1 << 20], int n, long long w) {\n'
        f"    const int i = threadIdx.x;\n{stores}\n}}\n"
    )
    n, w = 100, 987654321012
    code = assembled(text, f"sm_{architecture}", tmp_path)
    words = [n, 0, w & 0xFFFFFFFF, w >> 32]  # n is followed by room, so that w is aligned
    launch = follow.Launch((0, 0, 0), (1, 1, 1), THREADS, [None, *words])
    found = {int(place[0]) >> 20: place & (1 << 20) - 1 for place in written_by(code, architecture, launch)}
    i = np.arange(THREADS, dtype=np.int64)
    for number, (formula, expected) in enumerate(FORMULAS.items()):
        assert found[number].tolist() == np.broadcast_to(expected(i, n, w), THREADS).tolist(), formula


def carried_out(lines: list[str], **registers: Array) -> Lanes:
    """The threads of a warp after instructions, as nvdisasm prints them; ``registers`` by name: R1, P0."""
    text = "\n".join(f"        /*{16 * n:04x}*/ {line} ;" for n, line in enumerate([*lines, "EXIT"]))
    code = sass.parse(f"    .section .text.kernel,\n{text}")["kernel"]
    block = follow.Block(code, 90, follow.Launch((0, 0, 0), (1, 1, 1), 32, []), None)
    for name, values in registers.items():
        (block.lanes.p if name[0] == "P" else block.lanes.r)[int(name[1:])] = values
    block.run()
    return block.lanes


def test_predicates_become_bits_and_come_back() -> None:
    """As the assembler keeps predicates in registers where it has too few: under a mask, in any byte of a word."""
    lane = np.arange(32)
    by = {f"P{number}": lane >> number % 5 & 1 == number % 2 for number in range(7)}
    bits = sum(value.astype(np.int64) << int(name[1]) for name, value in by.items())
    kept = carried_out(["P2R R3, PR, RZ, 0x7f", "P2R.B2 R4, PR, R4, 0x25"], R4=np.full(32, 0x12FF5678), **by)
    assert kept.r[3].tolist() == bits.tolist()
    assert kept.r[4].tolist() == (0x12FF5678 & ~(0x25 << 16) | (bits & 0x25) << 16).tolist()
    back = carried_out(["R2P PR, R5.B1, 0x3e"], R5=0xFF0000FF | (lane * 4 & 0x7F) << 8, P0=lane > 3, P6=lane > 9)
    for number in range(1, 6):
        assert back.p[number].tolist() == (lane * 4 >> number & 1 == 1).tolist(), number
    assert back.p[0].tolist() == (lane > 3).tolist() and back.p[6].tolist() == (lane > 9).tolist()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("HFMA2.MMA R2, -RZ, RZ, 0, 0", 0),
        ("HFMA2.MMA R2, -RZ, RZ, 1.875, 0", 0x3F800000),
        ("HFMA2 R2, -RZ, RZ, 0, 5.9604644775390625e-08", 1),
        ("HFMA2.BF16_V2 R2, -RZ, RZ, 1, -2", 0x3F80C000),
    ],
)
def test_constants_that_the_unit_of_halves_moves_are_numbers(line: str, expected: int) -> None:
    assert (carried_out([line]).r[2] == expected).all()


@pytest.mark.parametrize(("modifiers", "left", "right"), [("S8.S8", "i1", "i1"), ("S8.U8", "i1", "u1"),
                                                          ("U8.S8", "u1", "i1"), ("U8.U8", "u1", "u1")])  # fmt: skip
def test_products_of_four_bytes_are_summed(modifiers: str, left: str, right: str) -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, (3, 32), np.uint32)
    words[:, 0] = 0x80FF7F00
    given = dict(zip(("R1", "R2", "R3"), words.astype(np.int64), strict=True))
    a, b = (x[:, None].view(kind).astype(np.int64) for x, kind in zip(words, (left, right), strict=False))
    expected = (a * b).sum(1) + words[2] & 0xFFFFFFFF
    assert carried_out([f"IDP.4A.{modifiers} R4, R1, R2, R3"], **given).r[4].tolist() == expected.tolist()
    with pytest.raises(UnknownInstruction, match=r"IDP\.2A"):
        carried_out(["IDP.2A.LO.S16.U8 R4, R1, R2, R3"])


def test_literals_and_remarks_are_read() -> None:
    """As nvdisasm prints them: words in a bank of constants, and that an access is a spill."""
    text = (
        '\t.section\t.nv.constant2.kernel,"a",@progbits\n'
        "\t.align\t4\n"
        ".nv.constant2.kernel:\n"
        "        /*0000*/ \t.byte\t0x00, 0x04, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00\n"
        '\t.section\t.nv.constant0.kernel,"a",@progbits\n'
        "        /*0000*/ \t.byte\t0xff, 0xff, 0xff, 0xff\n"
        '\t.section\t.text.kernel,"ax",@progbits\n'
        ".text.kernel:\n"
        "        /*0000*/                   IMAD.WIDE R2, R0, R1, c[0x2][0x0] ;\n"
        '        /*0010*/                   STL [R4], R2                       (*"SpillRefill"*);\n'
        "        /*0020*/                   EXIT ;\n"
    )
    code = sass.parse(text)["kernel"]
    assert code.literals == {0: 0x400, 4: 1}
    assert code.instructions[1].operands == ("[R4]", "R2")
    block = follow.Block(code, 80, follow.Launch((0, 0, 0), (1, 1, 1), 32, []))
    found = block.run()
    assert (block.lanes.r[2] == 0x400).all() and (block.lanes.r[3] == 1).all()
    assert found.total()["local"] == 1


@needs_tools
def test_loops_and_branches_are_followed_as_often_as_they_turn(tmp_path: Path) -> None:
    """Threads that leave a loop at different times meet again; what one warp stores in shared memory another reads."""
    text = (
        'extern "C" __global__ void kernel(int* out, const int* in, int n) {\n'
        "    __shared__ int part[64];\n"
        "    const int i = threadIdx.x;\n"
        "    #pragma unroll 1\n"
        "    for (int k = i; k < n; k += 64) out[k] = in[k];\n"
        "    part[i] = i * 3;\n"
        "    __syncthreads();\n"
        "    if (i < 40) out[8000 + part[63 - i]] = i;\n"
        "    if (in[i] == 7) out[9000 + i] = 1;\n"
        "}\n"
    )
    code = assembled(text, "sm_90", tmp_path)
    values = np.zeros(64, np.int32)
    values[[3, 50]] = 7
    n = 64 * 50 + 10
    launch = follow.Launch((0, 0, 0), (1, 1, 1), THREADS, [None, np.resize(values, 4000), n])
    places = np.concatenate(written_by(code, 90, launch)) // 4
    i = np.arange(THREADS)
    expected = [*range(n), *(8000 + 3 * (63 - i[:40])), 9003, 9050]
    assert sorted(places.tolist()) == sorted(expected)
    found = follow.follow(code, 90, launch)
    loop = found.loop()
    assert loop is not None
    loads = [(p, a) for (p, space), a in found.accesses.items() if space == "global" and not a.write and p in loop]
    assert len(loads) == 1 and loads[0][1].requests == 2 * 50 + 1  # fifty turns of two warps, and one of the first
    assert found.issued[loads[0][0]] == 101 and loads[0][1].bytes == 4 * n


def test_sectors_and_banks_are_counted() -> None:
    lane = np.arange(32)

    def access(space: str, width: int, places: Array) -> memory.Access:
        found = memory.Access(space, width, False)
        found.add(places + 4096, np.ones(32, bool))
        return found

    assert access("global", 4, 4 * lane).sectors == 4 == access("global", 4, 4 * lane).least
    assert access("global", 16, 16 * lane).sectors == 16
    assert access("global", 4, 64 * lane).sectors == 32 and access("global", 4, 64 * lane).least == 4
    assert access("global", 4, 4 * lane + 16).sectors == 5
    for stride, ways in ((4, 1), (8, 2), (132, 1), (128, 32), (0, 1)):
        assert access("shared", 4, stride * lane).ways == ways, stride
    assert access("shared", 2, 2 * lane).ways == 1
    assert access("shared", 8, 8 * lane).waves == 2 and access("shared", 16, 16 * lane).waves == 4
    assert access("shared", 16, 128 * lane).ways == 8  # rows of matrices without room between
    assert access("shared", 16, 80 * lane).ways == 1  # and with it
    half = memory.Access("shared", 4, False)
    half.add(128 * lane, lane < 3)
    assert half.ways == 3 and half.bytes == 12 and half.requests == 1


TINY = {  # with the bytes of the result
    Work("product", (130, 72, 136)): 2 * 130 * 136,
    Work("norm", (6, 640)): 2 * 6 * 640,
    Work("softmax", (6, 640)): 2 * 6 * 640,
}


LOOPED = Work("product", (1024, 4096, 1024))  # of so many steps that a loop of them remains
ONE_PRODUCT = {"cuda:sm_80": 16 * 8 * 16, "cuda:sm_90": 64 * 128 * 16 // 4}  # multiply-adds of a warp's instruction


@cache
def kernels(work: Work, target: str) -> list[counting.Kernel]:
    module, inputs = work.module()
    goal = targets.parse(target)
    return counting.launches(compile_graph(importer.load(module, inputs), goal), goal)


@needs_tools
@pytest.mark.parametrize("target", rows.TARGETS)
@pytest.mark.parametrize("work", TINY, ids=lambda work: work.kind)
def test_all_blocks_together_write_each_element_once(work: Work, target: str) -> None:
    """And read all that there is: the last kernel's result is the work's, whose size is known."""
    last = kernels(work, target)[-1]
    writes: dict[int, Array] = {}
    reads: dict[int, Array] = {}

    def watch(i: sass.Instruction, space: str, write: bool, at: Array, active: Array, width: int) -> None:
        numbers, places = follow.argument_of(at[active])
        if space == "global" and len(numbers):
            count = (writes if write else reads).setdefault(int(numbers[0]), np.zeros(1 << 17, np.int32))
            assert (numbers == numbers[0]).all()
            np.add.at(count, (places[:, None] + np.arange(width)).ravel(), 1)

    for block in range(last.blocks):
        launch = follow.Launch((block, 0, 0), last.grid, last.threads, last.arguments)
        follow.follow(last.image.code, last.architecture, launch, watch)
    (counts,) = writes.values()
    expected = np.zeros_like(counts)
    expected[: TINY[work]] = 1
    assert np.array_equal(counts, expected)
    for number, count in reads.items():
        end = int(np.flatnonzero(count)[-1]) + 1
        assert count[:end].all(), number


@needs_tools
@pytest.mark.parametrize("target", rows.TARGETS)
@pytest.mark.parametrize("work", [LOOPED, Work("norm", (64, 4096))], ids=lambda w: w.kind)
def test_what_is_counted_is_what_the_work_needs(work: Work, target: str) -> None:
    """Multiply-adds of the tensor cores are those of the product; a norm reads its rows twice and writes them once."""
    found = [counting.counted(kernel) for kernel in kernels(work, target)]
    (one,) = found
    if work.products:
        assert one["multiplied"] == work.products and one["issued"]["tensor"] * ONE_PRODUCT[target] == work.products
        assert one["in_flight"] >= 1 and one["loop"]["tensor"] > 0
    else:
        assert one["multiplied"] == 0
        assert one["moved"]["global"]["bytes"] in (2 * 2 * 64 * 4096, 3 * 2 * 64 * 4096, 4 * 2 * 64 * 4096)
    assert one["spilled"] == 0 and 0 < one["occupancy"] <= 1
    assert one["moved"]["global"]["sectors"] >= one["moved"]["global"]["least"] > 0


def test_occupancy_follows_from_what_is_scarce() -> None:
    a100 = counting.PROCESSORS[80]
    assert a100.occupancy(256, 32, 0) == 1.0
    assert a100.occupancy(256, 128, 0) == 0.25
    assert a100.occupancy(256, 32, 80 << 10) == 0.25  # two blocks of 81 KiB
    assert a100.occupancy(32, 16, 0) == 0.5  # 32 blocks of a warp
    assert a100.occupancy(256, 255, 200 << 10) == 0.0


def row(who: str, what: str = "product 8 x 8 x 8", **per: float) -> rows.Row:
    kernel = {"registers": 40, "shared": 1024, "spilled": 0, "occupancy": 0.5, "in_flight": 2, "multiplied": 1,
              "at_once": 1,
              "widths": {"read": {"16": 64, "4": 32}, "written": {"2": 8}}, "ways": 2,
              "moved": {"global": {"sectors": 30, "least": 20}}}  # fmt: skip
    return {"what": what, "kind": what.split()[0], "sizes": [8, 8, 8], "architecture": "sm_90", "who": who,
            "how": "tile", "kernels": [kernel], "unit": "1,000 multiply-adds", "per": per, "per_loop": per,
            "bytes": {"global": 0.5, "shared": 1.0}, "cycles": {"issue": 0.001, "tensor": 0.002}}  # fmt: skip


def test_what_is_behind_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "REASONS", {("product", "", "integer"): "Divisions."})
    found = [row(OURS, integer=3.0, shared=1.0, tensor=0.5), row(TRITON, integer=1.0, shared=0.5, tensor=0.48)]
    assert [(name, mine, its) for _, name, mine, its in page.behind(found)] == [
        ("shared", 1.0, 0.5), ("integer", 3.0, 1.0)
    ]  # fmt: skip
    text = page.text({"about": "nvcc", "triton": "3", "rows": found, "models": [], "candidates": [], "failed": []})
    assert "- Divisions.\n    - product 8 x 8 x 8 on sm_90: integer (3.0 times)" in text
    assert "**No reason is known yet.**\n    - product 8 x 8 x 8 on sm_90: shared (2.0 times)" in text
    assert (
        "| product 8 x 8 x 8 | luminal | 40 | 1024 B | 0 B | 50% | 2 | 1.000 | 0.500 | 16, 4 / 2 | 2 | 1.50 | " in text
    )
    assert "tensor, 2 |" in text and "No GPU" not in text


def test_the_page_in_docs_is_that_of_its_figures() -> None:
    """And gives a reason wherever luminal issues over a tenth more."""
    written = Path(__file__).parent.parent / "docs/gpu-static.md"
    found = json.loads(written.with_suffix(".json").read_text())
    assert written.read_text() == page.text(found)
    assert [(row["what"], name) for row, name, _, _ in page.behind(found["rows"]) if not page.reason(row, name)] == []
    assert {row["who"] for row in found["rows"]} == {OURS, TRITON}


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.shutil, "which", lambda name, path=None: None)
    tools.find.cache_clear()
    with pytest.raises(BuildError, match="found no nvdisasm: put it on PATH, or install"):
        tools.find("nvdisasm")
    with pytest.raises(BuildError, match="has no Triton"):
        rows.folders_of("/bin/false")


# With the narrowest access of an inner loop to global memory that is explained.
KEPT = [
    pytest.param(LOOPED, 16, id="product"),
    # ptxas by itself takes 40 registers of its 54, and spills.
    pytest.param(Work("product", (512, 1024, 512)), 16, id="product of small tiles"),
    pytest.param(Work("norm", (64, 4096)), 16, id="norm"),
    pytest.param(Work("softmax", (6, 640)), 8, id="softmax"),  # four elements for each thread: BlockCosts.each
]


@needs_tools
@pytest.mark.parametrize(("work", "wide"), KEPT)
def test_kernels_spill_nothing_read_wide_and_do_not_collide(work: Work, wide: int) -> None:
    for kernel in kernels(work, "cuda:sm_90"):
        if kernel.image.spilled:
            pytest.fail(f"{kernel.image.code.name} spills")
        assert [str(place) for place in models.places(kernel.middle(), wide)] == []


@needs_tools
def test_accesses_that_are_narrow_scattered_or_collide_are_found(tmp_path: Path) -> None:
    text = (
        'extern "C" __global__ void kernel(float* out, const float* in) {\n'
        "    __shared__ float part[64 * 32];\n"
        "    const int i = threadIdx.x;\n"
        "    for (int k = 0; k < 32; ++k) part[32 * i + k] = in[64 * k + i];\n"
        "    __syncthreads();\n"
        "    for (int k = 0; k < 32; ++k) out[32 * i + k] = part[i + 64 * k];\n"
        "}\n"
    )
    code = assembled(text, "sm_90", tmp_path)
    found = follow.follow(code, 90, follow.Launch((0, 0, 0), (1, 1, 1), THREADS, [None, None]))
    places = list(models.places(found))
    reads = [place for place in places if place.space == "global" and not place.write]
    writes = [place for place in places if place.space == "global" and place.write]
    stores = [place for place in places if place.space == "shared"]
    assert {place.sectors for place in reads} == {1.0} and reads[0].width == 4
    assert writes and all(place.sectors >= 4 for place in writes)
    assert stores and all(place.write and place.ways >= 8 for place in stores)


def test_what_models_spill_and_where_they_collide_is_known() -> None:
    """By the figures beside the page."""
    found = json.loads((Path(__file__).parent.parent / "docs/gpu-static.json").read_text())
    assert found["models"] and {one["model"] for one in found["models"]} <= set(models.NAMES)
    kernels = [(one["model"], kernel) for one in found["models"] for kernel in one["kernels"]]
    # What this page found and nobody has mended or explained yet; nothing may join it.
    assert {(model, kernel["name"]) for model, kernel in kernels if kernel["spilled"]} == set()
    places = [(model, kernel["name"], place) for model, kernel in kernels for place in kernel["places"]]
    assert {(model, name, place["opcode"]) for model, name, place in places if not page.known(name, place)} == set()
