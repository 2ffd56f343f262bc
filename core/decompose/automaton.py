"""Regular expressions as automata over the bytes of UTF-8, made while compiling: matching takes a step a byte.

The syntax is that of RE2, as far as Python's parser shares it; Thompson's construction, then sets of states, then the
fewest that tell the same texts apart. Sources: Thompson, "Regular Expression Search Algorithm", 1968; Rabin and Scott,
"Finite Automata and Their Decision Problems", 1959; Moore, "Gedanken-experiments on Sequential Machines", 1956.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, TypeAlias

import numpy as np

from luminal.core.errors import ModelError, UnsupportedError

Array = np.ndarray[Any, Any]
Ranges: TypeAlias = list[tuple[int, int]]  # of characters, ends included, ascending and apart

MOST = 10_000  # states
REPEATS = 1000  # of a part, as in RE2
_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # which UTF-8 does not encode

# Of ASCII alone, as RE2 has them.
_CLASSES: dict[Any, Ranges] = {
    codes.CATEGORY_DIGIT: [(48, 57)],
    codes.CATEGORY_SPACE: [(9, 10), (12, 13), (32, 32)],
    codes.CATEGORY_WORD: [(48, 57), (65, 90), (95, 95), (97, 122)],
}
_OPPOSITES = {
    codes.CATEGORY_NOT_DIGIT: codes.CATEGORY_DIGIT,
    codes.CATEGORY_NOT_SPACE: codes.CATEGORY_SPACE,
    codes.CATEGORY_NOT_WORD: codes.CATEGORY_WORD,
}
# Classes that Python's parser does not know, as it would write them inside brackets.
_NAMED = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t-\r ",
    "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
# An escape, a class by its name, the beginning of brackets with what may stand there as itself, or a character.
_TOKEN = r"\\.|\[:(?P<name>\^?\w+):\]|\[\^?\]?|\{,\d*\}|."
# Places of a text: any, its ends, between a letter of a word and another character, and where that is not so.
_ANYWHERE, _BEGIN, _END, _BOUNDARY, _INSIDE = "anywhere", "begin", "end", "boundary", "inside"
_ANCHORS = {
    codes.AT_BEGINNING: _BEGIN, codes.AT_BEGINNING_STRING: _BEGIN, codes.AT_END: _END, codes.AT_END_STRING: _END,
    codes.AT_BOUNDARY: _BOUNDARY, codes.AT_NON_BOUNDARY: _INSIDE,
}  # fmt: skip


def automaton(pattern: str, *, inside: bool = False) -> tuple[Array, Array]:
    """The automaton that accepts what ``pattern`` matches as a whole: the class of each of the 256 bytes, and for each
    state, from the first, whether it accepts and which states follow it, by class. Both int32.

    Raises ModelError where the pattern is none, UnsupportedError where an automaton cannot say it, or not in reasonable
    size; also if it is for parts ``inside`` of texts, and asks what is around them.
    """
    try:
        tree = parser.parse(_as_python(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelError(
            f"the pattern {pattern!r} is no regular expression, or not one that Python reads as RE2 does: {error}"
        ) from error
    machine = _Machine(pattern)
    last = machine.sequence(tree, 0, tree.state.flags)
    if inside and any(where != _ANYWHERE for state in machine.states for where, _ in state.nothing):
        raise UnsupportedError(
            f"the pattern {pattern!r} asks what is around a part of a text (^, $, \\b or \\B): expected one that a "
            "part matches by itself"
        )
    classes, states = _determined(machine, last)
    return classes, _fewest(states)


def _as_python(pattern: str) -> str:
    """``pattern`` as Python's parser reads it: named classes spelled out inside brackets, and braces that repeat
    nothing in RE2 as characters. Raises re.error for a class that has no such name."""
    result: list[str] = []
    bracket = False
    for found in re.finditer(_TOKEN, pattern, re.DOTALL):
        token = found[0]
        if bracket and found["name"]:
            if found["name"] not in _NAMED:
                raise re.error(f"{token} is no class of characters")
            token = _NAMED[found["name"]]
        elif not bracket and token.startswith("{,"):
            token = "\\" + token
        elif token.startswith("[") and not found["name"]:
            bracket = True
        elif token == "]":
            bracket = False
        result.append(token)
    return "".join(result)


@dataclass
class _State:
    """Where bytes between two bounds lead, and where nothing does, at some places of the text."""

    bytes: list[tuple[int, int, int]] = field(default_factory=list)
    nothing: list[tuple[str, int]] = field(default_factory=list)


class _Machine:
    """States with arrows; several may leave one for the same byte. Each method adds what a part of the pattern says
    behind a state, and gives the state that follows it."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.states = [_State()]

    def state(self) -> int:
        if len(self.states) >= MOST:
            raise UnsupportedError(f"the pattern {self.pattern!r} takes more than {MOST} states: repeat less in it")
        self.states.append(_State())
        return len(self.states) - 1

    def skip(self, source: int, target: int, where: str = _ANYWHERE) -> int:
        self.states[source].nothing.append((where, target))
        return target

    def sequence(self, tree: Iterable[tuple[Any, Any]], start: int, flags: int) -> int:
        for code, value in tree:
            start = self.part(code, value, start, flags)
        return start

    def part(self, code: Any, value: Any, start: int, flags: int) -> int:
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY):
            return self.characters(_ranges(code, _hashable(value), flags), start)
        if code is codes.SUBPATTERN:
            _, more, fewer, tree = value
            return self.sequence(tree, start, (flags | more) & ~fewer)
        if code is codes.BRANCH:
            ends = [self.sequence(tree, self.skip(start, self.state()), flags) for tree in value[1]]
            after = self.state()
            for end in ends:
                self.skip(end, after)
            return after
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):  # what matches as a whole does not ask who is greedy
            least, most, tree = value
            return self.repeated(least, most, tree, start, flags)
        if code is codes.AT and not flags & re.MULTILINE:
            return self.skip(start, self.state(), _ANCHORS[value])
        raise UnsupportedError(
            f"the pattern {self.pattern!r} asks for {str(code).lower()}, which no automaton can tell"
        )

    def repeated(self, least: int, most: int, tree: Any, start: int, flags: int) -> int:
        if least > REPEATS or (most != codes.MAXREPEAT and most > REPEATS):
            raise UnsupportedError(f"the pattern {self.pattern!r} repeats a part more than {REPEATS} times")
        for _ in range(least):
            start = self.sequence(tree, start, flags)
        if most == codes.MAXREPEAT:
            again = self.skip(start, self.state())
            self.skip(self.sequence(tree, again, flags), again)
            return self.skip(again, self.state())
        after = self.state()
        for _ in range(most - least):
            self.skip(start, after)
            start = self.sequence(tree, start, flags)
        return self.skip(start, after)

    def characters(self, ranges: Ranges, start: int) -> int:
        after = self.state()
        for low, high in ranges:
            for sequence in _encoded(low, high):
                here = start
                for number, (first, last) in enumerate(sequence):
                    target = after if number == len(sequence) - 1 else self.state()
                    self.states[here].bytes.append((first, last, target))
                    here = target
        return after

    def asks_for_words(self) -> bool:
        return any(place in (_BOUNDARY, _INSIDE) for state in self.states for place, _ in state.nothing)

    def closure(self, states: Iterable[int], where: Sequence[str]) -> frozenset[int]:
        """``states`` and what follows them without a byte, at those places of the text."""
        found = set(states)
        waiting = list(found)
        while waiting:
            for place, target in self.states[waiting.pop()].nothing:
                if place in where and target not in found:
                    found.add(target)
                    waiting.append(target)
        return frozenset(found)


