"""How many tasks of a kernel, or shares of a phase, keep all threads of a target busy, and whether values between
kernels leave its caches."""

from __future__ import annotations

from luminal.core.sizes import typical
from luminal.core.symbolic import Int
from luminal.core.target import Target


def enough_tasks(target: Target) -> int:
    """Tasks that the threads of ``target`` divide evenly."""
    threads = target.costs.threads
    return max(threads.tasks, threads.tasks_each * target.threads)


def few_tasks(target: Target) -> int:
    """A number of tasks below which some threads of ``target`` would wait for others."""
    return enough_tasks(target) // target.costs.threads.few_tasks


def enough_shares(target: Target) -> int:
    """Shares that the threads of ``target`` divide evenly."""
    threads = target.costs.threads
    return max(threads.shares, threads.shares_each * target.threads)


def suffice(shares: Int, target: Target) -> bool:
    """Whether ``shares`` shares keep all threads of ``target`` busy, if less evenly than ``enough_shares``."""
    return typical(shares) >= min(enough_shares(target), target.costs.threads.shares_suffice * target.threads)


def leaves_cache(size: int, target: Target, values: int = 1) -> bool:
    """Whether ``values`` values of ``size`` bytes in all leave the last cache of ``target`` before another kernel
    reads."""
    return size > values * target.l3 // target.costs.memory.l3_value
