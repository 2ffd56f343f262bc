"""Targets: what the scheduler and the compiler must know about a machine, as a value."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from luminal.core import device
from luminal.core import precision as precisions
from luminal.core.costs import COSTS, Costs
from luminal.core.decisions import FORMULA, Decisions
from luminal.core.errors import InputError, TargetError
from luminal.core.grid import MMA, REGISTER, SIMDGROUP, WGMMA, BlockLimits, Fragment, Grid, Processor
from luminal.core.matrix import AMX_BF16, AMX_INT8, DOT_BF16, DOT_INT8, MADD_INT8, MatrixUnit
from luminal.core.precision import FP32, STORED, Precision
from luminal.core.types import DType, f32

# Every target rounds as IEEE says: products and sums are fused only where the generated code says so.
_COMMON = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")

_COMPILED = {"avx512_bf16": "avx512bf16"}  # unit features that compilers can use in any code, with the compilers' name

EXACT, BOUNDED = ALGEBRA = ("exact", "bounded")  # choices of ``Target.algebra``

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # where Linux describes them


@dataclass(frozen=True)
class Level:
    """Instructions that kernels are compiled for, once for each level; a library takes the best that its machine has.
    ``features`` and ``flags`` are those of a ``Target``."""

    name: str
    features: tuple[str, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """A machine.

    ``architecture`` is ``x86_64``, ``aarch64``, ``riscv64`` or ``wasm32``, as ``uname -m`` says it; ``system`` is
    the operating system that loads the library, one of ``SYSTEMS``; ``features`` are the CPU features that generated
    code needs, in the names of ``/proc/cpuinfo``. ``register_bytes`` and ``registers`` describe the vector
    registers; ``fused`` says whether a multiply-add is one instruction with one rounding; ``l1``, ``l2`` and ``l3`` are
    the sizes in bytes of the data caches that one core sees. Code runs on any number of threads, and is divided so that
    it suits ``threads`` of them.

    ``levels`` are several sets of instructions in one library, the last the best: one schedule and one weights file,
    but kernels for each.

    A GPU has a ``grid``; its registers are those of a thread. ``dialect`` names the language of its kernels.

    ``units`` are the products of small matrices that a core computes in one instruction, the fastest first; code that
    uses none of them runs without their features.

    ``precision`` is what contractions round operands of float32 to.
    ``algebra`` says whether sums of products are computed in the order that costs least while the bound of the error
    does not grow (``bounded``), or as the model spells them (``exact``).
    ``forms`` are those that a search found before, by the hash of their region: where they are given, there is no
    search, and other regions are computed as spelled.
    ``costs`` are what its cores, caches and threads take, by which schedules are chosen.
    ``decisions`` choose among schedules: what was measured on the machine, if anything was.
    """

    name: str
    architecture: str
    features: tuple[str, ...]
    flags: tuple[str, ...]
    register_bytes: int
    registers: int
    fused: bool = True
    l1: int = 32 << 10
    l2: int = 256 << 10
    l3: int = 8 << 20
    threads: int = 8
    dialect: str = "cpp"
    system: str = "linux"
    levels: tuple[Level, ...] = ()
    grid: Grid | None = None
    units: tuple[MatrixUnit, ...] = ()
    precision: Precision = FP32
    algebra: str = BOUNDED
    forms: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    costs: Costs = field(default=COSTS, repr=False)
    decisions: Decisions = field(default=FORMULA, repr=False)

    def row_buffer_bytes(self, reduced: Iterable[DType]) -> int:
        """Bytes of rows that a task which reduces values of these types may keep between its passes over them: on the
        stack, in the second-level cache; on a GPU, in shared memory."""
        return self.costs.stack.rows if self.grid is None else self.grid.row_buffer_bytes(reduced)

    @property
    def sums(self) -> int:
        """How many registers hold sums, where each has another for what is added to it."""
        return (self.registers - self.costs.arithmetic.spare) // 2

    @property
    def block(self) -> BlockLimits:
        """The most that a block of the grid may have."""
        assert self.grid is not None
        return BlockLimits(self.grid.threads, self.grid.shared, self.registers, self.grid.costs.spare)

    @property
    def tiles_rows(self) -> bool:
        """Whether products of a single row are computed in tiles, too; a GPU sums these faster without."""
        return self.grid is None

    @property
    def packs(self) -> bool:
        """Whether tiles read B in panels, so that any B is packed. Otherwise only constants are packed, at compile
        time; blocks copy any other B from its own layout."""
        return self.grid is None

    @property
    def pads(self) -> bool:
        """Whether tiles read A without masks, so that a masked A is padded. Otherwise blocks copy zeros."""
        return self.grid is None

    @property
    def requested_block(self) -> BlockLimits:
        """The most that a block may have whose shared memory the host asks for."""
        assert self.grid is not None
        return replace(self.block, shared=max(self.grid.shared, self.grid.requested))

    def fragment(self, a: DType, b: DType) -> Fragment | None:
        """The product of small matrices of these types, where there is one."""
        return None if self.grid is None else self.grid.fragment(a, b, self.precision)

    def units_of(self, a: DType, b: DType, total: DType) -> tuple[MatrixUnit, ...]:
        """The matrix units that multiply these types and sum in ``total``, the fastest first."""
        return tuple(unit for unit in self.units if (unit.left, unit.right, unit.sum) == (a, b, total))

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions that can be chosen: exact, those of its warps' float32 products, and those that store operands
        in fewer bits, whose products are exact in float32 on any machine."""
        fragments = () if self.grid is None else self.grid.fragments
        return tuple(dict.fromkeys((FP32, *(f.precision for f in fragments if f.dtype == f32), *STORED)))

    def using(self, features: Iterable[str]) -> Target:
        """This target for a library that needs ``features`` too: its code may use their instructions anywhere."""
        more = tuple(dict.fromkeys(feature for feature in features if feature not in self.features))
        flags = (f"-m{flag}" for feature in more if (flag := _COMPILED.get(feature)))
        return replace(self, features=(*self.features, *more), flags=(*self.flags, *flags))

    def lanes(self, dtype: DType) -> int:
        """Elements of ``dtype`` in one vector register, as they are computed: 16-bit floats as float32, and a mask of
        bools like the float32 values that it selects."""
        return max(1, self.register_bytes // (4 if dtype.is_bool else dtype.compute.itemsize))


X86_64 = Target("x86-64", "x86_64", (), _COMMON, register_bytes=16, registers=16, fused=False)
AVX2 = Target(
    "avx2", "x86_64", ("avx2", "fma", "f16c", "bmi2"), (*_COMMON, "-mavx2", "-mfma", "-mf16c", "-mbmi2"),
    register_bytes=32, registers=16, units=(MADD_INT8,),
)  # fmt: skip
AVX512 = Target(
    "avx512", "x86_64", ("avx512f", "avx512dq", "avx512bw", "avx512vl", *AVX2.features),
    (*AVX2.flags, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512"),
    register_bytes=64, registers=32, l1=48 << 10, l2=1 << 20, units=(MADD_INT8,),
)  # fmt: skip
AVX512_VNNI = replace(AVX512, name="avx512-vnni", units=(DOT_INT8,))
AVX512_BF16 = replace(AVX512, name="avx512-bf16", units=(DOT_BF16, DOT_INT8))
AVX512_AMX = replace(AVX512, name="amx", l2=2 << 20, units=(AMX_BF16, AMX_INT8, DOT_BF16, DOT_INT8))

# Every 64-bit Arm core has the vector instructions that Linux calls asimd, and their compilers use them unasked.
AARCH64 = Target(
    "aarch64", "aarch64", ("asimd",), _COMMON, register_bytes=16, registers=32, l1=64 << 10, l2=512 << 10
)  # fmt: skip

# RISC-V with the vector extension, whose registers have at least 128 bits: code for that many runs on longer ones too.
RISCV64 = Target(
    "riscv64", "riscv64", ("v",), (*_COMMON, "-march=rv64gcv"), register_bytes=16, registers=32, l2=512 << 10
)  # fmt: skip

# One library for every x86-64: scheduled for the registers of AVX2, which AVX-512 has more of and older machines halve.
X86_64_MULTI = replace(
    AVX2, name="x86-64-multi", features=(), flags=_COMMON, fused=False, units=(),
    levels=tuple(Level(level.name.replace("-", "_"), level.features, level.flags) for level in (X86_64, AVX2, AVX512)),
)  # fmt: skip
# A page or Node loads it: 128-bit vectors (every engine since 2021), one thread. How many registers there are is up to
# the engine, which compiles for the machine below: an x86-64 has 16. Multiply-adds round twice.
WASM32 = Target(
    "wasm32", "wasm32", ("simd128",), (*_COMMON, "-msimd128"), register_bytes=16, registers=16, fused=False,
    l2=512 << 10, threads=1, system="wasi",
)  # fmt: skip


def _cuda(
    compute: str, processors: int, shared: int, threads: int = 2048, requested: int = 99,
    groups: tuple[Fragment, ...] = (),
) -> Target:  # fmt: skip
    """NVIDIA's GPUs of one compute capability; the host code is for this machine's architecture. ``shared`` KiB and
    ``threads`` of a processor, and ``requested`` KiB that a block may have of it: CUDA C++ Programming Guide,
    "Technical Specifications per Compute Capability"."""
    return Target(
        f"cuda:{compute}", platform.machine(), (compute,), ("-std=c++17", "-O3", "-fmad=false"),
        register_bytes=REGISTER, registers=255, dialect="cuda",
        grid=Grid(
            processors=processors, processor=Processor(64 << 10, shared << 10, threads), ahead=True, fragments=MMA,
            groups=groups, requested=requested << 10,
        ),
    )  # fmt: skip


# A grid runs their kernels.
GPUS = {
    target.name: target
    for target in (
        _cuda("sm_80", 108, 164), _cuda("sm_89", 128, 100, 1536),
        _cuda("sm_90", 132, 228, requested=227, groups=WGMMA), _cuda("sm_100", 148, 228),
        Target(
            "metal", "aarch64", (), (), register_bytes=REGISTER, registers=128, dialect="metal", system="macos",
            grid=Grid(shared=32 << 10, processors=40, fragments=SIMDGROUP, buffers=31),  # Metal Feature Set Tables
        ),
        # What OpenCL 3.0 promises of a device, and a common number of processors.
        Target(
            "opencl", platform.machine(), (), (), register_bytes=REGISTER, registers=128, dialect="opencl",
            grid=Grid(warp=1, shared=32 << 10, processors=32, emulated=False),
        ),
    )
}  # fmt: skip

# For each architecture from the most portable to the best.
ALL = {target.name: target for target in (X86_64, AVX2, AVX512, AVX512_VNNI, AVX512_BF16, AVX512_AMX, AARCH64)}
# Operating systems other than GNU's Linux, and the architectures that have libraries for them.
SYSTEMS = {"musl": ("x86_64", "aarch64"), "windows": ("x86_64",), "macos": ("x86_64", "aarch64")}
# Targets of other systems than this compiler's, such as ``avx2-windows``, and what no host is taken for.
ABROAD = {
    target.name: target
    for target in (
        X86_64_MULTI,
        RISCV64,
        WASM32,
        *(
            replace(target, name=f"{target.name}-{system}", system=system)
            for system, architectures in SYSTEMS.items()
            for target in ALL.values()
            if target.architecture in architectures
        ),
    )
}
# Other names of targets.
ALIASES = {
    "neon": "aarch64", "arm64": "aarch64", "aarch64-linux-gnu": "aarch64", "x86_64-linux-gnu": "x86-64",
    "wasm": "wasm32", "arm64-macos": "aarch64-macos", "windows": "x86-64-windows",
}  # fmt: skip


def supported(target: Target) -> bool:
    """Whether this machine can run code for ``target``."""
    return not obstacle(target)


def obstacle(target: Target) -> str:
    """The reason why this machine cannot run code for ``target``; empty if it can."""
    if target.grid is not None:
        return device.missing(target.dialect, target.features)
    if target.system not in _here():
        return f"it is for {target.system}, and this machine runs {platform.system() or 'another system'}"
    if target.architecture != architecture():
        return f"it is for {target.architecture}, and this machine is {architecture()}"
    missing = _missing((*target.features, *(feature for unit in target.units for feature in unit.features)))
    return f"it is for machines with {', '.join(missing)}, which this one lacks" if missing else ""


def units_here(target: Target) -> tuple[MatrixUnit, ...]:
    """The matrix units of ``target`` that this process may use: a library that computes without them runs where they
    are missing."""
    return tuple(unit for unit in target.units if not _missing(unit.features))


def needs_emulation(target: Target) -> bool:
    """Whether ``target`` is a GPU that this machine lacks, but can emulate."""
    return target.grid is not None and target.grid.emulated and not supported(target)


def check_supported(target: Target) -> None:
    """Raises TargetError where this machine cannot run code for ``target``."""
    reason = obstacle(target)
    if reason:
        emulated = (
            "" if target.grid is None or not target.grid.emulated else ", or emulate the GPU (emulate=True, --emulate)"
        )
        raise TargetError(
            f"the library cannot run here: {reason}; load its exported folder on such a machine; here, compile the "
            f"model for the target 'host'{emulated}"
        )


def _here() -> tuple[str, ...]:
    """The systems whose libraries load into this process. What this machine's own compiler makes for Linux, it runs."""
    system = platform.system().lower()
    if system == "linux":
        return ("linux",) if _has_glibc() else ("linux", "musl")
    return ("macos",) if system == "darwin" else (system,)


@cache
def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def architecture() -> str:
    """This machine's architecture, named as in ``Target``."""
    return platform.machine()


@cache
def processor() -> str:
    """Which processor this machine has, as the system describes it: on Linux by vendor, family and model, or their
    names on Arm."""
    named = {"vendor_id", "cpu family", "model", "CPU implementer", "CPU part"}
    lines = (line.partition(":") for line in _cpu_description().splitlines())
    found = {name.strip(): value.strip() for name, _, value in lines if name.strip() in named}
    return " ".join(found.values()) or platform.processor()


def detect() -> Target:
    """The best target that this machine runs, with this machine's cache sizes, and a thread for each CPU that this
    process may use."""
    best = next(target for target in reversed(ALL.values()) if supported(target))
    sizes = cache_sizes()
    return replace(
        best, l1=sizes.get(1, best.l1), l2=sizes.get(2, best.l2), l3=sizes.get(3, best.l3),
        threads=device.cpus(),
    )  # fmt: skip


def parse(name: str | Target, precision: str | None = None, threads: int = 0, algebra: str | None = None) -> Target:
    """The target called ``name``: ``host``, or one of ``ALL``, ``GPUS``, ``ALIASES``; with the precision and algebra of
    these names and for so many threads, where these are given. Raises InputError for other names, TargetError for a
    precision that the target does not have."""
    found = _named(name)
    if algebra is not None:
        if algebra not in ALGEBRA:
            raise InputError(f"algebra: expected one of {', '.join(ALGEBRA)}, found {algebra!r}")
        found = replace(found, algebra=algebra)
    found = replace(found, threads=threads) if threads else found
    if precision is None:
        return found
    if precision not in precisions.ALL:
        named = f"unknown precision {precision!r}: expected {', '.join(precisions.ALL)}"
        integers = "; integers are for weights, or come with a model that is quantised, which needs no precision"
        raise InputError(named + (integers if "int" in precision else ""))
    chosen = precisions.ALL[precision]
    if chosen not in found.precisions:
        offered = ", ".join(map(str, found.precisions))
        raise TargetError(
            f"precision {precision!r}: the target {found.name} has no products of float32 in that precision; "
            f"expected {offered}"
        )
    return replace(found, precision=chosen)


def _named(name: str | Target) -> Target:
    if isinstance(name, Target):
        return name
    if name == "host":
        return detect()
    found = (ALL | GPUS | ABROAD).get(ALIASES.get(name, name))
    if found is None:
        raise InputError(f"unknown target {name!r}: expected host, {', '.join([*ALL, *GPUS, *ABROAD, *ALIASES])}")
    return found


def _missing(features: Iterable[str]) -> list[str]:
    """Those of ``features`` that this process may not use, each once."""
    return [feature for feature in dict.fromkeys(features) if feature not in _cpu_features()]


@cache
def _cpu_features() -> frozenset[str]:
    """The features of this machine's CPU that a process may use."""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", _cpu_description(), re.MULTILINE)
    found = frozenset(flags.group(1).split()) if flags else frozenset()
    return found if device.may_use_tiles() else frozenset(name for name in found if not name.startswith("amx_"))


def _cpu_description() -> str:
    """Linux's description of this machine's processors; empty on other systems."""
    return device.text(Path("/proc/cpuinfo"))


def cache_sizes(folder: Path = CACHES) -> dict[int, int]:
    """The bytes of the data cache of each level that the system describes in ``folder``."""
    sizes: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        kind, level, size = (device.text(index / file).strip() for file in ("type", "level", "size"))
        match = re.fullmatch(r"(\d+)([KM])", size)  # there is no file where the size is not known
        if kind != "Instruction" and level.isdigit() and match:
            sizes[int(level)] = int(match.group(1)) << {"K": 10, "M": 20}[match.group(2)]
    return sizes
