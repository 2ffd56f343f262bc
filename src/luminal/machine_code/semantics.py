"""What instructions do, as far as addresses and branches depend on it: integers and predicates exactly
(``integers.py``), float32 by numpy (``floats.py``); here what threads of a warp exchange, and the table of all.
Products of matrices give ones.

What NVIDIA does not document is from the use that its compilers make of it, and is tested by whole kernels: that each
element of a result is written once, and where each is read (``tests/test_benchmarks_static.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from luminal.machine_code.floats import (
    pack,
    real_arithmetic,
    real_compare,
    real_function,
    rounded,
    to_float,
    to_integer,
)
from luminal.machine_code.integers import (
    absolute,
    add,
    compare,
    constant,
    count,
    dot,
    extend,
    from_predicates,
    lea,
    least,
    least_of_sum,
    logic,
    move,
    multiply_add,
    permute,
    predicate_logic,
    select,
    shift,
    to_predicates,
)
from luminal.machine_code.operands import (
    WARP,
    ZERO,
    Array,
    Lanes,
    Mask,
    Step,
    UnknownInstruction,
    Writer,
    halves,
    into,
    into_pair,
    into_predicate,
    is_predicate,
    is_register,
    predicate,
    register,
    word,
)
from luminal.machine_code.sass import Instruction

# Two ones in bfloat16; in float32 nearly one: what lies in memory that nobody filled, and what matrices give.
ONES = 0x3F803F80

SPECIAL: dict[str, Callable[[Lanes], Any]] = {
    "SR_TID.X": lambda s: s.thread,
    "SR_CTAID.X": lambda s: s.block[0],
    "SR_CTAID.Y": lambda s: s.block[1],
    "SR_CTAID.Z": lambda s: s.block[2],
    "SR_LANEID": lambda s: s.thread % WARP,
    "SRZ": lambda s: 0,
}
_NOUGHT = ("SR_TID.Y", "SR_TID.Z", "SR_CgaCtaId", "SR_CgaSize", "SR_VIRTCFG", "SR_VIRTID", "SR_CLOCKLO")


def _special(i: Instruction) -> Step:
    name = i.operands[1]
    if name not in SPECIAL and name not in _NOUGHT:
        raise UnknownInstruction(str(i))
    value: Callable[[Lanes], Any] = SPECIAL.get(name, lambda s: 0)
    if i.name in ("CS2R", "CS2UR") and "32" not in i.modifiers:
        write_pair = into_pair(i.operands[0])
        return lambda s, mask: write_pair(s, mask, value(s))
    write = into(i.operands[0])
    return lambda s, mask: write(s, mask, value(s))


def _gives(writers: Sequence[Writer], value: Any) -> Step:
    """Writes the same into every register."""

    def step(s: Lanes, mask: Mask) -> None:
        for write in writers:
            write(s, mask, value)

    return step


def _ones(i: Instruction) -> Step:
    """Values that no address depends on. Where a predicate asks for the slow path of a division, it is not taken."""
    to = i.operands[0]
    if is_predicate(to):
        return _gives([into_predicate(o) for o in i.operands[:2] if is_predicate(o)], i.name != "FCHK")
    of_warp, number = register(to)
    prefix = "UR" if of_warp else "R"
    count = 2 if i.name.startswith("D") else _results(i)
    return _gives([into(f"{prefix}{number + k}") for k in range(count if number != ZERO else 0)], ONES)


def _halves(i: Instruction) -> Step:
    """Arithmetic on pairs of 16 bits. Of zeros and two numbers it is how the assembler moves a constant, of a loop's
    first step for instance, where the unit of integers is busy; other values are those that no address depends on."""
    to, a, b, *added = i.operands
    zero = {"RZ", "-RZ"}
    if i.name != "HFMA2" or not {a, b} <= zero or len(added) != 2 or any(is_register(one) for one in added):
        return _ones(i)
    upper, lower = added
    return _gives([into(to)], halves(upper, lower, "BF16_V2" in i.modifiers or "BF16" in i.modifiers))


def _results(i: Instruction) -> int:
    """The registers of a thread that a product of matrices writes."""
    if "GMMA" in i.name:
        columns = next(int(m.split("x")[1]) for m in i.modifiers if "x" in m)
        return columns // 2 if "F32" in i.modifiers or i.name == "IGMMA" else columns // 4
    if i.name.endswith("MMA"):
        return 4 if i.modifiers[0].startswith("168") and "F16" not in i.modifiers[1:2] else 2
    return 1


def _shuffle(i: Instruction) -> Step:
    valid, to, value, by, limits = i.operands
    x, b, c = word(value), word(by), word(limits)
    write, write_valid, how = into(to), into_predicate(valid), i.modifiers[0]

    def step(s: Lanes, mask: Mask) -> None:
        given = np.broadcast_to(np.asarray(x(s)), (s.threads,))
        lane, by, limit = s.thread % WARP, b(s) & 31, c(s)
        segment = limit >> 8 & 31
        least, most = lane & segment, (lane & segment) | (limit & 31 & ~segment)
        source = {"BFLY": lane ^ by, "DOWN": lane + by, "UP": lane - by, "IDX": least | by & ~segment}[how]
        inside = source >= most if how == "UP" else source <= most
        source = np.where(inside, source, lane)
        write_valid(s, mask, inside)
        write(s, mask, given[s.thread - lane + source])

    return step


def _vote(i: Instruction) -> Step:
    """What of a warp's threads have a predicate set."""
    operands = list(i.operands)
    p = predicate(operands.pop())
    how = i.modifiers[0] if i.modifiers else "ALL"
    to = [into(o) for o in operands if not is_predicate(o)]
    to_predicate = [into_predicate(o) for o in operands if is_predicate(o)]

    def step(s: Lanes, mask: Mask) -> None:
        active = np.ones(s.threads, bool) if mask is None else mask
        given = np.broadcast_to(p(s), (s.threads,)).reshape(-1, WARP)
        active = active.reshape(-1, WARP)
        ballot = ((given & active) * (1 << np.arange(WARP, dtype=np.int64))).sum(1)
        whole = {"ANY": (given & active).any(1), "ALL": (given | ~active).all(1)}
        whole["EQ"] = whole["ALL"] | ~whole["ANY"]
        for write in to:
            write(s, mask, ballot.repeat(WARP))
        for write in to_predicate:
            write(s, mask, whole[how].repeat(WARP))

    return step


