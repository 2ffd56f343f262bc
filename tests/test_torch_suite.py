"""PyTorch's own operator database: a scoreboard that may only grow.

``tests/torch_passed.txt`` names the cases that pass, ``docs/coverage.md`` counts them; ``make coverage`` runs all cases
and writes both. Here the first case of each entry that passed runs again, in two of its types: the first, and another
that goes by the place of the entry.
"""

import os
from collections.abc import Iterator

import pytest

from luminal.frontends.fx.dtypes import from_torch
from tests import coverage_page
from tests.torch_cases import NEARER, Result, cases, check, entries, types_of
from tests.torch_compiled import TOGETHER, tasks
from tests.torch_suite import Begun, Part, listed, results_of
from tests.workers import Lost, Worker, each

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
            # How near PyTorch is to float64 depends on the processor.
            if not result.passed and result.failed != NEARER:
                failed.append(f"{case.name}: {result.failed or result.excluded}")
    assert not failed, "\n".join(failed)


def test_the_page_counts_what_the_list_names() -> None:
    (part,) = (part for part in coverage_page.parts() if part.startswith(f"{coverage_page.TORCH}\n"))
    counted = [int(cell.split("**")[1]) for row in part.splitlines() if row.startswith("| ") and row.count("**") == 4
               for cell in row.split("|")[5:6]]  # fmt: skip
    assert sum(counted) == sum(map(len, listed().values()))


def broken(part: Part) -> Iterator[Begun | Result]:
    """Four cases; the third ends its process."""
    for number in range(4)[part.done :]:
        yield Begun((part.name, "float32"), number)
        if number == 2:
            os._exit(3)
        yield Result((part.name, "float32"), number)


def test_a_case_that_ends_its_process_has_failed_and_the_others_go_on() -> None:
    parts = [Part("a"), Part("b"), Part("c")]
    found = dict(each(parts, results_of, [Worker(broken, 60, 1 << 34) for _ in range(2)]))
    assert sorted(part.name for part in found) == ["a", "b", "c"]
    for results in found.values():
        assert [result.number for result in results] == [0, 1, 2, 3]
        assert [result.failed for result in results] == ["", "", "the process ended: exit status 3", ""]


class Ending(Worker[Part]):
    """Lost with the first case, and again before it begins the second."""

    def items(self, part: Part) -> Iterator[Begun | Result]:
        if part.done == 0:
            yield Begun((part.name, "float32"), 0)
        if part.done < 2:
            raise Lost(f"after {part.done}")


def test_a_process_that_ends_before_a_case_is_no_result_of_the_case_before() -> None:
    with pytest.raises(Lost, match="after 1"):
        results_of(Ending(broken, 60, 1 << 34), Part("a"))


def test_tasks_hold_every_kind_once_and_begin_with_something_of_all() -> None:
    listed = {(f"entry{k}", dtype): list(range(5)) for k in range(30) for dtype in ("float32", "int64", "bool")}
    found = tasks(listed)
    kinds = [kind for task in found for kind, _ in task]
    assert sorted(kinds) == sorted(listed)
    assert all(sum(len(numbers) for _, numbers in task) <= TOGETHER for task in found)
    assert len({name for name, _ in kinds[:30]}) == 30 and {dtype for _, dtype in kinds[:30]} == {
        "float32",
        "int64",
        "bool",
    }
