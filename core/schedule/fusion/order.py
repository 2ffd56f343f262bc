"""The order in which clusters run, where some are exchanges with other ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def overlapped(numbers: Sequence[int], ancestors: Sequence[int], exchanges: Collection[int]) -> list[int]:
    """``numbers`` of clusters in another order in which they can run: ``exchanges`` begin as early as they can, and
    what depends on them comes after what does not, which runs meanwhile. Of each cluster, ``ancestors`` has a bit for
    every other that must have run before."""
    order: list[int] = []
    done = pending = 0  # a bit for each cluster that has run, and for each exchange that nobody has waited for
    left = list(numbers)
    among = sum(1 << n for n in left)
    while left:
        ready = [n for n in left if not ancestors[n] & among & ~done & ~(1 << n)]
        begins = next((n for n in ready if n in exchanges), None)
        beside = next((n for n in ready if not ancestors[n] & pending), None)
        number = ready[0] if beside is None else beside
        if begins is not None:
            number = begins
            pending |= 1 << number
        pending &= ~ancestors[number]
        done |= 1 << number
        order.append(number)
        left.remove(number)
    return order
