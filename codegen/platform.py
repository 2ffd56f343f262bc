"""Operating systems that libraries are for: what a shared library is called there, and how one is linked."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Platform:
    """An operating system.

    ``library`` is the file name of a library. ``link_flags`` link objects to one that needs the system's C library
    alone and exports the functions of its C ABI alone. In both, ``{name}`` is the model. ``exports`` is the source
    file, if any, to which the flags refer. ``triple`` is clang's name of a machine, with its architecture and the
    oldest version of the system that a library can run on. ``machine`` occurs in the machine name that every compiler
    for the system reports; ``compiler`` is the name of a cross compiler for it.
    """

    name: str
    library: str
    link_flags: tuple[str, ...]
    exports: str | None
    triple: str
    machine: str
    compiler: str | None

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


def here() -> Platform:
    """The platform of this process."""
    return MACOS if sys.platform == "darwin" else LINUX
