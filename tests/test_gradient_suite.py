"""PyTorch's operator database differentiated: see ``tests.gradient_suite``, which writes the lists.

Every fifth of the entries that passed is differentiated again, in the interpreter.
"""

from __future__ import annotations

import pytest

from tests import gradient_suite

STEP = 5


def passed() -> list[str]:
    return gradient_suite.PASSED.read_text().split()


def test_nearly_all_that_compile_forward_are_differentiated() -> None:
    """Those that fail are named, each with its reason."""
    failed = [line.partition(": ") for line in gradient_suite.FAILED.read_text().splitlines()]
    assert all(reason for _, _, reason in failed)
    assert not {name for name, _, _ in failed} & set(passed())
    assert len(passed()) >= 0.95 * (len(passed()) + len(failed))


@pytest.mark.parametrize("start", range(4))
@pytest.mark.filterwarnings("ignore")
def test_no_entry_that_passed_fails(start: int) -> None:
    results = {name: gradient_suite.run(name) for name in passed()[::STEP][start::4]}
    assert not {name: why for name, (how, why) in results.items() if how != "passed"}
