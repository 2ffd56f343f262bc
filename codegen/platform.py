"""Operating systems that libraries are for: what a shared library is called there, and how one is linked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Platform:
    """An operating system.

    ``library`` is the file name of a library. ``link_flags`` link objects to one that needs the system's C library
    alone and exports the functions of its C ABI alone. In both, ``{name}`` is the model. ``exports`` is the source
    file, if any, to which the flags refer. ``triple`` is clang's name of a machine, with its architecture and the
    oldest version of the system that a library can run on; ``triples`` are those of some architectures. ``machine``
    occurs in the machine name that every compiler for the system reports; ``compiler`` is the name of a cross compiler
    for it. ``archive`` is the file name of a static library. ``templates`` make
    further files, as those of a ``Host``. ``python``: a library can have a Python module.
    """

    name: str
    library: str
    link_flags: tuple[str, ...]
    exports: str | None
    triple: str
    machine: str
    compiler: str | None
    archive: str = "lib{name}.a"
    templates: Mapping[str, str] = field(default_factory=dict, hash=False)
    python: bool = False
    triples: Mapping[str, str] = field(default_factory=dict, hash=False)

    def triple_of(self, architecture: str) -> str:
        """clang's name of a machine of ``architecture``."""
        return self.triples.get(architecture, self.triple).format(architecture)

    def library_file(self, name: str) -> str:
        """The file of the library ``name``."""
        return self.library.format(name=name)

    def links(self, name: str) -> tuple[str, ...]:
        """The flags that link the library ``name``."""
        return tuple(flag.format(name=name) for flag in self.link_flags)


LINUX = Platform(
    "Linux",
    "lib{name}.so",
    # libc, libm, libpthread and libdl are all that the library needs.
    (
        "-shared",
        "-static-libgcc",
        "-Wl,--as-needed",
        "-Wl,-z,defs",
        "-Wl,--strip-debug",  # removes debug information of objects that some compilers add
        "-Wl,--version-script=exports.map",
        "-pthread",
        "-ldl",
        "-lm",
    ),
    exports="exports.map",
    triple="{}-linux-gnu.2.17",
    machine="linux",
    compiler="{}-linux-gnu-g++",
    python=True,
    triples={"riscv64": "{}-linux-gnu.2.27"},  # the first glibc for RISC-V
)

# Its C library is one file, with the parts that are libraries of their own in GNU's.
MUSL = replace(
    LINUX,
    name="Linux with musl",
    triple="{}-linux-musl",
    machine="musl",
    compiler="{}-linux-musl-g++",
    python=False,
    triples={},
)

# A DLL that needs the system's own libraries alone: the C library of Windows 10, and kernel32's functions for waiting.
WINDOWS = Platform(
    "Windows",
    "{name}.dll",
    ("-shared", "-static-libgcc", "-Wl,-s", "-lapi-ms-win-core-synch-l1-2-0"),
    exports=None,
    triple="{}-windows-gnu",
    machine="windows",
    compiler="{}-w64-mingw32-g++",
    templates={"windows/exports.def.j2": "{name}.def"},
)

# A module without a main function, whose memory grows as needed. Callers put arguments into its memory.
WASI = Platform(
    "WebAssembly",
    "{name}.wasm",
    (
        "-mexec-model=reactor",
        "-Wl,--export-dynamic",
        "-Wl,--export=malloc",
        "-Wl,--export=free",
        "-Wl,--export=aligned_alloc",
        "-Wl,--strip-debug",
        "-Wl,-z,stack-size=8388608",  # kernels keep arrays there
    ),
    exports=None,
    triple="{}-wasi",
    machine="wasi",
    compiler=None,
    templates={"wasm/module.mjs.j2": "{name}.mjs"},
)

# macOS 14 is the first with a Metal language that has bfloat. libSystem, which is always linked, is all that the
# library needs. It exports what has default visibility: ziglang's linker knows no list of exports.
MACOS = Platform(
    "macOS",
    "lib{name}.dylib",
    ("-shared", "-Wl,-install_name,@rpath/lib{name}.dylib", "-Wl,-S"),  # -S: without debug information
    exports=None,
    triple="{}-macos.14.0",
    machine="macos",
    compiler=None,
)


# By ``Target.system``.
ALL = {"linux": LINUX, "musl": MUSL, "windows": WINDOWS, "macos": MACOS, "wasi": WASI}


def here() -> Platform:
    """The platform of this process."""
    return MACOS if sys.platform == "darwin" else LINUX
