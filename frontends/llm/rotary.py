"""The angles of rotary positions, as a ``config.json`` asks for them, in float64.

Each kind of scaling is a function of the frequencies, the parameters and the size of the library (Su et al., 2021; Peng
et al., "YaRN", 2023; Ding et al., "LongRoPE", 2024; "llama3" is that of Llama 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from luminal.core.errors import ModelError, UnsupportedError, nearest
from luminal.frontends.llm.config import Rotary

Frequencies: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Request:
    """What is asked of rotary positions: their parameters, the number of features that are turned, the positions that
    the model was made for, and those that the library has."""

    given: Mapping[str, Any]
    size: int
    made_for: int
    context: int

    def __getitem__(self, name: str) -> Any:
        if self.given.get(name) is None:
            raise ModelError(f"rotary positions of kind {kind(self.given)!r}: the config lacks {name!r}")
        return self.given[name]

    @property
    def base(self) -> float:
        return float(self["rope_theta"])

    @property
    def original(self) -> int:
        """The positions that the model was made for before it was scaled."""
        return int(self.given.get("original_max_position_embeddings") or self.made_for)

    @property
    def factor(self) -> float:
        found = self.given.get("factor")
        return float(self.made_for / self.original if found is None else found)


def kind(given: Mapping[str, Any]) -> str:
    """The kind of scaling that parameters name."""
    return str(given.get("rope_type") or given.get("type") or "default")


def rotary(given: Mapping[str, Any], size: int, made_for: int, context: int, interleaved: bool = False) -> Rotary:
    """The rotary positions of ``size`` features that parameters ask for. Raises UnsupportedError for a kind that is not
    known, or that changes the angles of tokens which are in the cache already; ModelError where a parameter lacks."""
    if kind(given) not in _KINDS:
        near = nearest(kind(given), _KINDS)
        raise UnsupportedError(
            f"rotary positions: expected one of the kinds {', '.join(_KINDS)}, found {kind(given)!r}{near}"
        )
    request = Request(given, size, made_for, context)
    plain = request.base ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    frequencies, factor = _KINDS[kind(given)](plain, request)
    return Rotary(tuple(frequencies.tolist()), factor, interleaved)


def _default(plain: Frequencies, request: Request) -> tuple[Frequencies, float]:
    return plain, 1.0


def _linear(plain: Frequencies, request: Request) -> tuple[Frequencies, float]:
    return plain / request["factor"], 1.0


def _dynamic(plain: Frequencies, request: Request) -> tuple[Frequencies, float]:
    """Up to the positions that the model was made for, nothing is scaled; beyond, every token would change the angles
    of all before it, which the cache holds as they were."""
    if request.context > request.made_for:
        raise UnsupportedError(
            f"rotary positions of kind 'dynamic': expected a context of at most {request.made_for}, for which the "
            f"model was made, found {request.context}: beyond it each token would change the keys of all others"
        )
    return plain, 1.0


def _llama3(plain: Frequencies, request: Request) -> tuple[Frequencies, float]:
    """Long waves are slowed by a factor, short ones are kept, and between them is a smooth passage."""
    low, high, factor = (float(request[name]) for name in ("low_freq_factor", "high_freq_factor", "factor"))
    turns = int(request["original_max_position_embeddings"]) * plain / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - smooth) * plain / factor + smooth * plain, 1.0


def _yarn(plain: Frequencies, request: Request) -> tuple[Frequencies, float]:
    """Waves that turn fewer than ``beta_slow`` times are slowed by the factor, those that turn more than ``beta_fast``
    times are kept, and between lies a ramp over the pairs."""
    pairs, given = len(plain), request.given

    def pair(turns: float) -> float:
        """The pair that turns so often over the original positions."""
        return request.size * math.log(request.original / (turns * 2 * math.pi)) / (2 * math.log(request.base))

    low, high = pair(float(given.get("beta_fast") or 32)), pair(float(given.get("beta_slow") or 1))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, request.size - 1)
    slowed = np.clip((np.arange(pairs) - low) / ((high - low) or 0.001), 0, 1)
    scale = given.get("attention_factor")
    if scale is None:
        one, all_ = given.get("mscale"), given.get("mscale_all_dim")
        scale = (
            _growth(request.factor, one) / _growth(request.factor, all_) if one and all_ else _growth(request.factor)
        )
    return plain / request.factor * slowed + plain * (1 - slowed), float(scale)


def _growth(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(plain: Frequencies, request: Request) -> tuple[Frequencies, float]:
    """Each pair has a factor of its own: one list for short contexts, one for long ones. The library's context decides
    between them once, so that all tokens of a sequence are turned alike."""
    name = "long_factor" if request.context > request.original else "short_factor"
    factors = np.array(request[name], np.float64)
    if factors.shape != plain.shape:
        raise ModelError(f"rotary positions: expected {len(plain)} numbers in {name!r}, found {factors.shape}")
    scale = request.given.get("attention_factor")
    if scale is None:
        grown = request.factor > 1
        scale = math.sqrt(1 + math.log(request.factor) / math.log(request.original)) if grown else 1.0
    return plain / factors, float(scale)


_KINDS: dict[str, Callable[[Frequencies, Request], tuple[Frequencies, float]]] = {
    "default": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn,
    "longrope": _longrope,
}  # fmt: skip
