"""The vocabulary of a GGUF file as what ``tokenizer.json`` would say of it.

Its metadata has the texts of tokens, their kinds, and either the merges of a byte-level BPE or scores. SentencePiece's
BPE joins the two neighbours whose joined text has the highest score, so each way to split a token into two is a merge,
in the order of scores; its unigram model takes the scores themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from luminal.core.errors import ModelError

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
_LONGEST = 512  # letters of a token of SentencePiece, which makes them of 16 at most unless told otherwise
_SPACE = "\u2581"  # SentencePiece's mark of a space


class Kind(IntEnum):
    """The kinds of tokens in GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """``json`` is what ``tokenizer.json`` would hold; the rest as in ``Tokenizer``."""

    json: Mapping[str, Any]
    stops: tuple[int, ...]
    special: Mapping[str, str]
    template: str

    def files(self) -> dict[str, bytes]:
        """The files that a folder would have of it, by name."""
        config = {**self.special, "chat_template": self.template}
        return {
            "tokenizer.json": json.dumps(self.json, ensure_ascii=False).encode(),
            "tokenizer_config.json": json.dumps(config, indent=1).encode(),
            "generation_config.json": json.dumps({"eos_token_id": list(self.stops)}).encode(),
        }


@dataclass(frozen=True)
class _Words:
    """How text is cut into words before its bytes are merged: patterns whose matches are words, one after the other
    (empty: GPT-2's own), digits apart or not, and whether a word that is a token is left whole."""

    patterns: tuple[str, ...] = ()
    digits: bool = False
    whole: bool = False
    composed: bool = False  # NFC


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREE_DIGITS = _Words((_CONTRACTIONS + r"\p{N}{1,3}" + _REST,), whole=True)
_ONE_DIGIT = _Words((_CONTRACTIONS + r"\p{N}" + _REST,), composed=True)
# By the name that the file has for it.
_WORDS = {
    "default": _Words(),
    "gpt-2": _Words(),
    "phi-2": _Words(),
    "olmo": _Words(),
    "llama-bpe": _THREE_DIGITS,
    "llama3": _THREE_DIGITS,
    "llama-v3": _THREE_DIGITS,
    "smaug-bpe": _THREE_DIGITS,
    "dbrx": _THREE_DIGITS,
    "qwen2": _ONE_DIGIT,
    "deepseek-r1-qwen": _ONE_DIGIT,
    "smollm": _Words(digits=True),
    "starcoder": _Words(digits=True),
    "refact": _Words(digits=True),
    "command-r": _Words(digits=True),
    "codeshell": _Words(digits=True),
}


@dataclass(frozen=True)
class _File:
    """What the metadata says, checked."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    values: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        value = self.values.get(f"{PREFIX}{name}_token_id")
        if value is None:
            return None
        if not isinstance(value, int | np.integer) or not 0 <= value < len(self.tokens):
            raise ModelError(f"{PREFIX}{name}_token_id: expected one of {len(self.tokens)} tokens, found {value!r}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.values.get(PREFIX + name, default))


def read(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises ModelError where the metadata has no vocabulary, or of a kind that is not known."""
    kind = metadata.get(f"{PREFIX}model")
    if kind not in _MODELS:
        known = ", ".join(map(repr, _MODELS))
        raise ModelError(f"{PREFIX}model: expected one of {known}, found {kind!r}; give a tokenizer.json instead")
    tokens = _list(metadata, "tokens", str)
    kinds = _list(metadata, "token_type", int, len(tokens)) or [Kind.NORMAL] * len(tokens)
    scores = _list(metadata, "scores", float, len(tokens)) or [0.0] * len(tokens)
    file = _File(tokens, kinds, scores, _list(metadata, "merges", str), metadata)
    if not tokens:
        raise ModelError(f"{PREFIX}tokens: expected the texts of tokens, found none")
    made = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": k, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": kind != Kind.USER_DEFINED,
            }
            for k, (text, kind) in enumerate(zip(tokens, file.kinds, strict=True))
            if kind in (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN) and text
        ],
        **_MODELS[kind](file),
    }  # fmt: skip
    made["post_processor"] = _around(file, kind != "gpt2", made.get("post_processor"))
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {f"{role}_token": tokens[k] for role, name in names.items() if (k := file.number(name)) is not None}
    ends = [file.number(name) for name in ("eos", "eot", "eom")]
    template = metadata.get(TEMPLATE, "")
    stops = tuple(dict.fromkeys(k for k in ends if k is not None))
    return Vocabulary(made, stops, special, template if isinstance(template, str) else "")


