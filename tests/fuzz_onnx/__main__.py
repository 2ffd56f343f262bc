"""Run damaged models and print how they ended; exit status 1 where one ended in a fault."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzz_onnx import case, runner
from tests.fuzz_onnx.case import Outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_onnx", description=__doc__)
    parser.add_argument("--cases", type=int, default=20000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="how many processes at once")
    parser.add_argument("--only", type=int, help="one case, in this process, with its traceback; keeps its model")
    options = parser.parse_args()
    if options.only is not None:
        folder = Path(tempfile.mkdtemp()) / "case"
        folder.mkdir()
        path = case.make(options.seed, options.only, folder)
        shutil.copy(path, f"case_{options.only}.onnx")
        case.attempt(path, checked=options.only % 4 == 0)
        return 0
    numbers = range(options.first, options.first + options.cases)
    found: list[Outcome] = []
    for outcome in runner.outcomes(options.seed, numbers, options.jobs):
        found.append(outcome)
        if len(found) % 1000 == 0:
            print(f"{len(found)} of {len(numbers)}", file=sys.stderr, flush=True)
    report(found)
    return 1 if any(outcome.fault for outcome in found) else 0


def report(found: list[Outcome]) -> None:
    """Counts, the slowest, and faults, those of one place together."""
    for kind, count in Counter(outcome.kind for outcome in found).most_common():
        print(f"{count:7} {kind}")
    times = sorted(outcome.seconds for outcome in found)
    slowest = max(found, key=lambda outcome: outcome.seconds)
    print(f"median {times[len(times) // 2] * 1e3:.1f} ms, slowest {slowest.seconds:.2f} s (case {slowest.number})")
    places: dict[str, list[Outcome]] = {}
    for outcome in found:
        if outcome.fault:
            kind, _, trace = outcome.fault.partition("\n")
            places.setdefault(kind.partition(":")[0] + "\n" + trace.split("\n")[-1], []).append(outcome)
    for outcomes in sorted(places.values(), key=len, reverse=True):
        print(f"\n{len(outcomes)} x case {', '.join(str(o.number) for o in outcomes[:5])}: {outcomes[0].fault}")
    print(f"\n{sum(map(len, places.values()))} faults of {len(places)} kinds")


if __name__ == "__main__":
    sys.exit(main())
