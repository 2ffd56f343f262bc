"""A tiny GPT-2 of ``transformers`` in an ordinary loop through ``torch.compile``, beside eager PyTorch and float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from luminal import dynamo
from tests.drawn import draw

STEPS, ROWS, LENGTH, WORDS = 20, 4, 12, 29


def model() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "use_cache": False}
    without = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **without))
    draw(made, 0, 0.1)
    return made


def batches() -> list[torch.Tensor]:
    return [torch.from_numpy(np.random.default_rng(k).integers(0, WORDS, (ROWS, LENGTH))) for k in range(4)]


def loss_of(run: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Of the model's scores, in their type: its own loss is float32 whatever they are, so that float64 would be no
    reference, and errors no more than a few units in the last place of the loss."""
    scores = run(input_ids=tokens).logits
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def losses(run: Any, given: Any, order: torch.Tensor | None = None) -> np.ndarray:
    """The losses of a loop of PyTorch's, on the rows of each batch in that ``order``."""
    optimizer = torch.optim.AdamW(given.parameters(), lr=3e-3)
    found = []
    for step in range(STEPS):
        tokens = batches()[step % 4]
        tokens = tokens if order is None else tokens[order]
        optimizer.zero_grad()
        loss = loss_of(run, tokens)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return np.array(found)


def gradients(run: Any, given: Any, tokens: torch.Tensor) -> np.ndarray:
    given.zero_grad()
    loss_of(run, tokens).backward()
    return torch.cat([p.grad.double().flatten() for p in given.parameters()]).numpy()


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_losses_of_twenty_steps_are_as_near_to_float64_as_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    compile_ = dynamo.api.compile
    monkeypatch.setattr(dynamo.api, "compile", lambda *a, **k: made.append(compile_(*a, **k)) or made[-1])
    torch._dynamo.reset()
    first = model()
    exact = copy.deepcopy(first).double()
    wanted = losses(exact, exact)
    # How far eager mode is depends on the order in which it sums: by its threads, and by the order of a batch's rows.
    theirs = []
    for count, order in ((1, None), (2, None), (1, torch.arange(ROWS - 1, -1, -1))):
        with threads(count):
            eager = copy.deepcopy(first)
            theirs.append(np.linalg.norm(losses(eager, eager, order) - wanted))
    mine = copy.deepcopy(first)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*PyTorch runs")
        fast = torch.compile(mine, backend="luminal")
        ours = np.linalg.norm(losses(fast, mine) - wanted)
    rounding = 2.0**-24 * np.linalg.norm(wanted)  # of the losses themselves
    assert wanted[-1] < wanted[0] - 0.1
    assert ours <= 2 * max(theirs) + rounding, (ours, theirs, rounding)
    assert len(made) == 2  # forward and backward, once in all

    state, eager = mine.state_dict(), copy.deepcopy(first)
    for other in (exact, eager):
        other.load_state_dict(state)
    for tokens in batches():
        right = gradients(exact, exact, tokens)
        error, other_error = (
            np.linalg.norm(gradients(run, given, tokens) - right) for run, given in ((fast, mine), (eager, eager))
        )
        assert error <= 2 * other_error, (error, other_error)