# ---- characters ------------------------------------------------------------------------------------------------------


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@cache
def _ranges(code: Any, value: Any, flags: int) -> Ranges:
    """The characters that one part of a pattern stands for."""
    if code is codes.ANY:
        return [(0, _LAST)] if flags & re.DOTALL else _others([(10, 10)])
    if code is codes.NOT_LITERAL:
        return _others(_cases([(value, value)], flags))
    if code is codes.LITERAL:
        return _cases([(value, value)], flags)
    negated = value[0][0] is codes.NEGATE
    found: Ranges = []
    for kind, element in value[negated:]:
        if kind is codes.LITERAL:
            found += _cases([(element, element)], flags)
        elif kind is codes.RANGE:
            found += _cases([element], flags)
        elif element in _CLASSES:
            found += _cases(_CLASSES[element], flags)
        else:
            found += _others(_cases(_CLASSES[_OPPOSITES[element]], flags))
    return _others(found) if negated else _joined(found)


def _cases(ranges: Ranges, flags: int) -> Ranges:
    """With the other case of each character, where the pattern does not tell them apart."""
    if not flags & re.IGNORECASE:
        return ranges
    alike = [c for low, high in ranges for first, others in _folds().items() if low <= first <= high for c in others]
    return _joined([*ranges, *((c, c) for c in alike)])


@cache
def _folds() -> dict[int, set[int]]:
    """The characters that are the same but for their case, by each of them: those of one simple folding."""
    groups: dict[str, set[int]] = {}
    for code in range(_LAST + 1):
        character = chr(code)
        folded = character.lower() if len(character.upper()) > 1 else character.upper().lower()
        if len(folded) == 1 and (folded != character or character.upper() != character):
            groups.setdefault(folded, {ord(folded)}).add(code)
    return {code: group for group in groups.values() if len(group) > 1 for code in group}


