"""A step of training in PyTorch's eager mode, in float32 or float64, and the same step compiled."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import luminal
from luminal.training import Training

EPS = 2.0**-24
ORDERS = 4
LOSS = "loss"


@dataclass
class Run:
    """A PyTorch module, its loss and optimiser, and the batches that it is trained on. Without a loss, the module gives
    it, of all that a batch has."""

    module: nn.Module
    loss: Callable[..., torch.Tensor] | None
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], tuple[torch.Tensor, ...]]  # the module's argument, then the loss's, for each step
    clip: float | None = None
    autocast: bool = False  # products in bfloat16

    def step(self, number: int, order: int = 0) -> torch.Tensor:
        """One step in eager mode, on the rows of the batch in another ``order``."""
        given = self.batch(number)
        rows = torch.randperm(len(given[0]), generator=torch.Generator().manual_seed(order))
        given = tuple(t[rows] for t in given) if order else given
        given = tuple(t if not t.is_floating_point() else t.to(self._dtype) for t in given)
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.module(*given) if self.loss is None else self.loss(self.module(given[0]), *given[1:])
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self._parameters(), self.clip)
        self.optimizer.step()
        return loss.detach()

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def copied(self, dtype: torch.dtype) -> Run:
        """The same with its state, in another type."""
        module = copy.deepcopy(self.module).to(dtype)
        here = dict(zip(map(id, self.module.parameters()), module.parameters(), strict=True))
        groups = [{**group, "params": [here[id(p)] for p in group["params"]]} for group in self.optimizer.param_groups]
        optimizer = type(self.optimizer)(groups)
        for p, kept in self.optimizer.state.items():
            optimizer.state[here[id(p)]] = {
                key: value.to(dtype, copy=True) if torch.is_tensor(value) and key != "step" else copy.deepcopy(value)
                for key, value in kept.items()
            }
        autocast = self.autocast and dtype == torch.float32
        return replace(self, module=module, optimizer=optimizer, autocast=autocast)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything that a step changes, by name."""
        for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
            yield name, tensor.detach()
        for number, p in enumerate(self._parameters()):
            for key, value in self.optimizer.state.get(p, {}).items():
                if value is not None:
                    yield f"{number}.{key}", torch.as_tensor(value)

    def compiled(self, **options: Any) -> Training:
        given = self.batch(0)
        inputs, targets = (given, ()) if self.loss is None else (given[:1], given[1:])
        options = {"precision": "bf16", **options} if self.autocast else options
        return luminal.compile_training(
            self.module, self.loss, self.optimizer, inputs, targets, clip_norm=self.clip, **options
        )


@dataclass(frozen=True)
class Difference:
    """How far a value lies from that of a float64 step: luminal's, eager mode's, and what its rounding alone gives."""

    step: int
    name: str
    error: float
    eager: float
    rounding: float

    @property
    def ratio(self) -> float:
        """Luminal's error by eager mode's, to which the rounding of the value itself is added."""
        other = self.eager + self.rounding
        return self.error / other if other else math.inf if self.error else 0.0


def differences(run: Run, training: Training, at: Sequence[int]) -> Iterator[Difference]:
    """Take steps of ``run`` in eager mode; at those of the numbers ``at``, a compiled step from the same state: the
    loss, and everything that a step changes.

    How far eager mode is depends on the order in which it sums: it is the farthest of ``ORDERS`` of the rows of a
    batch. Distances are Euclidean.
    """
    for number in range(max(at) + 1):
        if number not in at:
            run.step(number)
            continue
        training.read_from(run.module, run.optimizer)
        losses = [float(training(*run.batch(number), lr=[group["lr"] for group in run.optimizer.param_groups]))]
        exact = run.copied(torch.float64)
        wanted = float(exact.step(number))
        exact.optimizer.zero_grad()
        ours = run.copied(torch.float32)
        training.write_back(ours.module, ours.optimizer)
        errors = [_errors(ours, exact)]
        del ours  # one copy at a time: a large model may have no room for several
        for order in (*range(1, ORDERS), 0):
            other = run.copied(torch.float32) if order else run
            losses.append(float(other.step(number, order)))
            errors.append(_errors(other, exact))
        error, *others = (abs(loss - wanted) for loss in losses)
        yield Difference(number, LOSS, error, max(others), 2 * EPS * abs(wanted))
        for name, value in exact.tensors():
            error, *others = (each[name] for each in errors)
            counted = name.endswith(".step") or not value.is_floating_point()  # which nothing rounds
            rounding = 0.0 if counted else EPS * float(torch.linalg.norm(value.double()))
            if name.endswith("running_mean"):  # a mean near zero rounds as the numbers do whose deviation is known
                deviation = exact.module.get_buffer(name.replace("running_mean", "running_var")).sqrt()
                rounding = max(rounding, 0.1 * EPS * float(torch.linalg.norm(deviation)))
            yield Difference(number, name, error, max(others), rounding)


def _errors(run: Run, exact: Run) -> dict[str, float]:
    """How far each tensor of ``run`` lies from that of ``exact``."""
    found = dict(run.tensors())
    return {name: float(torch.linalg.norm(found[name].double() - value.double())) for name, value in exact.tensors()}


def together(differences: Iterable[Difference]) -> float:
    """Luminal's error of several tensors as one, by eager mode's."""
    error, eager, rounding = (
        math.hypot(*values) for values in zip(*((x.error, x.eager, x.rounding) for x in differences), strict=True)
    )
    return Difference(0, "", error, eager, rounding).ratio
