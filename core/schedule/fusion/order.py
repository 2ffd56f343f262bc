"""The order in which clusters run: copies just before they are read, exchanges with other ranks early."""

from __future__ import annotations

from collections.abc import Collection, Sequence

LAG = 8  # exchanges that begin before one of them is waited for, where there is a choice
MOST = 16  # exchanges under way, from which on those that began long ago are waited for


def overlapped(
    numbers: Sequence[int], ancestors: Sequence[int], exchanges: Collection[int], parts: Collection[int] = ()
) -> list[int]:
    """``numbers`` of clusters in another order in which they can run: ``exchanges`` begin as early as they can, and
    what depends on them comes after what does not, which runs meanwhile. Where all that can run depends on some, those
    that began long ago are waited for first: their data is there, and ranks that are ahead do not wait for others. So
    they are where many are under way, whose operands and results take memory. What ranks take as ``parts`` of what they
    have comes late. Of each cluster, ``ancestors`` has a bit for every other that must have run before."""
    order: list[int] = []
    done = pending = 0  # a bit for each cluster that has run, and for each exchange that nobody has waited for
    begun: list[int] = []  # exchanges in their order
    left = list(numbers)
    among = sum(1 << n for n in left)

    def latest(number: int) -> int:
        """The place in ``begun`` of the last exchange that the cluster would wait for; -1 where there is none."""
        waits = ancestors[number] & pending
        return next((i for i in range(len(begun) - 1, -1, -1) if waits >> begun[i] & 1), -1) if waits else -1

    def urgency(place: int) -> int:
        """The lower, the sooner a cluster runs that waits for the exchange at ``place`` in ``begun``."""
        if place < 0:
            return -1
        long_ago = len(begun) - LAG
        return -2 if place < long_ago and pending.bit_count() > MOST else max(place, long_ago)

    while left:
        ready = [n for n in left if not ancestors[n] & among & ~done & ~(1 << n)]
        begins = next((n for n in ready if n in exchanges), None)
        if begins is not None:
            number = begins
            pending |= 1 << number
            begun.append(number)
        else:
            number = min(ready, key=lambda n: urgency(latest(n)))
        pending &= ~ancestors[number]
        done |= 1 << number
        order.append(number)
        left.remove(number)
    return _near(order, ancestors, parts)


def _near(order: Sequence[int], ancestors: Sequence[int], parts: Collection[int]) -> list[int]:
    """``order`` with the ``parts`` that a rank takes of values that it has, which wait for nobody, and the copies of
    inputs and states of which they are taken, right before what needs them first; so they take memory no longer than
    they have to. ``ancestors`` as for ``overlapped``."""
    late: set[int] = set()
    moved: list[int] = []
    for number in reversed(order):
        reader = None
        if number in parts or (late and not ancestors[number]):
            reader = next((k for k, other in enumerate(moved) if ancestors[other] >> number & 1), None)
        if reader is not None and (number in parts or moved[reader] in late):
            late.add(number)
            moved.insert(reader, number)
        else:
            moved.insert(0, number)
    return moved


def late(numbers: Sequence[int], ancestors: Sequence[int], copies: Collection[int]) -> list[int]:
    """``numbers`` of clusters in order, with ``copies`` of what lies in memory anyway just before the first cluster
    that depends on each: a backward pass reads weights in other panels than the forward pass, and those need not be
    there before. Of each cluster, ``ancestors`` has a bit for every other that must have run before; copies that have
    such stay where they are."""
    waiting = [n for n in numbers if n in copies and not ancestors[n]]
    order: list[int] = []
    for number in [n for n in numbers if n not in waiting]:
        due = [n for n in waiting if ancestors[number] >> n & 1]
        waiting = [n for n in waiting if n not in due] if due else waiting
        order += [*due, number]
    return [*order, *waiting]
