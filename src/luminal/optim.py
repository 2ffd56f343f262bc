"""Optimisers for ``luminal.compile_training``: of their own, without PyTorch, or read from an object of torch.optim.

``SGD``, ``Adam``, ``AdamW``, ``RMSprop`` and ``Adafactor`` take the options of PyTorch's optimisers of these names. The
rules are in ``luminal.core.decompose.optimisers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from luminal.core.decompose.optimisers import OPTIMISERS
from luminal.core.errors import InputError, nearest

# How a step is computed, not what it computes; and what is no number of the step.
_IGNORED = frozenset(
    ("foreach", "fused", "capturable", "differentiable", "params", "initial_lr", "param_names", "swa_lr", "max_lr",
     "min_lr", "base_momentum", "max_momentum")
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Parameters, by their names (None: all that are in no other group), and the options for them."""

    parameters: Sequence[str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Optimizer:
    """An optimiser by its name, and its groups; each has all options."""

    name: str
    groups: Sequence[Group]

    @property
    def rates(self) -> list[float]:
        """The learning rate of each group."""
        return [float(group.options["lr"]) for group in self.groups]


def made(name: str, groups: Sequence[Group] = (), **options: Any) -> Optimizer:
    """The optimiser of that name. ``options`` hold for all groups that do not say otherwise; without groups, there is
    one of all parameters.

    Raises InputError where there is no such optimiser or no such option, or an option is out of its range.
    """
    if name not in OPTIMISERS:
        raise InputError(
            f"optimizer: expected one of {', '.join(OPTIMISERS)}, found {name!r}{nearest(name, OPTIMISERS)}; luminal "
            "has no rule for it yet"
        )
    every = [Group(group.parameters, {**options, **group.options}) for group in groups or (Group(),)]
    if sum(group.parameters is None for group in every) > 1:
        raise InputError("optimizer: only one group may be without names, for all parameters that no other has")
    return Optimizer(name, tuple(Group(group.parameters, _options(name, group.options)) for group in every))


SGD = partial(made, "SGD")
Adam = partial(made, "Adam")
AdamW = partial(made, "AdamW")
RMSprop = partial(made, "RMSprop")
Adafactor = partial(made, "Adafactor")


def _options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    defaults = OPTIMISERS[name].defaults
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        raise InputError(
            f"optimizer: {name} has no option {unknown[0]!r}{nearest(unknown[0], defaults)}; it has "
            f"{', '.join(defaults)}"
        )
    found = {key: _plain(value) for key, value in {**defaults, **given}.items()}
    for key in ("lr", "weight_decay", "momentum", "dampening", "alpha"):
        if key in found and not found[key] >= 0:
            raise InputError(f"optimizer: expected {key} of at least 0, found {found[key]!r}")
    if not all(0 <= beta < 1 for beta in found.get("betas", ())):
        raise InputError(f"optimizer: expected betas of at least 0 and below 1, found {found['betas']!r}")
    if found.get("nesterov") and (not found["momentum"] or found["dampening"]):
        raise InputError("optimizer: Nesterov's momentum needs a momentum above 0 and no dampening")
    return found


def _plain(value: Any) -> Any:
    """Options as plain numbers: PyTorch allows tensors of one number."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value.item() if hasattr(value, "item") else value


def is_torch(optimizer: Any) -> bool:
    """Whether ``optimizer`` is one of PyTorch's."""
    return any(kind.__module__ == "torch.optim.optimizer" for kind in type(optimizer).__mro__)


def of_torch(optimizer: Any, names: Mapping[int, str]) -> Optimizer:
    """An optimiser of torch.optim as data; ``names`` has the name of each parameter by its id.

    Raises InputError for an optimiser or an option that luminal has no rule for, and for a parameter without a name.
    """
    name = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("torch.optim"):
        raise InputError(
            f"optimizer: expected one of torch.optim's own, found {type(optimizer).__module__}.{name}, whose rule "
            f"luminal does not know; it has rules for {', '.join(OPTIMISERS)}"
        )
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        missing = [tuple(p.shape) for p in group["params"] if id(p) not in names]
        if missing:
            raise InputError(
                f"optimizer: group {number} has a parameter of shape {list(missing[0])} that is none of the module's"
            )
        options = {key: value for key, value in group.items() if key not in _IGNORED}
        groups.append(Group([names[id(p)] for p in group["params"]], options))
    return made(name, groups)


def grouped(optimizer: Optimizer, trainable: Sequence[str], known: Sequence[str]) -> dict[str, int]:
    """The number of the group of each parameter that is trained; those that are not ``trainable`` are in none.

    Raises InputError for a name that is none of the ``known`` parameters, or in two groups.
    """
    found: dict[str, int] = {}
    for number, group in enumerate(optimizer.groups):
        for name in group.parameters or ():
            if name not in known:
                raise InputError(f"optimizer: there is no parameter {name!r}{nearest(name, known)}")
            if name in found:
                raise InputError(f"optimizer: {name!r} is in groups {found[name]} and {number}")
            found[name] = number
    rest = next((k for k, group in enumerate(optimizer.groups) if group.parameters is None), None)
    if rest is not None:
        found.update({name: rest for name in trainable if name not in found})
    return {name: number for name, number in found.items() if name in trainable}
