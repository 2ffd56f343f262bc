"""The ways in which blocks of threads may compute a nest: what candidates of a schedule say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProductBlock:
    """How a block computes its tile of a product: ``terms`` are staged at once, ``ahead`` steps ahead; fragments
    are divided among ``across`` warps side by side, and two of these below each other (0: there are no fragments);
    with ``grouped``, warps multiply in groups, each of which has whole rows. Where stages that other warps fill are
    ``handed`` to them, blocks stay for several tiles. Results are stored ``wide``, or each by itself."""

    terms: int
    ahead: int
    across: int
    grouped: bool = False
    handed: bool = False
    wide: bool = False

    def __str__(self) -> str:
        warps = f", warps of 1/{self.across} of its columns" if self.across else ""
        warps = ", warps in groups" if self.grouped else warps
        warps += ", handed over by warps that copy" if self.handed else ""
        warps += ", results stored together" if self.wide else ""
        return f"{self.terms} terms at once in {1 + self.ahead} stages{warps}"


@dataclass(frozen=True)
class ChainTile:
    """The tile of a task of a chain: ``rows``, ``columns`` of the first contraction at once, in two stages with
    ``ahead``; ``held`` in registers between both contractions, which groups of warps may multiply (``grouped``)."""

    rows: int
    columns: int
    ahead: bool
    held: bool = False
    grouped: bool = False

    def __str__(self) -> str:
        if self.held:
            groups = ", warps in groups" if self.grouped else ""
            return f"{self.rows} rows, {self.columns} columns at once in registers{groups}"
        return f"{self.rows} rows, {self.columns} columns at once in {1 + self.ahead} stages"


@dataclass(frozen=True)
class LineSum:
    """How a block sums a column whose terms lie side by side: each of ``threads`` takes ``width`` neighbours at once,
    times ``digits`` where so many share a byte."""

    width: int
    digits: int
    threads: int

    def __str__(self) -> str:
        digits = f" of {self.digits} digits" if self.digits > 1 else ""
        return f"{self.width} neighbours{digits} at once, {self.threads} threads"


@dataclass(frozen=True)
class BlockPass:
    """A pass over memory: at most ``wide`` bytes that a thread reads or writes at once, at most ``threads`` in a
    block; rows that are kept between passes over them are ``held`` in registers, or else in shared memory."""

    wide: int
    threads: int
    held: bool

    def __str__(self) -> str:
        return f"{self.wide} bytes at once, {self.threads} threads{', rows in registers' if self.held else ''}"
