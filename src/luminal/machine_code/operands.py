"""The registers of a block of threads, and how operands of instructions read and write them.

A register is an array of one value for each thread, of 32 bits in 64, so that sums keep what they carry. The registers
that the threads of a warp share are written out for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Mask: TypeAlias = Array | None  # the threads in which an instruction takes effect; None: all of them

M32 = 0xFFFFFFFF
WARP = 32
ZERO, TRUE = 255, 7  # the numbers of RZ and URZ, of PT and UPT


def in_bank(bank: int, place: int) -> int:
    """The number of a word of constants: arguments lie in bank 0, a kernel's literals in bank 2."""
    return bank << 16 | place


class Lanes:
    """The threads of a block: registers ``r``, those of warps ``u``, predicates ``p`` and ``up``, by number; and the
    words of the bank of constants, where the arguments of the kernel are."""

    def __init__(self, threads: int, block: tuple[int, int, int], constants: Mapping[int, int]) -> None:
        self.threads, self.block = threads, block
        self.r = np.zeros((256, threads), np.int64)
        self.u = np.zeros((256, threads), np.int64)
        self.p = np.zeros((8, threads), bool)
        self.up = np.zeros((8, threads), bool)
        self.p[TRUE] = self.up[TRUE] = True
        self.constants = constants
        self.thread = np.arange(threads, dtype=np.int64)


Reader: TypeAlias = Callable[[Lanes], Any]

_REGISTER = re.compile(r"^(U?)R(\d+|Z)")
_CONSTANT = re.compile(r"^c\[0x([02])\]\[(0x[0-9a-f]+)\]$")
_PREDICATE = re.compile(r"^(!?)(U?)P(\d|T)$")


def register(text: str) -> tuple[bool, int]:
    """Whether a register is a warp's, and its number."""
    found = _REGISTER.match(text)
    if found is None:
        raise ValueError(f"expected a register, found {text!r}")
    return bool(found[1]), ZERO if found[2] == "Z" else int(found[2])


def is_register(text: str) -> bool:
    return _REGISTER.match(text.lstrip("-~|")) is not None


def is_predicate(text: str) -> bool:
    return _PREDICATE.match(text) is not None


def word(text: str) -> Reader:
    """The 32 bits of an operand. A minus makes ``2**32 - x``, which carries as the hardware's ``~x + 1`` does."""
    if text.startswith(("-R", "-U", "-c", "-|")):
        inner = word(text[1:])
        return lambda s: (1 << 32) - inner(s)
    if text.startswith("~"):
        inner = word(text[1:])
        return lambda s: M32 - inner(s)
    if text.startswith("|"):
        inner = word(text.strip("|"))
        return lambda s: np.abs(signed(inner(s)))
    if text.startswith(("0x", "-0x")):
        value = int(text, 16) & M32
        return lambda s: value
    if found := _CONSTANT.match(text):
        place = in_bank(int(found[1]), int(found[2], 16))
        return lambda s: s.constants.get(place, 0)
    if _REGISTER.match(text):
        of_warp, number = register(text)
        return (lambda s: s.u[number]) if of_warp else (lambda s: s.r[number])
    bits = int(np.float32(_real(text)).view(np.uint32))
    return lambda s: bits


def _real(text: str) -> float:
    """A floating-point number as it is printed."""
    named = {"+INF": np.inf, "-INF": -np.inf, "+QNAN": np.nan, "-QNAN": np.nan, "INF": np.inf, "QNAN": np.nan}
    return float(named[text]) if text in named else float(text)


def halves(upper: str, lower: str, bfloat16: bool) -> int:
    """The word of two numbers of 16 bits, as they are printed: float16, or bfloat16, which is float32 cut in half."""
    if bfloat16:
        high, low = (int(np.float32(_real(one)).view(np.uint32)) >> 16 for one in (upper, lower))
    else:
        high, low = (int(np.float16(_real(one)).view(np.uint16)) for one in (upper, lower))
    return high << 16 | low


