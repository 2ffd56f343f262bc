"""Texts as numbers: an element of a string tensor is the number of its text, and tensors of numbers are what kernels
can move and compare.

The number is a hash of the text's UTF-8 bytes, so that it is the same in every graph, entry and library; the empty text
is 0. Two texts of one number are refused when the second is met, here and in a library: a comparison is never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from luminal.core.errors import InputError
from luminal.core.types import text as text_type

Array = np.ndarray[Any, Any]

_MASK = (1 << 64) - 1
_texts: dict[int, str] = {0: ""}
_numbers: dict[str, int] = {"": 0}


def number(text: str) -> int:
    """The number of ``text``. Raises InputError if another text in this process has the same number."""
    known = _numbers.get(text)
    if known is None:
        known = hash_of(text.encode())
        if _texts.setdefault(known, text) != text:
            raise InputError(f"the texts {text!r} and {_texts[known]!r} have one number, and cannot be told apart")
        _numbers[text] = known
    return known


def text(number: int) -> str:
    """The text of a number that ``number`` returned; raises KeyError for others."""
    return _texts[number]


def hash_of(content: bytes) -> int:
    """FNV-1a of 64 bits, then the final step of MurmurHash3, which mixes all bits; 0 for no bytes.

    Sources: Fowler, Noll, Vo, RFC 9923; Appleby, MurmurHash3 (fmix64). ``luminal/texts.hpp`` has the same.
    """
    if not content:
        return 0
    value = 0xCBF29CE484222325
    for byte in content:
        value = (value ^ byte) * 0x100000001B3 & _MASK
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def is_texts(value: Array) -> bool:
    """Whether a numpy array has a dtype of strings, bytes or objects, and so holds texts."""
    return value.dtype.kind in "OSTU"


def encode(texts: Any) -> Array:
    """The numbers of an array of texts (of any of numpy's kinds of strings, or objects), of the same shape.

    Raises InputError where an element is no text, or bytes that are not UTF-8.
    """
    array = np.asarray(texts)
    flat = array.reshape(-1).tolist()
    numbers = np.fromiter((number(_checked(element)) for element in flat), np.uint64, len(flat))
    return numbers.view(text_type.numpy).reshape(array.shape)


def decode(numbers: Array) -> Array:
    """The texts of an array of numbers, as an array of objects of the same shape."""
    result = np.empty(numbers.size, object)
    result[:] = strings(numbers)
    return result.reshape(numbers.shape)


def strings(numbers: Array) -> list[str]:
    """The texts of an array of numbers, in row-major order."""
    return [_texts[value] for value in numbers.reshape(-1).view(np.uint64).tolist()]


def of(texts: Iterable[str], shape: Sequence[int]) -> Array:
    """The numbers of ``texts``, in row-major order of ``shape``."""
    numbers = np.fromiter(map(number, texts), np.uint64)
    return numbers.view(text_type.numpy).reshape(tuple(shape))


def _checked(element: Any) -> str:
    if isinstance(element, bytes):
        try:
            return element.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"expected texts in UTF-8, found {element!r}: {error}") from error
    if not isinstance(element, str):
        raise InputError(f"expected an array of texts, found {type(element).__name__} in it")
    if any("\ud800" <= c <= "\udfff" for c in element):
        raise InputError(f"expected texts that UTF-8 can encode, found {element!r}, which holds half a character")
    return element