def _list(metadata: Mapping[str, Any], name: str, kind: type, length: int | None = None) -> list[Any]:
    found = metadata.get(PREFIX + name)
    if found is None:
        return []
    values = found.tolist() if isinstance(found, np.ndarray) else list(found)
    types = (int, float) if kind is float else kind
    if not all(isinstance(value, types) for value in values):
        raise ModelError(f"{PREFIX}{name}: expected a list of {kind.__name__}")
    if kind is str and not _is_text("".join(values)):
        raise ModelError(f"{PREFIX}{name}: expected texts in UTF-8, found other bytes")
    if length is not None and len(values) != length:
        raise ModelError(f"{PREFIX}{name}: expected one for each of {length} tokens, found {len(values)}")
    return values


def _is_text(text: str) -> bool:
    """Whether it has no halves of surrogates, as which bytes that are no text may come."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _byte_level(file: _File) -> dict[str, Any]:
    """BPE over bytes, each spelled as a printable character (GPT-2)."""
    named = file.values.get(f"{PREFIX}pre", "default")
    words = _WORDS.get(named)
    if words is None:
        known = ", ".join(_WORDS)
        raise ModelError(f"{PREFIX}pre: expected one of {known}, found {named!r}; give a tokenizer.json instead")
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if words.digits else []
    steps += [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in words.patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": file.flag("add_space_prefix", False), "trim_offsets": True}
    steps.append({**level, "use_regex": not words.patterns})
    merges = [pair.split(" ", 1) for pair in file.merges]
    if not merges or any(len(pair) != 2 for pair in merges):
        raise ModelError(f"{PREFIX}merges: expected pairs of texts with a space between, found {file.merges[:1]!r}")
    model = {"type": "BPE", "vocab": _numbers(file), "merges": merges, "ignore_merges": words.whole}
    return {
        "normalizer": {"type": "NFC"} if words.composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "model": model,
        "decoder": {**level, "use_regex": True},
        "post_processor": None,
    }


def _numbers(file: _File) -> dict[str, int]:
    """Tokens by their texts; of equal texts, as spare ones may have, the first."""
    numbers: dict[str, int] = {}
    for k, text in enumerate(file.tokens):
        numbers.setdefault(text, k)
    return numbers


def _sentence_piece(file: _File, model: dict[str, Any]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    back: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    if file.flag("add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": _SPACE})
        back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "model": model,
        "decoder": {"type": "Sequence", "decoders": back},
    }


def _by_scores(file: _File) -> dict[str, Any]:
    """SentencePiece's BPE."""
    numbers = _numbers(file)
    joined = {k for k, kind in enumerate(file.kinds) if kind == Kind.NORMAL}
    ranked: list[tuple[float, int, int, str, str]] = []
    for k in joined:
        text = file.tokens[k]
        if len(text) > _LONGEST:
            raise ModelError(f"{PREFIX}tokens: token {k} has {len(text)} letters: expected at most {_LONGEST}")
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in numbers and right in numbers:
                ranked.append((-file.scores[k], numbers[left], numbers[right], left, right))
    merges = [[left, right] for *_, left, right in sorted(ranked)]
    unknown = file.number("unknown")
    return _sentence_piece(file, {
        "type": "BPE", "vocab": numbers, "merges": merges, "fuse_unk": True, "byte_fallback": Kind.BYTE in file.kinds,
        "unk_token": None if unknown is None else file.tokens[unknown],
    })  # fmt: skip


def _unigram(file: _File) -> dict[str, Any]:
    """SentencePiece's unigram model: the texts of the highest sum of scores."""
    rows = [[text, float(score)] for text, score in zip(file.tokens, file.scores, strict=True)]
    unknown, fallback = file.number("unknown"), Kind.BYTE in file.kinds
    return _sentence_piece(file, {"type": "Unigram", "vocab": rows, "unk_id": unknown, "byte_fallback": fallback})


_MODELS: dict[str, Callable[[_File], dict[str, Any]]] = {
    "gpt2": _byte_level, "llama": _by_scores, "t5": _unigram,
}  # fmt: skip


def _around(file: _File, first: bool, own: Any) -> Any:
    """The tokens that belong before and after a text: one before, unless the file says otherwise, where ``first``."""
    bos, eos = file.number("bos"), file.number("eos")
    before = bos if file.flag("add_bos_token", first) else None
    after = eos if file.flag("add_eos_token", False) else None
    if before is None and after is None:
        return own
    names = {k: file.tokens[k] for k in (before, after) if k is not None}
    parts: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if before is not None:
        parts.insert(0, {"SpecialToken": {"id": names[before], "type_id": 0}})
    if after is not None:
        parts.append({"SpecialToken": {"id": names[after], "type_id": 0}})
    special = {text: {"id": text, "ids": [k], "tokens": [text]} for k, text in names.items()}
    pair = [*parts, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": parts, "pair": pair, "special_tokens": special}
