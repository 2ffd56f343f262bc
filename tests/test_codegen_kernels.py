"""Generated kernels against the loop nest's own interpreter, for every target that this machine runs or emulates."""

import itertools
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen.cpp import RESERVED
from luminal.codegen.emitter import emit
from luminal.core.schedule.program.ir import Kernel
from luminal.core.schedule.transform.loops import Scheduled
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


def test_a_few_elements_are_moved_as_one_integer_where_that_keeps_their_values() -> None:
    """A bool in memory may be any byte, one that is stored is 0 or 1; no integer has three elements of two bytes."""
    cases = {name: case for name, case in CASES.items() if name.startswith(("moves_", "leaves_"))}
    found = {name: "\n".join(emit(Kernel("kernel", Scheduled(case.nest)), {}).body) for name, case in cases.items()}
    moved = {name for name, text in found.items() if "move_elements<" in text and "clear_elements<" in text}
    assert moved == {name for name in found if name.startswith("moves_")} != set(found)


def test_rows_are_interleaved_in_registers_where_that_leaves_no_gap() -> None:
    cases = {
        name: case for name, case in CASES.items() if name.startswith(("interleaved_", "apart_", "added_", "guarded_"))
    }
    found = {name: "\n".join(emit(Kernel("kernel", Scheduled(case.nest)), {}).body) for name, case in cases.items()}
    of_two_or_four_bytes = {name for name in found if name.startswith("interleaved_") and "float64" not in name}
    assert {name for name, text in found.items() if "Interleaved<" in text} == of_two_or_four_bytes
    assert found["interleaved_twice"].count("Interleaved<") == 2
    assert all("scatter(" in text for text in found.values())  # what is left at the end


def test_nothing_of_the_runtime_can_be_hidden() -> None:
    """What generated text calls is reserved: an array or a size of that name is called something else."""
    called = set()
    for name, case in CASES.items():
        text = emit(
            Kernel("kernel", Scheduled(case.nest)), {dim.name: place for place, dim in enumerate(case.nest.dims)}
        )
        lines = "\n".join(itertools.chain(text.body, *text.functions))
        called |= set(re.findall(r"(?<![.\w])([A-Za-z_]\w*)(?=[<(])", lines)) - {f"kernel_{name}"}
    own = {word for word in called if re.fullmatch(r"(kernel_tile|term)\d+", word)}
    assert called - own - {word for word in called if word.startswith("__builtin_")} <= RESERVED


@pytest.mark.parametrize("target", emulation.each(*emulation.INSTRUCTION_SETS))
@pytest.mark.parametrize("name", CASES)
def test_kernel(name: str, target: Target, folder: Path) -> None:
    case = CASES[name]
    for arrays, dims in case.runs:
        results = compare(compiled(target, folder)[name], arrays, dims, case.ulps)
        written = [array.name for array in case.nest.arrays if array.written]
        assert any(np.any(results[name] != 0) for name in written) or not any(results[name].size for name in written)
