"""How the next token of a sequence is chosen: what a user asks for, and what the library is given for it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from luminal import api
from luminal.core.decompose import random
from luminal.core.errors import InputError
from luminal.frontends.llm.sampling import ROWS, TYPES, graph
from luminal.module import Module

Array = np.ndarray[Any, Any]

# The least and the largest value of each number, and whether those two are allowed.
_BOUNDS: dict[str, tuple[float, float, bool, bool]] = {
    "temperature": (0, math.inf, True, False),
    "top_p": (0, 1, True, True),
    "min_p": (0, 1, True, True),
    "repetition_penalty": (0, math.inf, False, False),
    "presence_penalty": (-math.inf, math.inf, False, False),
    "frequency_penalty": (-math.inf, math.inf, False, False),
}


@dataclass(frozen=True)
class Sampling:
    """What is asked of the next tokens; ``luminal.frontends.llm.sampling`` says what each does, and in which order.

    By default the likeliest token is taken; with a ``temperature`` above 0 one is drawn. ``seed`` None draws others
    each time. ``bias`` has a number to add to the logits of some tokens. Raises InputError for what makes no sense.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (low, high, with_low, with_high) in _BOUNDS.items():
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
            above = number and (low <= value if with_low else low < value)
            if not (above and (value <= high if with_high else value < high)):
                wanted = f"{'at least' if with_low else 'above'} {low:g}" if math.isfinite(low) else "a finite one"
                limit = f" and at most {high:g}" if math.isfinite(high) else ""
                raise InputError(f"{name}: expected a number, {wanted}{limit}, found {value!r}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or not 0 <= self.top_k < 2**31:
            raise InputError(f"top_k: expected a number of tokens, 0 for all of them, found {self.top_k!r}")
        if self.seed is not None:
            random.parse(self.seed)
        for token, value in self.bias.items():
            if not isinstance(token, int) or token < 0 or math.isnan(value):
                raise InputError(f"bias: expected a number for each token, found {token!r}: {value!r}")

    @property
    def penalises(self) -> bool:
        """Whether what came before matters."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


class Sampler:
    """The choices of one sequence: its settings, how many tokens it has drawn, and what came before."""

    def __init__(self, sampling: Sampling, vocabulary: int, prompt: Iterable[int] = ()) -> None:
        self.sampling = sampling
        self.seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) if sampling.seed is None else (
            random.parse(sampling.seed)
        )  # fmt: skip
        self.step = 0
        self.allowed: Array | None = None  # bool [vocabulary], of a grammar: what may come next
        self.counts: Array | None = None
        self.prompted: Array | None = None
        self.bias: Array | None = None
        if sampling.penalises:
            self.counts, self.prompted = np.zeros(vocabulary, np.int32), np.zeros(vocabulary, np.bool_)
            self.prompted[np.fromiter(prompt, np.int64)] = True
        if sampling.bias:
            beyond = [token for token in sampling.bias if token >= vocabulary]
            if beyond:
                raise InputError(f"bias: token {beyond[0]} is none of the {vocabulary} tokens of the model")
            self.bias = np.zeros(vocabulary, np.float32)
            self.bias[list(sampling.bias)] = list(sampling.bias.values())

    @property
    def has_rows(self) -> bool:
        """Whether settings of single tokens change the logits."""
        return not (self.counts is self.bias is self.allowed is None)

    @property
    def is_plain(self) -> bool:
        """Whether the next token is the one of the largest logit, whatever came before."""
        return self.sampling.temperature == 0 and not self.has_rows

    def accept(self, token: int) -> None:
        """The sequence goes on with ``token``."""
        self.step += 1
        if self.counts is not None:
            self.counts[token] += 1

    def after(self, token: int) -> Sampler:
        """The choices of the sequence if it went on with ``token``; what a grammar allows then is not known."""
        found = copy.copy(self)
        found.allowed = None
        found.counts = None if self.counts is None else self.counts.copy()
        found.accept(token)
        return found


class Slots:
    """The inputs of a library's ``sample`` entry, for all of its slots; only what changes is written anew."""

    def __init__(self, slots: int, vocabulary: int) -> None:
        self.arrays = {
            name: np.zeros((slots, vocabulary) if name in ROWS else slots, dtype.numpy) for name, dtype in TYPES.items()
        }
        self._dirty: dict[str, set[int]] = {name: set() for name in ROWS}
        for slot in range(slots):
            self._set(slot, Sampling(), 0, 0)

    def _set(self, slot: int, sampling: Sampling, seed: int, step: int) -> None:
        values = {
            "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
            "min_p": sampling.min_p, "repetition": sampling.repetition_penalty,
            "frequency": sampling.frequency_penalty, "presence": sampling.presence_penalty,
            "seed": (seed + 2**63) % 2**64 - 2**63, "step": step,
        }  # fmt: skip
        for name, value in values.items():
            self.arrays[name][slot] = value

    def _fill(self, name: str, slot: int, row: Array | None) -> None:
        """A row that is None is of zeros; such a row is not written twice."""
        if row is not None:
            self.arrays[name][slot] = row
            self._dirty[name].add(slot)
        elif slot in self._dirty[name]:
            self.arrays[name][slot] = 0
            self._dirty[name].remove(slot)

    def filled(self, samplers: Mapping[int, Sampler]) -> dict[str, Array]:
        """The inputs for these slots; the others, whose results nobody reads, take their largest logit."""
        for slot in range(len(self.arrays["seed"])):
            sampler = samplers.get(slot)
            if sampler is None:
                self._set(slot, Sampling(), 0, 0)
                for name in ROWS:
                    self._fill(name, slot, None)
                continue
            self._set(slot, sampler.sampling, sampler.seed, sampler.step)
            self._fill("counts", slot, sampler.counts)
            self._fill("prompted", slot, sampler.prompted)
            self._fill("bias", slot, sampler.bias)
            if sampler.allowed is not None:
                self.arrays["bias"][slot][~sampler.allowed] = -np.inf
                self._dirty["bias"].add(slot)
        return self.arrays


class Drawing:
    """A library that draws tokens from arrays of logits, for what has no entry of its own for that."""

    def __init__(self, slots: int, vocabulary: int, target: str = "host", threads: int = 1) -> None:
        module = api.compile(graph(slots, vocabulary), target=target, name="sample", threads=threads)
        assert isinstance(module, Module)
        self._module, self._slots = module, Slots(slots, vocabulary)

    def __call__(self, logits: Array, samplers: Mapping[int, Sampler]) -> dict[int, int]:
        """The next token of each of these slots; -1 where none may come."""
        tokens = self._module.run({"logits": logits, **self._slots.filled(samplers)})["token"]
        return {slot: int(tokens[slot]) for slot in samplers}
