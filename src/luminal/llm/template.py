"""Chat templates: messages as the text that a model was trained on, by Jinja in a sandbox, as transformers has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from luminal.core.errors import InputError

Message = Mapping[str, Any]
_LONGEST = 1 << 22  # characters of a text; a template that makes more is not one of a chat


class _Generation(Extension):
    """``{% generation %}`` marks what an assistant says, for training; its text stays as it is."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:  # fmt: skip
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Template:
    """A template; ``special`` are texts of tokens that it may name, as ``bos_token``. Raises InputError for a text that
    is no template."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        extensions = [_Generation, "jinja2.ext.loopcontrols"]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        # A template has no business with a range of a billion; the sandbox limits `range` itself.
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InputError(f"the model's chat template cannot be read: {error}") from error
        self._special = dict(special)

    def render(self, messages: Sequence[Message], *, prompt: bool = True, **values: Any) -> str:
        """The text of ``messages``, with the beginning of an answer where ``prompt`` is set. ``values`` are what else
        the template asks for, as ``tools``. Raises InputError for messages that the template refuses."""
        given = {**self._special, "tools": None, "documents": None, **values}
        shown = [{name: value for name, value in message.items() if value is not None} for message in messages]
        parts, length = [], 0
        try:
            for part in self._template.generate(messages=shown, add_generation_prompt=prompt, **given):
                parts.append(part)
                length += len(part)
                if length > _LONGEST:
                    raise InputError(f"the chat template makes a text of more than {_LONGEST} characters")
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the model's chat template refuses these messages: {error}") from error
        return "".join(parts)