def pair(text: str) -> Reader:
    """The 64 bits of an operand, as ``uint64``: a register and the one after it."""
    if found := _CONSTANT.match(text):
        place = in_bank(int(found[1]), int(found[2], 16))
        return lambda s: np.uint64(s.constants.get(place, 0) | s.constants.get(place + 4, 0) << 32)
    if not _REGISTER.match(text.lstrip("-")):
        value = np.uint64(int(text, 16) & (1 << 64) - 1)
        return lambda s: value
    of_warp, number = register(text.lstrip("-"))
    if number == ZERO:
        return lambda s: np.uint64(0)

    def read(s: Lanes) -> Array:
        file = s.u if of_warp else s.r
        value: Array = file[number].astype(np.uint64) | file[number + 1].astype(np.uint64) << np.uint64(32)
        return value

    return (lambda s: ~read(s) + np.uint64(1)) if text.startswith("-") else read


def real(text: str) -> Reader:
    """An operand as a float32, with its sign and without where bars say so."""
    if text.startswith(("-R", "-U", "-c", "-|")):
        inner = real(text[1:])
        return lambda s: -inner(s)
    if text.startswith("|"):
        inner = real(text.strip("|"))
        return lambda s: np.abs(inner(s))
    read = word(text)
    return lambda s: np.asarray(read(s)).astype(np.uint32).view(np.float32)


def predicate(text: str) -> Reader:
    """An operand that is true or false."""
    found = _PREDICATE.match(text)
    if found is None:
        raise ValueError(f"expected a predicate, found {text!r}")
    number = TRUE if found[3] == "T" else int(found[3])
    if found[1]:
        return (lambda s: ~s.up[number]) if found[2] else (lambda s: ~s.p[number])
    return (lambda s: s.up[number]) if found[2] else (lambda s: s.p[number])


Writer: TypeAlias = Callable[[Lanes, Mask, Any], None]


def into(text: str) -> Writer:
    """Writes the low 32 bits of integers."""
    of_warp, number = register(text)
    if number == ZERO:
        return lambda s, mask, value: None

    def write(s: Lanes, mask: Mask, value: Any) -> None:
        file = s.u if of_warp else s.r
        value = value & M32
        if mask is None:
            file[number] = value
        else:
            file[number][mask] = value[mask] if isinstance(value, np.ndarray) and value.ndim else value

    return write


def into_pair(text: str) -> Writer:
    """Writes ``uint64`` into a register and the one after it."""
    of_warp, number = register(text)
    if number == ZERO:
        return lambda s, mask, value: None
    prefix = "UR" if of_warp else "R"
    low, high = into(f"{prefix}{number}"), into(f"{prefix}{number + 1}")

    def write(s: Lanes, mask: Mask, value: Any) -> None:
        value = np.asarray(value).astype(np.uint64)
        low(s, mask, (value & np.uint64(M32)).astype(np.int64))
        high(s, mask, (value >> np.uint64(32)).astype(np.int64))

    return write


def into_real(text: str) -> Writer:
    """Writes float32."""
    write = into(text)
    return lambda s, mask, value: write(s, mask, np.asarray(value, np.float32).view(np.uint32).astype(np.int64))


def into_predicate(text: str) -> Writer:
    found = _PREDICATE.match(text)
    if found is None:
        raise ValueError(f"expected a predicate, found {text!r}")
    if found[3] == "T":
        return lambda s, mask, value: None
    number = int(found[3])

    def write(s: Lanes, mask: Mask, value: Any) -> None:
        file = s.up if found[2] else s.p
        if mask is None:
            file[number] = value
        else:
            file[number][mask] = value[mask] if isinstance(value, np.ndarray) and value.ndim else value

    return write


def signed(value: Any) -> Any:
    """32 bits as an integer with a sign."""
    return ((value & M32) ^ 0x80000000) - 0x80000000


Step: TypeAlias = Callable[[Lanes, Mask], None]


class UnknownInstruction(ValueError):
    """An instruction whose effect is not described here."""
