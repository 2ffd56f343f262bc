"""Answers of a form: a JSON schema, a regular expression or a grammar decides which tokens may come, by llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.core.errors import InputError
from luminal.llm.extras import require
from luminal.llm.tokens import Tokenizer

Array = np.ndarray[Any, Any]
KINDS = ("json_schema", "regex", "lark")
# Between the tokens of JSON: a space, or a new line and its indentation. A model may prefer blanks to what comes next;
# an answer of nothing else would never end. A schema's "x-guidance" may say otherwise.
_BLANKS = {"whitespace_pattern": r"( |\n {0,32})?"}


@dataclass(frozen=True)
class Constraint:
    """What an answer has to be: of the ``kind`` ``json_schema`` (its text), ``regex``, or ``lark``, a grammar in
    llguidance's form of Lark's. Raises InputError for another kind, and for a schema that is no JSON."""

    kind: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"a constraint: expected one of {', '.join(KINDS)}, found {self.kind!r}")
        if self.kind == "json_schema":
            try:
                found = json.loads(self.text)
            except ValueError as error:
                raise InputError(f"a JSON schema: expected JSON, found {self.text[:40]!r}: {error}") from error
            if not isinstance(found, dict | bool):
                raise InputError(f"a JSON schema: expected an object, found {self.text[:40]!r}")

    @classmethod
    def of(cls, json_schema: Any = None, regex: str | None = None, lark: str | None = None) -> Constraint | None:
        """The one of these that is given, if any."""
        if isinstance(json_schema, Mapping | bool):
            json_schema = json.dumps(json_schema)
        given = [(kind, text) for kind, text in zip(KINDS, (json_schema, regex, lark), strict=True) if text is not None]
        if len(given) > 1:
            raise InputError(f"expected one constraint, found {' and '.join(kind for kind, _ in given)}")
        if given and not isinstance(given[0][1], str):
            raise InputError(f"{given[0][0]}: expected a text, found {given[0][1]!r}")
        return cls(*given[0]) if given else None


class Matcher:
    """A constraint, and the tokens of one answer so far."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self._check()

    def allowed(self) -> Array:
        """Whether each token may come next, bool ``[vocabulary]``; a token that ends the answer where it is whole."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        found = np.unpackbits(bits, count=self._vocabulary, bitorder="little")
        return found.astype(np.bool_)

    def accept(self, token: int) -> None:
        """Raises InputError for a token that may not come."""
        self._matcher.consume_token(token)
        self._check()

    def ahead(self, tokens: Sequence[int]) -> list[Array]:
        """What may come next after each of ``tokens``, as ``allowed`` says it, up to the first that may not come itself
        or after which nothing may; the answer stays as it is."""
        ahead, found = Matcher(self._matcher.deep_copy(), self._vocabulary), []
        for token in tokens:
            if not ahead._matcher.validate_tokens([token]):
                break
            ahead.accept(token)
            if ahead.complete:
                break
            found.append(ahead.allowed())
        return found

    @property
    def complete(self) -> bool:
        """Whether nothing may follow but the end."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError(f"the constraint on the answer: {self._matcher.get_error()}")


class Grammars:
    """Makes matchers for one tokenizer; what takes a second is done at the first."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer, self.vocabulary = tokenizer, vocabulary
        self._made: Any = None

    def matcher(self, constraint: Constraint) -> Matcher:
        """Raises InputError where llguidance is missing, or cannot read the constraint."""
        package = require("llguidance", "grammar", "a constraint on answers")
        if self._made is None:
            if not self._tokenizer.stops:
                raise InputError("a constraint on answers needs a token that ends them: the tokenizer names none")
            ends = sorted(self._tokenizer.stops)
            self._made = package.LLTokenizer(self._tokenizer.to_json(), n_vocab=self.vocabulary, eos_token=ends)
        make = getattr(package.LLMatcher, f"grammar_from_{constraint.kind}")
        options = {"defaults": _BLANKS} if constraint.kind == "json_schema" else {}
        grammar = make(constraint.text, **options)
        return Matcher(package.LLMatcher(self._made, grammar, log_level=0), self.vocabulary)
