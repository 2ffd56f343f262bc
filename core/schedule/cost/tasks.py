"""How many tasks of a kernel, and shares of a phase, are enough to divide among the threads of a target."""

from __future__ import annotations

from luminal.core.sizes import typical
from luminal.core.symbolic import Int
from luminal.core.target import Target

THREADS = 2  # the least number of threads that tasks are made for
SMALL = 16384  # elements: one thread writes fewer sooner than it could wake another

# Tasks of a kernel. They differ in how long they take, so there are several for each thread.
_TASKS, _TASKS_EACH = 64, 4  # at least, and for each thread of the target
_FEW = 4  # with a fourth of the enough tasks, some threads would wait for others

# Shares of a phase, a run of kernels that a thread goes through without waiting.
_SHARES, _SHARES_EACH = 32, 2  # at least, and for each thread of the target
_SUFFICIENT_EACH = 4  # shares for each thread suffice where the values between the kernels would go through memory
PART = 8  # of the last cache: a value larger than this part has left it when another kernel reads it


def enough_tasks(target: Target) -> int:
    """Tasks that the threads of ``target`` divide evenly."""
    return max(_TASKS, _TASKS_EACH * target.threads)


def few_tasks(target: Target) -> int:
    """Tasks so few that some of the threads of ``target`` would wait for others."""
    return enough_tasks(target) // _FEW


def enough_shares(target: Target) -> int:
    """Shares that the threads of ``target`` divide evenly."""
    return max(_SHARES, _SHARES_EACH * target.threads)


def suffice(shares: Int, target: Target) -> bool:
    """Whether so many shares can be divided among the threads of ``target``, if not as evenly as more of them."""
    return typical(shares) >= min(enough_shares(target), _SUFFICIENT_EACH * target.threads)
