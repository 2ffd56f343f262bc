"""What generation needs of a language model: sequences in slots, each at its own position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from luminal.core.data import Array


class Engine(Protocol):
    """A language model with ``slots`` sequences of up to ``context`` tokens each, of a ``vocabulary`` of so many."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def slots(self) -> int: ...

    @property
    def speculate(self) -> int:
        """The most drafts that one call of ``verify`` takes; 0: it takes none."""
        ...

    def length(self, slot: int) -> int:
        """The number of tokens in ``slot``."""
        ...

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """Append ``tokens`` to a slot; the logits after the last of them are kept."""
        ...

    def decode(self, tokens: Mapping[int, int]) -> None:
        """Append a token to each of these slots, in one step; the logits after it are kept."""
        ...

    def logits(self, slot: int) -> Array:
        """The logits that the last token of a slot left: ``float32[vocabulary]``."""
        ...

    def sample(self, settings: Mapping[int, Any]) -> dict[int, int]:
        """The next token of each of these slots, drawn from its logits as its settings say; nothing is appended."""
        ...

    def verify(self, slot: int, tokens: Sequence[int], samplers: Sequence[Any]) -> tuple[list[int], Array]:
        """Append a token and up to ``speculate`` drafts to a slot, in one step. Returns what ``sample`` would choose
        after each of them, by a setting each, and the logits that it would choose from."""
        ...

    def rewind(self, slot: int, length: int) -> None:
        """Forget all but the first ``length`` tokens of a slot. Logits are those of the last token again only after
        the next ``prefill`` or ``decode``. Raises InputError where what is needed is lost: see ``keeps``."""
        ...

    def keeps(self, slot: int, length: int) -> bool:
        """Whether ``rewind`` to that length is possible."""
        ...

    def use_adapter(self, slot: int, number: int | None, strength: float = 1.0) -> None:
        """Compute the sequence of an empty slot with an adapter, or without. Raises InputError where there is none."""
        ...

    def fork(self, source: int, target: int) -> None:
        """Let ``target`` hold what ``source`` holds, logits included."""
        ...
