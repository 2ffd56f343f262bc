"""Operators on strings."""

from __future__ import annotations

from collections.abc import Callable

from luminal.core.decompose import compare, reduction, text
from luminal.core.errors import ModelError
from luminal.core.ir import Node
from luminal.core.movement import reshape, unsqueeze
from luminal.frontends.onnx.registry import Call, operator

operator("StringConcat")(lambda call: text.concatenate(call[0], call[1]))
operator("RegexFullMatch")(lambda call: text.matches(call[0], call.text("pattern")))


@operator("StringSplit")
def _string_split(call: Call) -> tuple[Node, Node]:
    """A negative ``maxsplit`` sets no limit."""
    most = call.integer("maxsplit", -1)
    return text.split(call[0], call.text("delimiter", ""), None if most < 0 else most, call.outputs[0])


@operator("StringNormalizer")
def _string_normalizer(call: Call) -> Node:
    """Elements that are stop words are left out, the others' case is changed. ``[C]`` or ``[1, C]``, in and out."""
    x = call[0]
    if x.rank not in (1, 2) or (x.rank == 2 and x.shape[0] != 1):
        raise ModelError(f"expected texts [C] or [1, C], found {list(x.shape)}")
    call.ignore("locale")  # cases are Unicode's
    cases: dict[str, Callable[[Node], Node]] = {"LOWER": text.lower, "UPPER": text.upper, "NONE": lambda x: x}
    change = cases[call.choice("case_change_action", "NONE", cases)]
    words, exact = call.texts("stopwords") or [], call.flag("is_case_sensitive")
    row = reshape(x, [x.size])
    if words:
        listed = text.constants(words)
        a, b = (row, listed) if exact else (text.lower(row), text.lower(listed))
        is_word = compare.equal(unsqueeze(a, [1]), unsqueeze(b, [0]))
        row = text.without(row, reduction.any_(is_word, 1), call.outputs[0])
    row = change(row)
    return row if x.rank == 1 else unsqueeze(row, [0])


@operator("Tokenizer", domain="com.microsoft")
def _tokenizer(call: Call) -> Node:
    """Texts ``[C]`` or ``[N, C]``. One empty separator makes a token of each character."""
    x = call[0]
    if x.rank not in (1, 2):
        raise ModelError(f"expected texts [C] or [N, C], found {list(x.shape)}")
    separators, pattern = call.texts("separators") or [], call.text("tokenexp", "")
    least, marked, fill = call.integer("mincharnum"), call.flag("mark"), call.text("pad_value")
    if least < 1 or not (separators or pattern):
        raise ModelError(
            "expected a mincharnum of 1 or more, and separators or a tokenexp, found "
            f"{least}, {separators} and {pattern!r}"
        )
    single = separators == [""]
    patterns = ["(?s:.)"] if single else separators or [pattern]
    separating = bool(separators) and not single
    return text.tokens(x, patterns, separating=separating, least=least, marked=marked, fill=fill, name=call.outputs[0])