def _elect(i: Instruction) -> Step:
    """One thread of each warp."""
    writers = [into_predicate(o) for o in i.operands[:1] if is_predicate(o)]

    def step(s: Lanes, mask: Mask) -> None:
        for write in writers:
            write(s, mask, s.thread % WARP == 0)

    return step


def _none(i: Instruction) -> Step:
    return lambda s, mask: None


_STEPS: dict[str, Callable[[Instruction], Step]] = {
    **dict.fromkeys(("IMAD", "UIMAD"), multiply_add),
    "IDP": dot,
    **dict.fromkeys(("IADD3", "UIADD3", "VIADD", "UVIADD", "IADD"), add),
    **dict.fromkeys(("LEA", "ULEA"), lea),
    **dict.fromkeys(("LOP3", "ULOP3"), logic),
    **dict.fromkeys(("PLOP3", "UPLOP3"), predicate_logic),
    **dict.fromkeys(("SHF", "USHF"), shift),
    **dict.fromkeys(("SGXT", "USGXT"), extend),
    **dict.fromkeys(("ISETP", "UISETP"), compare),
    **dict.fromkeys(("SEL", "USEL", "FSEL"), select),
    **dict.fromkeys(("IMNMX", "VIMNMX", "UVIMNMX"), least),
    "VIADDMNMX": least_of_sum,
    **dict.fromkeys(("PRMT", "UPRMT"), permute),
    **dict.fromkeys(("MOV", "UMOV", "R2UR", "UR2R"), move),
    "P2R": from_predicates,
    "R2P": to_predicates,
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), constant),
    **dict.fromkeys(("S2R", "S2UR", "CS2R", "CS2UR"), _special),
    **dict.fromkeys(("IABS", "UIABS"), absolute),
    **dict.fromkeys(("I2F", "I2FP"), to_float),
    "F2I": to_integer,
    "FRND": rounded,
    **dict.fromkeys(("POPC", "UPOPC", "FLO", "UFLO"), count),
    "MUFU": real_function,
    **dict.fromkeys(("FADD", "FMUL", "FFMA", "FMNMX"), real_arithmetic),
    "FSETP": real_compare,
    "F2FP": pack,
    **dict.fromkeys(
        ("HMMA", "IMMA", "DMMA", "HGMMA", "IGMMA", "QGMMA", "HADD2", "HMUL2", "HMNMX2", "HSETP2", "FCHK",
         "F2F", "MOVM", "DADD", "DMUL", "DFMA", "DSETP", "DMNMX"),
        _ones,
    ),
    "HFMA2": _halves,
    "SHFL": _shuffle,
    **dict.fromkeys(("VOTE", "VOTEU"), _vote),
    "ELECT": _elect,
    **dict.fromkeys(
        ("NOP", "BREAK", "BSSY", "BSYNC", "DEPBAR", "LDGDEPBAR", "ERRBAR", "MEMBAR", "FENCE", "WARPSYNC", "WARPGROUP",
         "CCTL", "YIELD", "ACQBULK", "PREEXIT", "UTMALDG", "UTMASTG", "UTMACMDFLUSH", "UTMACCTL",
         "UTMAPF", "UBLKCP", "ARRIVES", "CGAERRBAR", "UCGABAR_ARV", "UCGABAR_WAIT", "WARPGROUPSET", "BPT", "NANOSLEEP"),
        _none,
    ),
    **dict.fromkeys(("SYNCS", "USETMAXREG"), lambda i: _ones(i) if is_predicate(i.operands[0]) else _none(i)),
}  # fmt: skip


def step_of(instruction: Instruction) -> Step:
    """What an instruction does that neither branches nor reads or writes memory. Where that is not described, it raises
    UnknownInstruction when it is carried out."""
    make = _STEPS.get(instruction.name, _unknown)
    try:
        return make(instruction)
    except UnknownInstruction:
        return _unknown(instruction)


def _unknown(i: Instruction) -> Step:
    def step(s: Lanes, mask: Mask) -> None:
        raise UnknownInstruction(str(i))

    return step


def every(mask: Mask, threads: int) -> Array:
    """The threads in which an instruction takes effect."""
    return np.ones(threads, bool) if mask is None else mask
