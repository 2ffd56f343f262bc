"""A step of training beside PyTorch's: both start from the same state, and float64 says which is nearer."""

from __future__ import annotations

from benchmarks.eager import EPS, Run, differences
from luminal.core.schedule.program.ir import Launch
from luminal.training import Training

__all__ = ["EPS", "Run", "check", "check_in_place"]


def check(run: Run, training: Training, at: tuple[int, ...]) -> None:
    """At steps of the numbers ``at``, a compiled step is at most twice as far from a float64 step as one in eager mode,
    in everything that it changes."""
    for found in differences(run, training, at):
        assert found.ratio <= 2, found


def check_in_place(training: Training) -> None:
    """No state is copied after a step: each is written by the kernel that computes it, once."""
    program = training.module.program
    assert program is not None
    spaces = {buffer.name: buffer.space for buffer in program.buffers}
    (entry,) = (entry for entry in program.entries if entry.name == "train")
    written: list[str] = []
    for step in entry.region.steps:
        if isinstance(step, Launch):
            arrays = program.kernels[step.kernel].nest.arrays
            written += [
                name for name, array in zip(step.arguments, arrays, strict=True)
                if array.written and spaces[name] == "state"
            ]  # fmt: skip
    assert len(written) == len(set(written))
    assert not [name for name in spaces if name.endswith(".next")], "a new value has a place of its own"
