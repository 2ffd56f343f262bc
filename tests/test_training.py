"""``luminal.compile_training``: what it computes beside PyTorch, what it keeps, and what it refuses."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import luminal
from luminal import checkpoint, optim
from luminal.core.errors import InputError
from tests.drawn import draw
from tests.training_support import Run, check, check_in_place

CE = nn.CrossEntropyLoss()


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def labels(count: int, below: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, below, (count,), generator=torch.Generator().manual_seed(seed))


def mlp() -> Run:
    """Two groups, one of them with decay; a frozen layer; a parameter that the loss does not depend on."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 3))
    module[2].requires_grad_(False)
    module.register_parameter("unused", nn.Parameter(torch.ones(2)))
    matrices = [module[0].weight, module[4].weight, module[2].weight]
    others = [module[0].bias, module[4].bias, module.unused]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 0.02}], lr=0.01)
    return Run(module, CE, optimizer, lambda k: (floats(8, 6, seed=k), labels(8, 3, seed=k)))


@cache
def trained() -> luminal.Training:
    return mlp().compiled(
        accumulate=2, outputs=True, dims={"batch": (1, 16), "input": {0: "batch"}, "target": {0: "batch"}}
    )


@cache
def plain() -> luminal.Training:
    return mlp().compiled()


def test_steps_of_an_mlp_are_as_near_to_float64_as_eager_ones() -> None:
    check(mlp(), plain(), (0, 1, 10, 100))
    check_in_place(plain())


def test_losses_go_the_same_way() -> None:
    run, training = mlp(), plain()
    exact = run.copied(torch.float64)
    training.reset()
    errors = []
    for number in range(60):
        found = training(*run.batch(number), lr=[0.01, 0.02])
        wanted, eager = exact.step(number), run.step(number)
        errors.append((abs(float(found - wanted)), abs(float(eager - wanted))))
    ours, theirs = np.linalg.norm(errors, axis=0)
    assert ours <= 2 * theirs, (ours, theirs)


def test_gradients_of_several_calls_are_added_up() -> None:
    run, training = mlp(), trained()
    training.reset()
    for _ in range(2):
        run.optimizer.zero_grad()
        for part in (0, 1):
            x, target = floats(5 + part, 6, seed=part), labels(5 + part, 3, seed=part)
            before = training.state["0.weight"]
            loss, output = training(x, target, lr=[0.01, 0.02])
            wanted = run.module(x)
            torch.testing.assert_close(output, wanted.detach())
            torch.testing.assert_close(loss, CE(wanted, target).detach())
            (CE(wanted, target) / 2).backward()
            assert np.array_equal(before, training.state["0.weight"]) == (part == 0)
        run.optimizer.step()
    state = training.state
    for name, parameter in run.module.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(torch.as_tensor(state[name]), parameter.detach())
    assert state["0.weight.gradients"].any() == False  # noqa: E712
    assert np.array_equal(state["unused"], [1, 1]) and "unused.exp_avg" not in state and "2.weight" not in state


def test_evaluation_reads_the_same_parameters() -> None:
    run, training = mlp(), trained()
    training.reset()
    for k in range(2):
        training(*run.batch(k), lr=0.1)
    training.write_back(run.module, run.optimizer)
    x = floats(3, 6)
    torch.testing.assert_close(training.eval(x), run.module(x).detach())


def test_everything_comes_back_bit_for_bit() -> None:
    run, training = mlp(), plain()
    for k in range(3):
        run.step(k)
    training.read_from(run.module, run.optimizer)
    other = mlp()
    training.write_back(other.module, other.optimizer)
    for (name, found), (_, wanted) in zip(other.tensors(), run.tensors(), strict=True):
        assert torch.equal(found, wanted), name
    other.step(3), run.step(3)  # and PyTorch goes on from there
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(other.tensors(), run.tensors(), strict=True))


def test_checkpoints_resume_and_are_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    run, training = mlp(), trained()
    training.reset()
    for k in range(3):  # in the middle of two calls
        training(*run.batch(k), lr=0.1)
    training.save(tmp_path / "a.safetensors")
    found = safetensors.load_file(tmp_path / "a.safetensors")
    assert sorted(found) == sorted(training.state)
    assert all(np.array_equal(found[name].numpy(), value) for name, value in training.state.items())
    after = [float(training(*run.batch(k), lr=0.1)[0]) for k in range(3, 8)]
    training.reset()
    training.load(tmp_path / "a.safetensors")
    assert [float(training(*run.batch(k), lr=0.1)[0]) for k in range(3, 8)] == after
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_products_in_bfloat16_are_as_near_to_float64_as_autocast() -> None:
    """Parameters stay float32, and so do gradients, which a step at the rate 1 subtracts."""
    module = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))
    draw(module, 0, 0.3)
    random = np.random.default_rng(0)
    x, target = torch.from_numpy(random.standard_normal((16, 24), np.float32)), torch.arange(16) % 5
    plain, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    CE(exact(x.double()), target).backward()
    with torch.autocast("cpu", torch.bfloat16):
        loss = CE(plain(x).float(), target)
    loss.backward()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    training = luminal.compile_training(module, CE, optimizer, (x,), (target,), precision="bf16")
    before = training.state
    training(x, target)
    after = training.state
    assert all(value.dtype == np.float32 for value in after.values())
    for name, parameter in exact.named_parameters():
        wanted, theirs = parameter.grad.numpy(), plain.get_parameter(name).grad.double().numpy()
        error, other = (np.linalg.norm(g - wanted) for g in (before[name] - after[name], theirs))
        assert error <= 2 * other, (name, error, other)
        assert error > 1e-5 * np.linalg.norm(wanted) or name == "3.bias", name  # products were rounded


