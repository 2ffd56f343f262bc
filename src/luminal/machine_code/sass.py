"""Machine code as nvdisasm prints it, as instructions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

CLASSES = ("tensor", "shared", "global", "integer", "float", "barrier", "other", "local")

_BY_CLASS = {
    "tensor": "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA",
    "shared": "LDS STS LDSM STSM ATOMS STAS MOVM",
    "global": "LDG STG LDGSTS LD ST RED ATOM ATOMG UTMALDG UTMASTG UTMAREDG UTMAPF UBLKCP UBLKRED UBLKPF CCTL",
    "local": "LDL STL",
    "float": "FADD FMUL FFMA FMNMX FSETP FSEL FSET FCHK FSWZADD MUFU HADD2 HFMA2 HMUL2 HMNMX2 HSETP2 HSET2 F2F F2I I2F "
    "F2FP I2FP FRND DADD DMUL DFMA DSETP DMNMX FADD2 FMUL2 FFMA2",
    "barrier": "BAR DEPBAR LDGDEPBAR ARRIVES SYNCS MEMBAR ERRBAR FENCE WARPSYNC WARPGROUP UTMACMDFLUSH UTMACCTL "
    "B2R UCGABAR_ARV UCGABAR_WAIT ELECT ACQBULK PREEXIT",
    "integer": "MOV UMOV IMAD UIMAD IADD3 UIADD3 IADD VIADD UVIADD LEA ULEA LOP3 ULOP3 SHF USHF SGXT USGXT ISETP "
    "UISETP PLOP3 UPLOP3 SEL USEL IMNMX VIMNMX UVIMNMX VIADDMNMX IABS UIABS PRMT UPRMT S2R S2UR CS2R CS2UR LDC "
    "ULDC LDCU R2UR UR2R UF2FP POPC UPOPC FLO UFLO BREV UBREV BMSK UBMSK R2P P2R UP2UR R2B I2I I2IP IDP",
}  # fmt: skip
_CLASS = {name: kind for kind, names in _BY_CLASS.items() for name in names.split()}


@dataclass(frozen=True)
class Instruction:
    """``guard`` is the predicate under which it takes effect, ``PT`` where it always does; ``opcode`` has its modifiers
    behind points. Operands are as they are printed, without ``.reuse``."""

    address: int
    guard: str
    opcode: str
    operands: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.opcode.split(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        return tuple(self.opcode.split(".")[1:])

    @property
    def kind(self) -> str:
        """Its class. What is never carried out is only there for its time."""
        return "other" if self.guard == "!PT" else _CLASS.get(self.name, "other")

    @property
    def label(self) -> str:
        """Where a branch leads."""
        found = [o for o in self.operands if o.startswith("`(")]
        return found[0][2:-1] if found else ""

    def __str__(self) -> str:
        guard = "" if self.guard == "PT" else f"@{self.guard} "
        return f"/*{self.address:04x}*/ {guard}{self.opcode} {', '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class Code:
    """A kernel's instructions in the order of their addresses, where its labels are, as positions in them, and the
    words of its ``literals``, which lie in a bank of constants, by their place there."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    literals: Mapping[int, int] = field(default_factory=dict)

    def position(self, address: int) -> int:
        """The place of the instruction at an address."""
        for place, instruction in enumerate(self.instructions):
            if instruction.address == address:
                return place
        raise ValueError(f"{self.name} has no instruction at {address:#x}")


_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[0-9T]+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_LABEL = re.compile(r"^(\S+):\s*$")
_SECTION = re.compile(r"^\s*\.section\s+\.(text|nv\.constant2)\.([^,\s]+)")
_OTHER = re.compile(r"^\s*\.section\s")
_BYTES = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+\.byte\s+(.*)")
_REMARK = re.compile(r"\(\*.*?\*\)")


def parse(text: str) -> dict[str, Code]:
    """The kernels in what ``nvdisasm`` prints, by name."""
    found: dict[str, tuple[list[Instruction], dict[str, int]]] = {}
    literals: dict[str, dict[int, int]] = {}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    words: dict[int, int] = {}
    for line in text.splitlines():
        if section := _SECTION.match(line):
            instructions, labels, words = [], {}, {}
            if section[1] == "text":
                instructions, labels = found.setdefault(section[2], (instructions, labels))
            else:
                words = literals.setdefault(section[2], words)
        elif _OTHER.match(line):
            instructions, labels, words = [], {}, {}
        elif label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif part := _BYTES.match(line):
            content = bytes(int(byte, 16) for byte in part[2].split(","))
            words |= {
                int(part[1], 16) + k: int.from_bytes(content[k : k + 4], "little") for k in range(0, len(content), 4)
            }
        elif part := _LINE.match(line):
            operands = tuple(o.strip().replace(".reuse", "") for o in _REMARK.sub("", part[4]).split(",") if o.strip())
            instructions.append(Instruction(int(part[1], 16), part[2] or "PT", part[3], operands))
    return {name: Code(name, tuple(code), places, literals.get(name, {})) for name, (code, places) in found.items()}
