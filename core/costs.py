"""The costs of a CPU by which schedules are chosen: one description for all CPUs, until one is measured to differ
(``replace`` makes another). GPUs have ``grid.BlockCosts`` too, matrix units their own (``matrix``).

Cycles are those of one core. The numbers only choose: a wrong one costs speed and is never an error, though those of
``Sizes`` and ``Filtering`` also decide in which order terms are summed. Each field says its unit, and each class where
its numbers come from: pages of ``docs/experiments/`` name the machines and the figures. "Estimated" numbers were not
measured by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arithmetic:
    """Of one core. ``per_cycle`` and ``latency`` are those of current x86-64 cores, with two multipliers of vectors;
    the others are estimated (``partial_sums``: reductions.md)."""

    per_cycle: int = 2  # multiply-adds of vectors, and loads of vectors, that begin in a cycle
    latency: int = 4  # cycles until the result of a multiply-add can be added to
    partial_sums: int = 4  # accumulators of a long reduction of one value: an addition takes about so many cycles
    compared: int = 4  # cycles of a comparison and its consequences, on average
    costly: int = 10  # cycles of a division, an exponential or a look-up; an addition takes one
    spare: int = 4  # registers of vectors for addresses and constants, beside sums and what is added to them

    @property
    def accumulators(self) -> int:
        """How many sums at once keep the multipliers busy."""
        return self.per_cycle * self.latency


@dataclass(frozen=True)
class Tiles:
    """Of a register tile of a contraction. Cycles and rows are fitted to products of many shapes with AVX-512
    (tiles-and-blocking.md); ``even``, and how many tiles or panels pay, are estimated (phases-and-threads.md,
    weights-and-memory.md).
    """

    load: float = 0.06  # cycles that a load takes from multiply-adds, on average: another thread on the core has some
    far_load: float = 0.1  # cycles more for each vector of a panel that the first-level cache does not hold
    row_stored: int = 6  # cycles to store a row of a tile, whose cache lines are new
    vector_stored: int = 4  # and for each vector of a row
    column_transposed: int = 8  # cycles in which a column of a tile is transposed and stored
    restarted: float = 200.0  # cycles to end a tile and begin it again for the next block of terms
    most_rows: int = 14  # more rows of A take more registers for addresses than there are
    low: int = 4  # rows; a lower tile reads B as fast as it multiplies, and is used only if there are no more rows
    few_panels: int = 8  # of B: with more, most tiles read rows of A that an earlier one has brought into the cache
    of_sample: int = 3  # tiles of rows, at least, that each sample of a batch fills where samples are kept apart
    sum_scaled: int = 3  # operations of scaling and adding the sum of a block in a vector of each row
    of_panel: int = 4  # tiles of rows that must read a computed panel for it to be computed once, before them
    even: int = 4  # equal blocks of terms are used if they have at least 1/even of the most terms of a block


@dataclass(frozen=True)
class Memory:
    """Cycles in which a core waits for a byte, beside arithmetic that hides some of it, and what caches hold. Measured
    on products (tiles-and-blocking.md), ``apart`` on look-ups (weights-and-memory.md), ``l2_strip`` on an attention of
    1024 positions; ``stream``, ``l2_read``, ``narrower``, ``again`` and ``larger`` are estimated."""

    from_l2: float = 0.01  # cycles a byte from the second-level cache
    from_l2_again: float = 0.036  # the same for a panel too large for the first-level cache, read by tile after tile
    from_l3: float = 0.06  # cycles a byte from the third-level cache
    from_core: float = 0.4  # cycles a byte from the cache of another core, where the step before left it
    stream: float = 0.1  # cycles a byte of a result, or of weights that too few rows share to hide their loading
    fetched: float = 0.3  # the share of ``from_l3`` that is left if the next panel is prefetched beside tiles of one
    fetched_again: float = 0.6  # the same if it is read again for another block of rows, a block of terms at a time
    l1_way: int = 4096  # bytes of a way of the first-level cache: lines a multiple of it apart share one set's ways
    l2_read: int = 2  # what tiles read again stays in the second-level cache if it takes at most 1/l2_read of it
    l2_sums: int = 8  # sums kept between blocks of terms take at most 1/l2_sums of the second-level cache
    l3_value: int = 8  # a value larger than 1/l3_value of the last cache has left it when another kernel reads it
    apart: int = (
        1024  # products, at least, for each element that is looked up in a panel, where its neighbours lie apart
    )
    narrower: int = 2  # weights stay narrow if they take at most 1/narrower of the bytes, for decoding takes time
    l2_strip: int = 4  # a strip of a value has at most so many times the second-level cache: threads share it
    again: int = 256  # terms of a sum, at most, that is computed again instead of kept
    larger: int = 4  # times its operands, at least, is a product that is computed again


@dataclass(frozen=True)
class Prefetching:
    """How far ahead data is prefetched, and how fast (prefetching.md): ``pace`` and ``l3`` are measured, the distances
    estimated. ``line`` is that of most processors."""

    line: int = 64  # bytes of a cache line
    steps: int = 16  # steps of the innermost loop by which a row of B is fetched ahead, if its elements have
    element: int = 4  # bytes; narrower elements take proportionally more steps, since memory has the same latency
    row_steps: int = 4  # steps by which A is fetched ahead where rows lie side by side, and each step reads other lines
    unit_steps: int = 2  # steps of a matrix unit by which a stream is fetched ahead
    tiles: int = 2  # tiles by which rows of A are fetched ahead
    pace: int = 5  # bytes a cycle that all threads together prefetch from memory, which delivers about twice as many
    l3: float = 0.75  # share of the last cache: more data than that, all reads included, is evicted before it is used


@dataclass(frozen=True)
class Threads:
    """What it costs threads to work together, and how much work they need; estimated, beside measurements of whole
    models (phases-and-threads.md). Tasks are parts of one kernel. Shares are parts of a phase, a sequence of kernels
    that a thread runs without waiting."""

    wake: int = 20_000  # cycles to wake a sleeping thread and wait for its work
    meeting: float = 3000.0  # cycles until all threads have met; tasks of whole rows may follow each other without
    written: int = 16384  # elements: one thread writes fewer in less time than waking another takes
    least: int = 2  # least number of threads that tasks are made for
    tasks: int = 64  # least number of tasks that is enough: they differ in how long they take
    tasks_each: int = 4  # tasks for each thread that are enough
    few_tasks: int = 4  # with 1/few_tasks of the tasks that are enough, some threads would wait for others
    even_tasks: int = 32  # tasks for each thread that divide evenly enough
    shares: int = 32  # least number of shares that is enough
    shares_each: int = 2  # shares for each thread that are enough
    shares_suffice: int = 4  # the same where the values between the kernels would go through memory


@dataclass(frozen=True)
class Stack:
    """Bytes of the stack that arrays of a task may take, which also stay in the second-level cache; ``rows`` in the
    smallest there is. ``sums`` and ``chain`` are measured (tiles-and-blocking.md, one-pass-chains.md), the others
    estimated (weights-and-memory.md)."""

    rows: int = 64 << 10  # that a task keeps between its passes over them
    sums: int = 256 << 10  # of tiles, that stay while blocks of terms pass
    panel: int = 384 << 10  # of B, that is computed before the tiles that read it
    chain: int = 256 << 10  # columns between two contractions in one pass


@dataclass(frozen=True)
class Vectors:
    """How well vectors along an axis suit memory, in points that are only compared: accesses to elements side by side
    count for the axis, others against it. Estimated."""

    beside: int = 2  # for an access to elements side by side
    far: int = 1  # against another access
    far_store: int = 3  # against a store far apart: a cache line comes in before a part of it is written
    near: int = 4  # elements from one to the next, at most, where those of a vector share a few cache lines
    short: int = 3  # against an axis that fills less than 1/filled of a vector
    filled: int = 2


@dataclass(frozen=True)
class Kernels:
    """Which values share a kernel, on CPUs and on GPUs; estimated (layouts-and-fusion.md)."""

    decoding: int = 4  # operations, at most, that compute a value from a narrower one again wherever it is used
    again: int = 8  # operations, at most, by which a value is computed again for a later kernel instead of stored
    sources: int = (
        16  # values that a kernel reads, at most: processors prefetch so many streams, Metal binds 31 buffers
    )
    rows: int = 16  # that are enough for every thread to have some


@dataclass(frozen=True)
class Sizes:
    """Of what a task does at once. ``chain_columns`` is measured (one-pass-chains.md), the others are estimated
    (reductions.md)."""

    chain_columns: int = 768  # of a chain that are computed at once, times the terms that a unit takes side by side
    chain_rows: int = 32  # that read those columns while they are in the second-level cache
    vectors: int = 4  # of neighbours that are computed side by side, before the next tile of them
    waiting: int = 4  # vectors computed side by side where look-ups wait for each other
    strip: int = 256  # elements of a row that a task scatters or transposes
    transposed_rows: int = 64  # rows that a task transposes
    chunk: int = 4096  # elements of a one-dimensional task
    terms: int = 64  # of neighbours that are written out, at most: code grows with them
    border: int = 3  # tiles of a border that each get code of their own, at most
    part: int = 1 << 14  # elements of a part of a long reduction, at most: a second one finds them in the cache
    parts: int = 8  # that are worth it: waking a thread takes as long as reducing one or two
    strip_rows: int = 32  # of values that are computed again, at least, where each strip adds to a sum
    part_columns: int = 128  # of a task of a reduction where rows are not reduced along memory, about
    reductions: int = 16  # tasks of a long reduction that are enough without parts


@dataclass(frozen=True)
class Filtering:
    """Of convolutions by minimal filtering, in multiply-adds of a contraction; measured on layers of 64 to 512 channels
    (winograd.md)."""

    moved: float = 36.0  # writing an element of a transformed tile and reading it again
    operation: float = 2.0  # an operation on such an element
    weight: float = 24.0  # reading a weight
    followed: int = 32  # most operations that are repeated for each output of a tile
    worth: float = 0.9  # most of the direct sum's cycles that filtering may take to be worth it


@dataclass(frozen=True)
class Costs:
    """The description, by theme."""

    arithmetic: Arithmetic = Arithmetic()
    tiles: Tiles = Tiles()
    memory: Memory = Memory()
    prefetch: Prefetching = Prefetching()
    threads: Threads = Threads()
    stack: Stack = Stack()
    vectors: Vectors = Vectors()
    kernels: Kernels = Kernels()
    sizes: Sizes = Sizes()
    filtering: Filtering = Filtering()


COSTS = Costs()  # of all CPUs
