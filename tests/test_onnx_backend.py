"""The ONNX project's own node tests: a scoreboard that may only grow.

``tests/onnx_backend_passed.txt`` names the cases that pass, ``docs/coverage.md`` counts them by operator; ``make
coverage`` runs all cases and writes both.
"""

from collections.abc import Iterator, Sequence

import pytest

from luminal.core.errors import LuminalError
from tests import coverage_page, onnx_suite
from tests.onnx_suite import cases, listed

CHUNKS = 16


def chunks(names: Sequence[str]) -> Iterator[list[str]]:
    return (list(names[start::CHUNKS]) for start in range(CHUNKS))


@pytest.mark.parametrize("names", [pytest.param(names, id=str(k)) for k, names in enumerate(chunks(listed()))])
def test_no_case_that_passed_fails(names: list[str]) -> None:
    failed: list[str] = []
    for name in names:
        if name in cases():  # another version of onnx may not have it
            try:
                onnx_suite.check(cases()[name])
            except (LuminalError, AssertionError) as error:
                failed.append(f"{name}: {error}")
    assert not failed, "\n".join(failed)


def test_the_page_counts_what_the_list_names() -> None:
    text = coverage_page.PAGE.read_text()
    assert f"**{len(listed())} of " in text
    assert len(listed()) >= 1556