def _joined(ranges: Ranges) -> Ranges:
    result: Ranges = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return result


def _others(ranges: Ranges) -> Ranges:
    """All characters that are not in ``ranges``."""
    result, first = [], 0
    for low, high in _joined(ranges):
        if first < low:
            result.append((first, low - 1))
        first = high + 1
    return [*result, (first, _LAST)] if first <= _LAST else result


def _encoded(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
    """The UTF-8 of the characters from ``low`` to ``high``: for each yielded sequence, all bytes between the bounds of
    each place."""
    for end in (0x7F, 0x7FF, _SURROGATES[0] - 1, _SURROGATES[1], 0xFFFF):
        if low <= end < high:
            yield from _encoded(low, end)
            yield from _encoded(end + 1, high)
            return
    if _SURROGATES[0] <= low <= _SURROGATES[1]:
        return
    for places in (1, 2, 3):
        mask = (1 << 6 * places) - 1
        if low > 0x7F and low | mask != high | mask:
            cut = (low | mask) + 1 if low & mask else high & ~mask
            if low & mask or high & mask != mask:
                yield from _encoded(low, cut - 1)
                yield from _encoded(cut, high)
                return
    yield list(zip(chr(low).encode(), chr(high).encode(), strict=True))


# ---- one arrow for each byte -----------------------------------------------------------------------------------------


def _determined(machine: _Machine, last: int) -> tuple[Array, Array]:
    """An automaton with one state for each set of states in which ``machine`` can be, and for what lies before it: the
    beginning of the text, or a byte that is of a word or not, where that matters."""
    arrows = [(low, high + 1) for state in machine.states for low, high, _ in state.bytes]
    words = [(low, high + 1) for low, high in _CLASSES[codes.CATEGORY_WORD]] if machine.asks_for_words() else []
    cuts = sorted({0, *(cut for arrow in (*arrows, *words) for cut in arrow)} - {256})
    classes = np.searchsorted(cuts, np.arange(256), side="right").astype(np.int32) - 1
    of_word = [any(low <= byte < high for low, high in words) for byte in cuts]
    first = (frozenset([0]), False, True)
    numbers = {first: 0}
    order = [first]
    rows: list[list[int]] = []
    while len(rows) < len(order):
        states, word, begin = order[len(rows)]
        places = (_ANYWHERE, _BEGIN) if begin else (_ANYWHERE,)
        inside, boundary = ((*places, edge) for edge in (_INSIDE, _BOUNDARY))
        row = [int(last in machine.closure(states, (*(boundary if word else inside), _END)))]
        before = [machine.closure(states, inside), machine.closure(states, boundary)]
        for byte, following_word in zip(cuts, of_word, strict=True):
            here = before[word != following_word]
            targets = frozenset(t for s in here for low, high, t in machine.states[s].bytes if low <= byte <= high)
            following = (targets, following_word, False)
            if following not in numbers:
                if len(order) >= MOST:
                    raise UnsupportedError(f"the pattern {machine.pattern!r} takes more than {MOST} states")
                numbers[following] = len(order)
                order.append(following)
            row.append(numbers[following])
        rows.append(row)
    return classes, np.array(rows, np.int32)


def _fewest(states: Array) -> Array:
    """The automaton with one state for those that no text tells apart."""
    kinds = states[:, 0]
    while True:
        _, first, finer = np.unique(np.column_stack([kinds, kinds[states[:, 1:]]]), axis=0, return_index=True,
                                    return_inverse=True)  # fmt: skip
        if len(first) == len(np.unique(kinds)):
            break
        kinds = finer.reshape(-1)
    order = np.argsort(first)  # the first state stays the first
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    kept = states[first[order]]
    return np.column_stack([kept[:, 0], number[finer.reshape(-1)][kept[:, 1:]]]).astype(np.int32)


def together(automata: Sequence[tuple[Array, Array]]) -> tuple[Array, Array, Array]:
    """Several automata as one table: the classes, ``[automata, 256]``; all states, in rows of one length, that name
    those that follow by their rows, or -1 where nothing is accepted any more; and the row of each automaton's first
    state (int64)."""
    width = max(states.shape[1] for _, states in automata)
    rows: list[Array] = []
    starts: list[int] = []
    for _, states in automata:
        first = sum(map(len, rows))
        numbers = np.arange(len(states))
        dead = (states[:, 0] == 0) & (states[:, 1:] == numbers[:, None]).all(1)
        following = np.where(dead[states[:, 1:]], -1, states[:, 1:] + first)
        row = np.full((len(states), width), -1, np.int32)
        row[:, 0], row[:, 1 : states.shape[1]] = states[:, 0], following
        starts.append(first)
        rows.append(row)
    classes = np.stack([classes for classes, _ in automata])
    return classes.astype(np.int32), np.concatenate(rows), np.array(starts, np.int64)
