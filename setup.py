"""Builds the native binding and keeps stale build products out of wheels; all metadata is in pyproject.toml."""

import shutil
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup
from setuptools.command.build_py import build_py

RUNTIME = Path("src", "luminal", "runtime")
HEADERS = RUNTIME / "include"


class FreshBuildPy(build_py):
    """``build_py`` into an empty folder: a module deleted from the sources must not come back out of ``build/``."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib, "luminal"), ignore_errors=True)
        super().run()


setup(
    ext_modules=[
        Pybind11Extension(
            "luminal.runtime._native",
            [str(RUNTIME / "binding.cpp")],
            include_dirs=[str(HEADERS)],
            depends=sorted(str(header) for header in HEADERS.rglob("*.h*")),
            libraries=["dl", "pthread"],
            cxx_std=17,
        )
    ],
    cmdclass={"build_ext": build_ext, "build_py": FreshBuildPy},
)
