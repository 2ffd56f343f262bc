"""Requests in OpenAI's form, read field by field: what is missing, wrong or not supported is said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from luminal.llm.generate import Options
from luminal.llm.grammar import Constraint
from luminal.llm.sampling import Sampling
from luminal.llm.serve.http import Limits, RefusedError

# Fields that change no answer.
_IGNORED = frozenset(
    {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options"}
    | {"prompt_cache_retention", "parallel_tool_calls", "verbosity", "stream_options"}
)


class Fields:
    """The fields of a request, each read once. Raises RefusedError for one of the wrong type."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        self._read: set[str] = set()

    def any(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        return self._given.get(name, default)

    def number(self, name: str, default: float) -> float:
        value = self.any(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number", value)
        return float(value)

    def integer(self, name: str, default: int | None) -> int | None:
        value = self.any(name, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**64):
            raise self.wrong(name, "an integer", value)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.any(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def text(self, name: str) -> str | None:
        value = self.any(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a text", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.any(name, ())
        value = (value,) if isinstance(value, str) else value
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
            raise self.wrong(name, "a text or a list of texts", value)
        return tuple(value)

    def object(self, name: str) -> Mapping[str, Any]:
        value = self.any(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return value

    def finish(self) -> None:
        """Raises RefusedError for a field that nobody has read: it would change the answer, if it were known."""
        unknown = sorted(set(self._given) - self._read - _IGNORED)
        if unknown:
            raise RefusedError(400, f"the field {unknown[0]!r} is not supported", param=unknown[0], code="unsupported")

    def wrong(self, name: str, expected: str, found: Any) -> RefusedError:
        shown = json.dumps(found)
        shown = shown if len(shown) < 80 else shown[:77] + "..."
        return RefusedError(400, f"{name}: expected {expected}, found {shown}", param=name)


def choices(fields: Fields, limits: Limits) -> int:
    """How many answers to each prompt."""
    n = fields.integer("n", 1) or 0
    if not 1 <= n <= limits.choices:
        raise fields.wrong("n", f"1 .. {limits.choices}", n)
    best = fields.integer("best_of", n)
    if best != n:
        raise fields.wrong("best_of", "the same as n", best)
    return n


def options(fields: Fields, most: int | None, logprobs: int | None, limits: Limits) -> Options:
    """What is asked of each answer; ``most`` is its greatest number of tokens."""
    biases: dict[int, float] = {}
    for token, value in fields.object("logit_bias").items():
        if not token.isdecimal() or isinstance(value, bool) or not isinstance(value, int | float):
            raise fields.wrong("logit_bias", "a number for each token", {token: value})
        biases[int(token)] = float(value)
    sampling = Sampling(
        temperature=fields.number("temperature", 1.0),
        top_k=fields.integer("top_k", 0) or 0,
        top_p=fields.number("top_p", 1.0),
        min_p=fields.number("min_p", 0.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        presence_penalty=fields.number("presence_penalty", 0.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0),
        seed=fields.integer("seed", None),
        bias=biases,
    )
    stops = fields.texts("stop")
    if len(stops) > limits.stops or any(len(stop) > limits.stop_length for stop in stops):
        raise fields.wrong("stop", f"at most {limits.stops} texts of at most {limits.stop_length} letters", list(stops))
    return Options(most, sampling, stops, logprobs, _constraint(fields), endless=fields.flag("ignore_eos"))


def _constraint(fields: Fields) -> Constraint | None:
    form = dict(fields.object("response_format"))
    kind = form.get("type", "text")
    schema: Any = None
    if kind == "json_schema":
        described = form.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        if schema is None:
            raise fields.wrong("response_format", "a json_schema with a schema", form)
    elif kind == "json_object":
        schema = {"type": "object"}
    elif kind != "text":
        raise fields.wrong("response_format", "the type text, json_object or json_schema", form)
    return Constraint.of(schema, fields.text("regex"), fields.text("grammar"))


def messages(fields: Fields) -> list[dict[str, Any]]:
    """The messages of a chat, whose contents are texts."""
    given = fields.any("messages")
    if not isinstance(given, list) or not given or not all(isinstance(message, dict) for message in given):
        raise fields.wrong("messages", "a list of messages", given)
    found = []
    for message in given:
        if not isinstance(message.get("role"), str):
            raise fields.wrong("messages", "a role in each message", message)
        content = message.get("content")
        if isinstance(content, list):
            if not all(
                isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content
            ):
                raise fields.wrong("messages", "contents that are text: the model reads nothing else", content)
            content = "".join(part["text"] for part in content)
        if not isinstance(content, str | None):
            raise fields.wrong("messages", "a text as the content of each message", content)
        found.append({**message, "content": content})
    return found


def prompts(fields: Fields, name: str = "prompt") -> list[str | list[int]]:
    """The prompts of a completion, or what is embedded: each a text or tokens."""
    given = fields.any(name, "")
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if _tokens(given):
            return [given]
        if all(isinstance(prompt, str) for prompt in given) or all(_tokens(prompt) for prompt in given):
            return list(given)
    raise fields.wrong(name, "a text, a list of texts, tokens, or a list of lists of tokens", given)


def _tokens(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(token) is int for token in given)


def seeded(options: Options, number: int) -> Options:
    """The options of one of several answers to a prompt: each has a seed of its own."""
    seed = options.sampling.seed
    if seed is None or not number:
        return options
    wrapped = (seed + number + 2**63) % 2**64 - 2**63
    return replace(options, sampling=replace(options.sampling, seed=wrapped))


def checked(prompt: Sequence[int], limits: Limits, context: int) -> None:
    """Raises RefusedError for a prompt that is too long."""
    most = context - 1 if limits.prompt is None else min(limits.prompt, context - 1)
    if len(prompt) > most:
        raise RefusedError(
            400, f"the prompt has {len(prompt)} tokens: expected at most {most}", param="messages",
            code="context_length_exceeded",
        )  # fmt: skip
