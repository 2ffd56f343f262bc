"""Steps of training of small models of several kinds, beside PyTorch's and float64's."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import luminal
from tests.training_support import Run, check, check_in_place


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def numbers(*shape: int, below: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def pictures() -> Run:
    """Convolutions, and batch normalisation by the statistics of the batch."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(72, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return Run(
        module, nn.CrossEntropyLoss(), optimizer, lambda k: (floats(6, 2, 6, 6, seed=k), numbers(6, below=5, seed=k))
    )


def test_convolutions_with_batch_normalisation() -> None:
    run = pictures()
    training = run.compiled()
    check(run, training, (0, 1, 10))
    check_in_place(training)
    training.read_from(run.module, run.optimizer)
    x, _ = run.batch(0)
    assert run.module.training
    torch.testing.assert_close(training.eval(x), run.module.eval()(x).detach(), rtol=1e-4, atol=1e-5)


class Decoder(nn.Module):
    """One layer of GPT, whose last product reads the table of its words."""

    def __init__(self, words: int = 32, length: int = 8, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.first, self.second, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(length))
        parts = self.joint(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        x = x + self.down(functional.gelu(self.up(self.second(x))))
        return self.head(self.last(x))


def of_words(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def test_a_decoder_with_tied_words_and_clipping() -> None:
    torch.manual_seed(0)
    module = Decoder()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, amsgrad=True)

    def batch(k: int) -> tuple[torch.Tensor, ...]:
        count = 3 + k % 2  # one library serves each
        return numbers(count, 8, below=32, seed=k), numbers(count, 8, below=32, seed=k + 50)

    run = Run(module, of_words, optimizer, batch, clip=0.5)
    training = run.compiled(dims={"batch": (1, 8), "tokens": {0: "batch"}, "target": {0: "batch"}})
    check(run, training, (0, 1, 10))
    assert "head.weight" not in training.state and training.state["words.weight"].shape == (32, 16)
    assert training.gradient_norm > 0.5


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x)[0][:, -1])


def test_a_recurrent_layer() -> None:
    torch.manual_seed(0)
    module = Recurrent()
    optimizer = torch.optim.Adafactor(module.parameters(), lr=1e-2)
    run = Run(
        module, nn.CrossEntropyLoss(), optimizer, lambda k: (floats(5, 6, 4, seed=k), numbers(5, below=3, seed=k))
    )
    check(run, run.compiled(), (0, 1, 10))


class Dropped(nn.Module):
    """Its gradient by ``weight`` tells which elements the forward pass kept, and its output which the backward did."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.weight * x, 0.25, self.training)


@cache
def dropped() -> luminal.Training:
    module = Dropped()
    return luminal.compile_training(
        module, lambda y: y.sum(), torch.optim.SGD(module.parameters(), lr=1.0), (torch.ones(4000),), outputs=True,
        seed=3,
    )  # fmt: skip


def test_dropout_has_one_mask_forward_and_backward() -> None:
    training = dropped()
    training.reset()
    masks = []
    for _ in range(2):
        before = training.state["weight"]
        _, output = training(torch.ones(4000))
        kept = output.numpy() != 0
        gradient = before - training.state["weight"]
        np.testing.assert_allclose(gradient, np.where(kept, 1 / 0.75, 0), atol=1e-6)
        assert abs(kept.mean() - 0.75) < 0.035  # five standard deviations
        masks.append(kept)
    assert 0.2 < (masks[0] != masks[1]).mean() < 0.55  # each step draws anew
    assert torch.equal(training.eval(torch.ones(4000)), torch.from_numpy(training.state["weight"]))
    training.reset()
    assert np.array_equal(training(torch.ones(4000))[1].numpy() != 0, masks[0])
    training.seed(4)
    assert not np.array_equal(training(torch.ones(4000))[1].numpy() != 0, masks[0])
