"""Adapters of low rank (LoRA, Hu et al., 2021): what is added to the products of a decoder, and may be changed later.

Of a matrix ``W [outputs, inputs]``, an adapter has ``A [rank, inputs]`` and ``B [outputs, rank]``: ``x`` is multiplied
by ``W + strength B A``, without computing that. A library with room for adapters keeps ``A`` and ``B`` as states, zeros
at first, and each sequence says which of them it uses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from luminal.core import ir, types
from luminal.core.data import Array
from luminal.core.decompose.compare import maximum
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.indexing import take
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, State
from luminal.core.movement import transpose, unsqueeze
from luminal.core.symbolic import Int
from luminal.frontends.llm import families, safetensors, tensors
from luminal.frontends.llm.cache import Room, empty
from luminal.frontends.llm.config import Config
from luminal.frontends.llm.files import Floats, json_file
from luminal.frontends.llm.tensors import Names, Packed

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_RANK = 1024
_ADAPTED = re.compile(r"^layers\.\d+\.(shared\.)?(query|key|value|out|gate|up|down)\.weight$")
_TENSOR = re.compile(r"^(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight$")
# Settings of PEFT that change what is computed, each with the values that are known here.
_KNOWN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "use_dora": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
    "lora_bias": (None, False),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (None, False),
}


def adapted(config: Config) -> dict[str, tuple[int, int]]:
    """The products that adapters are for, by role: the features of their results and of what they read."""
    return {
        role.removesuffix(".weight"): (shape[0], shape[1])
        for role, shape in tensors.shapes(config).items()
        if _ADAPTED.match(role)
    }


@dataclass(frozen=True)
class Chosen:
    """Which adapter each sequence of a call uses, ``int64[batch]``, -1 for none, and its strength, ``float32[batch]``,
    which is 0 for none."""

    number: Node
    strength: Node

    @classmethod
    def given(cls, batch: Int) -> Chosen:
        return cls(ir.input_("adapters", (batch,), types.i64), ir.input_("strengths", (batch,), types.f32))


@dataclass(frozen=True)
class Adapters:
    """The adapters that a library keeps."""

    config: Config
    room: Room

    @cached_property
    def states(self) -> dict[str, tuple[State, State]]:
        """``A [adapters, rank, inputs]`` and ``B [adapters, outputs, rank]`` by the role of a product."""
        count, rank = self.room.adapters, self.room.rank
        return {
            role: (
                empty(f"{role}.lora_a", (count, rank, inputs)),
                empty(f"{role}.lora_b", (count, outputs, rank)),
            )
            for role, (outputs, inputs) in (adapted(self.config) if count else {}).items()
        }

    def all(self) -> list[State]:
        return [state for pair in self.states.values() for state in pair]

    def added(self, role: str, x: Node, chosen: Chosen | None) -> Node | None:
        """What adapters add to a product of ``x [batch, length, inputs]``; None where there are none."""
        if chosen is None or role not in self.states:
            return None
        number = maximum(chosen.number, 0)
        into, out = (transpose(take(state.input, number), 1, 2) for state in self.states[role])
        return matmul(matmul(x, into) * unsqueeze(chosen.strength, [1, 2]), out)

    def given(self) -> dict[State, Node]:
        """The inputs of an entry that sets an adapter, without the first axis of the state that each is for."""
        return {state: ir.input_(f"{state.name}_new", state.input.shape[1:], types.f32) for state in self.all()}


# ---- folders of PEFT -------------------------------------------------------------------------------------------------


def read(folder: Path, config: Mapping[str, Any], context: int, rank: int) -> dict[str, tuple[Array, Array]]:
    """The matrices ``A [rank, inputs]`` and ``B [outputs, rank]`` of an adapter in a folder that PEFT has written, by
    role; its own strength is in ``B``, and ranks that it does not fill are zeros. ``config`` is the model's
    ``config.json``.

    Raises ModelError for a folder that is damaged or for another model, UnsupportedError for what is not computed so.
    """
    settings = json_file(folder / CONFIG)
    for setting, known in _KNOWN.items():
        if settings.get(setting) not in known:
            raise UnsupportedError(
                f"{folder / CONFIG}: {setting!r}: expected {known[0]!r}, found {settings[setting]!r}; merge such an "
                "adapter into the model's weights"
            )
    decoder, names = families.described(config, context)
    wanted, places = adapted(decoder), _places(decoder, names)
    file = safetensors.Tensors(folder / WEIGHTS)
    found: dict[str, tuple[Array, Array]] = {}
    for module, parts in _modules(file, folder / WEIGHTS).items():
        stem = next((end for end in _endings(module) if end in places), None)
        if stem is None:
            raise ModelError(f"{folder / WEIGHTS}: {module!r} is no product of this model that adapters can change")
        into, out = parts["A"], parts["B"]
        count = len(into)
        if count > rank:
            raise ModelError(
                f"{folder / WEIGHTS}: {module!r} has rank {count}: expected at most {rank}, for which the library was "
                "compiled"
            )
        strength = _strength(settings, module, count, folder)
        for role, (first, rows, total) in places[stem].items():
            outputs, inputs = wanted[role]
            if into.shape != (count, inputs) or out.shape != (total, count):
                raise ModelError(
                    f"{folder / WEIGHTS}: {module!r}: expected matrices [{count}, {inputs}] and [{total}, {count}], "
                    f"found {list(into.shape)} and {list(out.shape)}: the adapter is for another model"
                )
            found[role] = (
                np.pad(into, ((0, rank - count), (0, 0))),
                np.pad(out[first : first + rows] * np.float32(strength), ((0, 0), (0, rank - count))),
            )
            assert outputs == rows
    if not found:
        raise ModelError(f"{folder / WEIGHTS}: expected matrices of an adapter, found none")
    return found


def rank(folder: Path) -> int:
    """The largest rank of an adapter's matrices. Raises ModelError as ``read`` does."""
    modules = _modules(safetensors.Tensors(folder / WEIGHTS), folder / WEIGHTS)
    return max((len(parts["A"]) for parts in modules.values()), default=1)


