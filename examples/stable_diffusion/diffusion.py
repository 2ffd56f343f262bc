"""Denoising by DDIM (Song et al., "Denoising Diffusion Implicit Models", 2021), of what a scheduler's config says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.common import WrongFile

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Schedule:
    """The share of the picture, as a square, that is left after each step of training, ``[steps]``; what is left before
    the first; what the network predicts; and the most that a pixel of the picture may be, if there is a bound."""

    shares: Array
    last: float
    predicts: str
    bound: float | None
    spacing: str
    offset: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Schedule:
        """Raises WrongFile for what is not known here."""
        count = int(config.get("num_train_timesteps", 1000))
        low, high = float(config.get("beta_start", 1e-4)), float(config.get("beta_end", 0.02))
        kinds = {
            "linear": lambda: np.linspace(low, high, count),
            "scaled_linear": lambda: np.linspace(low**0.5, high**0.5, count) ** 2,
        }
        betas = _known(config, "beta_schedule", "linear", tuple(kinds))
        shares = np.cumprod(1 - kinds[betas]())
        return cls(
            shares=shares,
            last=1.0 if config.get("set_alpha_to_one", True) else float(shares[0]),
            predicts=_known(config, "prediction_type", "epsilon", ("epsilon", "v_prediction")),
            bound=float(config.get("clip_sample_range", 1.0)) if config.get("clip_sample", False) else None,
            spacing=_known(config, "timestep_spacing", "leading", ("leading", "trailing")),
            offset=int(config.get("steps_offset", 0)),
        )

    def times(self, steps: int) -> list[int]:
        """The steps of training that are gone back through, the last one first."""
        count = len(self.shares)
        if not 0 < steps <= count:
            raise WrongFile(f"--steps: expected 1 to {count}, found {steps}")
        if self.spacing == "leading":
            return [k * (count // steps) + self.offset for k in reversed(range(steps))]
        return [round(count - k * count / steps) - 1 for k in range(steps)]

    def before(self, x: Array, predicted: Array, time: int, steps: int) -> Array:
        """What was there a step before, of what is there at ``time`` and what the network says of it."""
        share = float(self.shares[time])
        earlier = time - len(self.shares) // steps
        left = float(self.shares[earlier]) if earlier >= 0 else self.last
        kept, noise = share**0.5, (1 - share) ** 0.5
        if self.predicts == "epsilon":
            picture, drawn = (x - noise * predicted) / kept, predicted
        else:
            picture, drawn = kept * x - noise * predicted, kept * predicted + noise * x
        if self.bound is not None:
            picture = np.clip(picture, -self.bound, self.bound)
        result: Array = left**0.5 * picture + (1 - left) ** 0.5 * drawn
        return result


def _known(config: Mapping[str, Any], name: str, default: str, known: tuple[str, ...]) -> str:
    found = config.get(name, default)
    if found not in known:
        raise WrongFile(f"the scheduler's {name!r}: expected {' or '.join(known)}, found {found!r}")
    return str(found)
