"""The ONNX project's own suites for back ends: a scoreboard that may only grow.

``tests/onnx_passed.txt`` names the cases that pass through the interpreter and those of them that pass compiled,
``docs/coverage.md`` counts both by operator; ``make coverage`` runs all and writes them.
"""

from collections.abc import Iterator, Sequence

import pytest

from luminal.core.errors import LuminalError
from tests import coverage_page, onnx_suite
from tests.onnx_cases import everything
from tests.onnx_suite import listed

CHUNKS = 16


def chunks(names: Sequence[str]) -> Iterator[list[str]]:
    return (list(names[start::CHUNKS]) for start in range(CHUNKS))


@pytest.mark.parametrize("names", [pytest.param(names, id=str(k)) for k, names in enumerate(chunks(listed()))])
def test_no_case_that_passed_fails(names: list[str]) -> None:
    failed: list[str] = []
    for name in names:
        if name in everything():  # another version of onnx may not have it
            try:
                onnx_suite.check(everything()[name])
            except (LuminalError, AssertionError) as error:
                failed.append(f"{name}: {error}")
    assert not failed, "\n".join(failed)


def test_the_page_counts_what_the_list_names() -> None:
    text = coverage_page.PAGE.read_text()
    interpreted, compiled = ([name for name in listed(only) if "/" not in name] for only in (False, True))
    assert f"**{len(compiled)} of " in text and f"compiled, {len(interpreted)} through the" in text
    assert len(compiled) >= 1865