def _places(decoder: Config, names: Names) -> dict[str, dict[str, tuple[int, int, int]]]:
    """By the name of a module, the roles that it computes, each with its first row, its rows, and those of all."""
    sizes = adapted(decoder)
    found: dict[str, dict[str, tuple[int, int, int]]] = {}
    for role in sizes:
        _, layer, inner = role.split(".", 2)
        for place in names.get(f"layers.#.{inner}", ()):
            packed = place if isinstance(place, Packed) else Packed(place)
            roles = [f"layers.{layer}.{other}" for other in packed.roles] or [role]
            rows = [sizes[other][0] for other in roles]
            at = roles.index(role)
            stem = packed.stem.replace("#", layer)
            found.setdefault(stem, {})[role] = (sum(rows[:at]), rows[at], sum(rows))
    return found


def _modules(file: safetensors.Tensors, where: Path) -> dict[str, dict[str, Array]]:
    """The two matrices of each module that an adapter changes, by the module's name."""
    found: dict[str, dict[str, Array]] = {}
    for name in sorted(file.entries):
        match = _TENSOR.match(name)
        weight = file.weight(name)
        if match is None or len(weight.shape) != 2:
            raise UnsupportedError(f"{where}: expected matrices lora_A and lora_B of products, found {name!r}")
        assert isinstance(weight, Floats)
        found.setdefault(match["module"], {})[match["part"]] = weight.array().astype(np.float32)
    for module, parts in found.items():
        if len(parts) < 2:
            raise ModelError(f"{where}: {module!r}: expected lora_A and lora_B, found only lora_{next(iter(parts))}")
    return found


def _endings(name: str) -> Iterator[str]:
    """A module's name without the modules around it, the longest first."""
    parts = name.split(".")
    return (".".join(parts[at:]) for at in range(len(parts)))


def _strength(settings: Mapping[str, Any], module: str, rank: int, folder: Path) -> float:
    """The factor of ``B A``."""
    alphas = settings.get("alpha_pattern") or {}
    alpha = next(
        (value for key, value in alphas.items() if re.match(rf"(.*\.)?({key})$", module)), settings.get("lora_alpha")
    )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ModelError(f"{folder / CONFIG}: 'lora_alpha': expected a number, found {alpha!r}")
    return float(alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank))
