"""Operating systems that libraries are for: what a shared library is called there, and how one is linked."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Platform:
    """An operating system.

    ``library`` is the file name of a library by its name, and ``link_flags`` make one of objects, so that it needs the
    system's C library alone and exports the functions of its C ABI alone. Of these texts ``{name}`` is the model.
    ``exports`` is the file of the sources that they refer to, where they do. ``triple`` names a machine to clang, by
    its architecture, with the oldest version of the system that has what a library needs; ``machine`` is in the name
    that every compiler for the system gives to its machines; ``compiler`` is what a cross compiler for it is called.
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
        "-Wl,--strip-debug",  # of what some compilers add of their own
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
    """That of this process."""
    return MACOS if sys.platform == "darwin" else LINUX