KILLED = """
import os, sys
import numpy as np
from luminal import checkpoint
os.fsync = lambda handle: os.kill(os.getpid(), 9)
checkpoint.save(sys.argv[1], {"x": np.ones(1000)})
"""


def test_a_save_that_is_killed_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "kept.safetensors"
    checkpoint.save(path, {"x": np.zeros(3, np.float32)}, {"gathered": "1"})
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ)
    assert killed.returncode == -9
    values, said = checkpoint.load(path)
    assert np.array_equal(values["x"], np.zeros(3, np.float32)) and said == {"gathered": "1"}


@pytest.mark.parametrize("cut", [0, 7, 20, -1])
def test_files_that_are_cut_are_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, {"x": np.arange(5)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match="no whole file of safetensors"):
        checkpoint.load(path)


def test_states_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    training = plain()
    training.reset()
    before = training.state
    with pytest.raises(InputError, match=r"0.weight: expected float32\[12, 6\], found float32\[6, 12\]"):
        training.load_state({"0.bias": np.ones(12, np.float32), "0.weight": np.zeros((6, 12), np.float32)})
    with pytest.raises(InputError, match=r"there is no '0\.wight'"):
        training.load_state({"0.wight": np.zeros(3)})
    checkpoint.save(tmp_path / "part.safetensors", {"0.bias": before["0.bias"]})
    with pytest.raises(InputError, match=r"expected a state .* found none"):
        training.load(tmp_path / "part.safetensors")
    assert all(np.array_equal(value, before[name]) for name, value in training.state.items())
    other = mlp()
    other.module[0] = nn.Linear(6, 13)
    with pytest.raises(InputError, match=r"0.weight: expected torch.float32 \[12, 6\], found torch.float32 \[13, 6\]"):
        training.write_back(other.module)
    with pytest.raises(InputError, match="a learning rate for each of 2 groups, found 3"):
        training(*mlp().batch(0), lr=[0.1, 0.1, 0.1])


class Frozen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_mistakes_are_named() -> None:
    run = mlp()
    x, target = run.batch(0)
    with pytest.raises(InputError, match="expected a loss that is one float, found loss: float32"):
        luminal.compile_training(run.module, None, run.optimizer, (x,))
    with pytest.raises(InputError, match=r"expected one of torch\.optim or luminal\.optim"):
        luminal.compile_training(run.module, CE, 0.1, (x,), (target,))
    with pytest.raises(InputError, match="none of the module's"):
        luminal.compile_training(Frozen(), CE, run.optimizer, (x,), (target,))
    with pytest.raises(InputError, match="depends on none of the parameters"):
        luminal.compile_training(
            run.module, lambda y, t: functional.cross_entropy(y.detach(), t), optim.SGD(), (x,), (target,)
        )
    with pytest.raises(InputError, match="clip_norm: expected a limit above 0, found 0"):
        luminal.compile_training(run.module, CE, run.optimizer, (x,), (target,), clip_norm=0)
    with pytest.raises(InputError, match="accumulate: expected a number of calls of at least 1, found 0"):
        luminal.compile_training(run.module, CE, run.optimizer, (x,), (target,), accumulate=0)


def test_options_that_change_after_compiling_are_refused() -> None:
    """A scheduler may change more than learning rates, which a step has as constants."""
    run = mlp()
    training = plain()
    training.reset()
    kept, training._optimizer = training._optimizer, run.optimizer
    try:
        torch.optim.lr_scheduler.OneCycleLR(run.optimizer, 0.1, total_steps=9, cycle_momentum=False)
        training(*run.batch(0))
        torch.optim.lr_scheduler.OneCycleLR(run.optimizer, 0.1, total_steps=9)
        before = training.state
        with pytest.raises(InputError, match=r"betas of group 0 was \(0\.9, 0\.999\) when .*, found \(0\.95, 0\.999\)"):
            training(*run.batch(0))
        assert all(np.array_equal(value, before[name]) for name, value in training.state.items())
    finally:
        training._optimizer = kept


def test_counts_of_steps_that_differ_are_refused() -> None:
    run = mlp()
    run.step(0)
    run.optimizer.state[run.module[0].weight]["step"] = torch.tensor(7.0)
    with pytest.raises(InputError, match=r"one count of steps in group 0, found \[1, 7\]"):
        plain().read_from(run.module, run.optimizer)
