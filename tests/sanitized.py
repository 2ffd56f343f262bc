"""Exported sources compiled anew, watched for bad memory accesses and undefined behaviour."""

from __future__ import annotations

import json
from pathlib import Path

from luminal.codegen import render
from luminal.core import target as targets
from tests.runtime_example import run

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def objects(exported: Path, folder: Path) -> list[Path]:
    """The object files, in ``folder``, of the library and the kernels that ``exported`` holds."""
    manifest = json.loads((exported / "manifest.json").read_text())
    defines = [f"-DLM_NAMESPACE={render.namespace(manifest['name'])}", f"-I{exported}", f"-I{exported / 'include'}"]
    target = targets.ALL[manifest["target"]["name"]].using(manifest["target"]["features"])
    kernel_flags = [flag for flag in target.flags if flag != "-O3"]
    kernels = sorted((exported / "kernels").iterdir())
    common = [*FLAGS, "-fno-exceptions", "-fno-rtti", "-fPIC", "-O1", *defines]
    made = []
    for source in [exported / "library.cpp", *kernels]:
        own = kernel_flags if source in kernels else ["-std=c++17"]
        made.append(folder / f"{source.stem}.o")
        run(["g++", *own, *common, "-c", source, "-o", made[-1]])
    return made
