"""Values that are computed again instead of kept: what is chosen, that nothing else changes, and what is said of it."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import luminal
from luminal.core import target as targets
from luminal.core.errors import InputError
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.program.ir import Program
from luminal.core.schedule.program.recompute import Recomputation, Work
from tests.drawn import draw

# How many bytes a share is hangs on the tiles of a target, and so does what must be stored: where it runs, it is AVX2.
TARGET = targets.AVX2 if targets.supported(targets.AVX2) else targets.detect()


def work(step: int, read: str, written: str, cycles: float = 1.0, repeats: bool = True) -> Work:
    """A launch that reads and writes buffers of the names, which are single letters."""
    return Work(step, (*read, *written), frozenset(written), cycles, True, repeats)


def recomputation(works: list[Work], inputs: str = "", alone: dict[str, Work] | None = None) -> Recomputation:
    """Every buffer but ``inputs`` is of 100 bytes in the arena."""
    names = {name for one in works for name in one.uses}
    return Recomputation(works, dict.fromkeys(names, 100), names - set(inputs), alone or {})


def text(found: Recomputation) -> list[str]:
    return [f"{one.step}: {' '.join(one.uses)}" for one in found.works]


def ladder(*cycles: float) -> list[Work]:
    """Values from a to d, each of the one before and of those cycles, that are read again in the other order."""
    forward = [
        work(k, before, name, cost) for k, (before, name, cost) in enumerate(zip("xabc", "abcd", cycles, strict=True))
    ]
    return [*forward, work(4, "d", "e"), work(5, "ec", "f"), work(6, "fb", "g"), work(7, "ga", "h")]


def test_the_value_that_costs_least_is_computed_again() -> None:
    found = recomputation(ladder(9, 2, 5, 5), "x")
    assert found.peak == 500  # a, b, c, d and e
    found.shrink(400)
    assert text(found) == [
        "0: x a", "1: a b", "2: b c", "3: c d", "4: d e", "5: e c f", "1: a b.again", "6: f b.again g", "7: g a h",
    ]  # fmt: skip
    assert (found.peak, found.repeated, found.cycles, found.copies) == (400, 1, 2, {"b.again": "b"})


def test_what_is_read_again_is_kept_or_computed_again() -> None:
    found = recomputation(ladder(1, 1, 1, 1), "x")
    found.shrink(0)
    assert found.peak == 300 and found.repeated >= 2
    assert text(found)[-1].startswith("7: g a")


def test_what_nothing_reads_before_runs_later() -> None:
    """At no cost, and before what costs any."""
    works = [work(0, "x", "a"), work(1, "x", "m", 9), work(2, "a", "b"), work(3, "b", "c"), work(4, "cm", "d")]
    found = recomputation(works, "x")
    found.shrink(0, 0)
    assert text(found) == ["0: x a", "2: a b", "3: b c", "1: x m.again", "4: c m.again d"]
    assert (found.peak, found.repeated, found.cycles) == (300, 0, 0)


def test_no_more_work_than_a_share() -> None:
    found = recomputation(ladder(9, 2, 5, 5), "x")
    found.shrink(0, 2 / 25)
    assert (found.repeated, found.cycles) == (1, 2)


@pytest.mark.parametrize(
    "between",
    [work(8, "d", "x"), Work(8, ("b",), frozenset("b")), work(8, "d", "b"), Work(8, ("b", "x"), frozenset("x"))],
)
def test_what_has_changed_is_not_computed_again(between: Work) -> None:
    """Its operand, or itself; nor is what a step reads that is no launch."""
    works = [work(0, "x", "b"), work(1, "b", "c"), work(2, "c", "d"), between, work(4, "db", "e")]
    found = recomputation(works, "x")
    found.shrink(0)
    assert found.works == works


def test_what_a_step_changes_where_it_lies_is_not_computed_again() -> None:
    works = [work(0, "x", "b", repeats=False), work(1, "b", "c"), work(2, "c", "d"), work(3, "db", "e")]
    found = recomputation(works, "x")
    found.shrink(0)
    assert found.works == works


def test_a_value_has_a_kernel_of_its_own() -> None:
    """The product is kept, the activation is not."""
    works = [
        Work(0, ("x", "p", "a"), frozenset("pa"), 90.0, True, True), work(1, "a", "c"), work(2, "c", "d"),
        work(3, "d", "e"), work(4, "eap", "f"),
    ]  # fmt: skip
    found = recomputation(works, "xf", {"a": work(5, "p", "a", 3)})
    found.shrink(300)
    assert text(found)[-2:] == ["5: p a.again", "4: e a.again p f"]
    assert (found.peak, found.cycles) == (300, 3)


def test_every_step_reads_what_it_read_before() -> None:
    """Of random programs, with states and values that steps change where they lie."""
    random = np.random.default_rng(0)
    fewer = 0
    for _ in range(60):
        works, names = [], ["x", "s"]
        for number in range(int(random.integers(5, 30))):
            read = [str(name) for name in random.choice(names, min(len(names), 3), replace=False)]
            kind = random.integers(8)
            if kind == 0:  # in place
                works.append(Work(number, tuple(read), frozenset(read[:1]) - {"x"}, 1.0, True, False))
                continue
            names.append(f"v{number}")
            uses = (*read, names[-1])
            launch = kind != 1
            works.append(Work(number, uses, frozenset(names[-1:]), float(random.integers(1, 9)), launch, launch))
        sizes = {name: int(random.integers(1, 9)) * 64 for name in names}
        found = Recomputation(list(works), dict(sizes), set(names) - {"x", "s"})
        before = found.peak
        found.shrink(0)
        fewer += found.peak < before
        assert meanings(found.works) == meanings(works)
    assert fewer > 20


def meanings(works: list[Work]) -> dict[int, set[str]]:
    """Of each step, what it writes in all of its runs, as a hash of what it reads."""
    held: dict[str, str] = {}
    found: dict[int, set[str]] = {}
    for one in works:
        read = [held.get(name, name) for name in one.uses if name not in one.written or not one.repeats]
        value = hashlib.sha256(" ".join([str(one.step), *read]).encode()).hexdigest()
        found.setdefault(one.step, set()).add(value)
        held |= dict.fromkeys(one.written, value)
    return found


# ---- compiled ------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer of a decoder, whose products are small beside its activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.joint, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.joint(self.first(x)).view(4, 24, 3, 2, 8).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(4, 24, 16))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(number)
    return tuple(random.standard_normal((4, 24, 16), np.float32) for _ in range(2))


@cache
def compiled(memory: int | str | None) -> luminal.Training:
    torch.manual_seed(0)
    module = nn.Sequential(Layer())
    draw(module, 0, 0.2)
    x, target = map(torch.from_numpy, batch(0))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    return luminal.compile_training(
        module, nn.MSELoss(), optimizer, (x,), (target,), memory=memory, name="layers", target=TARGET
    )


def results(step: luminal.Training) -> tuple[list[float], dict[str, Any]]:
    step.reset()
    losses = [float(step(*batch(number))) for number in range(3)]
    return losses, step.state


def check_alike(step: luminal.Training) -> None:
    """The same bits as where nothing is computed again."""
    losses, state = results(step)
    wanted, kept = results(compiled(None))
    assert losses == wanted
    assert all(np.array_equal(state[name], kept[name]) for name in kept)


def test_low_takes_less_and_gives_the_same_bits() -> None:
    step, plain = compiled("low"), compiled(None)
    assert step.memory["train"] < 0.75 * plain.memory["train"]
    assert step.memory["state"] == plain.memory["state"]
    check_alike(step)
    (row, _) = step.module.manifest["memory"]
    assert row["entry"] == "train" and row["bytes"] == step.memory["train"] and row["without"] == plain.memory["train"]
    assert row["again"] > 0 and 0 < row["work"] <= 1 / 3
    line = f"memory: train: {row['bytes']} bytes for values instead of {row['without']}: {row['again']} steps run again"
    assert line in step.module.explain()
    assert "memory" not in plain.module.manifest and "memory:" not in plain.module.explain()
    assert plain.module.program is not None
    assert not [b for b in plain.module.program.buffers if ".again" in b.name]


@cache
def program(memory: int | str | None) -> Program:
    """What is compiled, without a compiler of C++."""
    module = compiled(None).module
    graphs = {name: module[name].graph for name in module.entries}
    return compile_graphs("layers", graphs, TARGET, memory=memory)


def taken(program: Program) -> int:
    return program.entries[0].arena_size


def test_cheap_values_come_first() -> None:
    """No product runs again where activations and norms are enough."""
    found = program(taken(program(None)) * 95 // 100)
    again = [
        launch for launch in found.entries[0].launches
        if any(name.endswith(".again") and array.written
               for name, array in zip(launch.arguments, found.kernels[launch.kernel].nest.arrays, strict=True))
    ]  # fmt: skip
    assert again and not any(launch.operations for launch in again)


def test_a_number_of_bytes_is_kept_to() -> None:
    bound = (taken(program("low")) + taken(program(None))) // 2
    assert taken(program("low")) < taken(program(bound)) <= bound


def test_a_number_that_cannot_be_reached_says_the_least() -> None:
    with pytest.raises(InputError, match=r"memory: expected at least \d+ bytes for the values of 'train'") as error:
        program(1000)
    least = int(str(error.value).split("at least ")[1].split()[0])
    assert taken(program(least)) <= least <= taken(program("low"))
    for wrong in (0, -1, True, "little", 1.5):
        with pytest.raises(InputError, match="memory: expected 'low' or a number of bytes above 0"):
            compiled(wrong)


def test_gradients_too() -> None:
    """Those of rows that are normalised; elementwise functions are computed again without being asked to."""
    module = nn.Sequential(*(nn.Sequential(nn.Linear(8, 64), nn.Softmax(-1), nn.Linear(64, 8)) for _ in range(2)))
    draw(module, 1, 0.3)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 8), np.float32))

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x).square().mean()

    plain, low = luminal.grad(Loss(), (x,)), luminal.grad(Loss(), (x,), memory="low")
    sizes = [made.module.manifest["entries"][0]["arena_bytes"] for made in (plain, low)]
    assert sizes[1] < sizes[0]
    wanted, found = plain(x), low(x)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
