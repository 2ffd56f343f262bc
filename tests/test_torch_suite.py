"""PyTorch's own operator database: a scoreboard that may only grow.

``tests/torch_passed.txt`` names the cases that pass, ``docs/coverage.md`` counts them; ``make coverage`` runs all cases
and writes both. Here the first case of each entry that passed runs again, in two of its types: the first, and another
that goes by the place of the entry.
"""

from collections.abc import Iterator

import pytest

from luminal.frontends.fx.dtypes import from_torch
from tests import coverage_page, torch_suite
from tests.torch_suite import cases, check, entries, listed, types_of

CHUNKS = 16


def chunks() -> Iterator[list[str]]:
    names = list(dict.fromkeys(name for name, _ in listed()))
    return (names[start::CHUNKS] for start in range(CHUNKS))


@pytest.mark.parametrize("names", [pytest.param(names, id=str(k)) for k, names in enumerate(chunks())])
@pytest.mark.filterwarnings("ignore")
def test_no_entry_that_passed_fails(names: list[str]) -> None:
    passed = listed()
    failed: list[str] = []
    for place, name in enumerate(names):
        found = [dtype for dtype in types_of(entries()[name]) if (name, str(from_torch(dtype))) in passed]
        for dtype in {found[0], found[place % len(found)]}:
            number = passed[name, str(from_torch(dtype))][0]
            case = next(case for case in cases(entries()[name], dtype) if case.number == number)
            result = check(case)
            if not result.passed:
                failed.append(f"{case.name}: {result.failed or result.excluded}")
    assert not failed, "\n".join(failed)


def test_the_page_counts_what_the_list_names() -> None:
    (part,) = (part for part in coverage_page.parts() if part.startswith(torch_suite.HEADING))
    counted = [int(cell.split("**")[1]) for row in part.splitlines() if row.startswith("| ") and row.count("**") == 4
               for cell in row.split("|")[5:6]]  # fmt: skip
    assert sum(counted) == sum(map(len, listed().values()))
