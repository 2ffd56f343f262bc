"""Generated kernels against the loop nest's own interpreter, for every target that this machine runs or emulates."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from luminal.core.target import Target
from tests import emulation
from tests.codegen_cases import CASES
from tests.codegen_support import Compiled, compare, compile_nests


@cache
def compiled(target: Target, folder: Path) -> dict[str, Compiled]:
    return compile_nests({name: case.nest for name, case in CASES.items()}, target, folder)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("target", emulation.each(*emulation.INSTRUCTION_SETS))
@pytest.mark.parametrize("name", CASES)
def test_kernel(name: str, target: Target, folder: Path) -> None:
    case = CASES[name]
    for arrays, dims in case.runs:
        results = compare(compiled(target, folder)[name], arrays, dims, case.ulps)
        written = [array.name for array in case.nest.arrays if array.written]
        assert any(np.any(results[name] != 0) for name in written) or not any(results[name].size for name in written)
