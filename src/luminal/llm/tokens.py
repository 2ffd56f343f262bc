"""Text as tokens and back: a folder's ``tokenizer.json``, or the vocabulary that a GGUF file has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from luminal.core.errors import InputError, ModelError
from luminal.llm import gguf_vocabulary
from luminal.llm.extras import require
from luminal.llm.template import Message, Template
from luminal.llm.text import Stream

FILE = "tokenizer.json"
_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")
_TEMPLATE = "chat_template.jinja"
FILES = (FILE, *_CONFIGS, _TEMPLATE)  # what belongs to a tokenizer
_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """``tokenizers.Tokenizer`` with what else is known of a model's text: which tokens end it, and its chat template.

    ``stops`` are tokens that end an answer; ``special`` has texts of tokens by their role.
    """

    def __init__(
        self, tokenizer: Any, stops: Sequence[int] = (), special: Mapping[str, str] | None = None, template: str = "",
        with_tools: str = "",
    ) -> None:  # fmt: skip
        self._tokenizer = tokenizer
        for unset in ("no_padding", "no_truncation"):  # files of encoders may ask for a length: a text keeps its own
            getattr(tokenizer, unset, lambda: None)()
        self.stops = frozenset(stops)
        self.special = dict(special or {})
        self.template, self._with_tools = template, with_tools
        self._templates: dict[str, Template] = {}

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def to_json(self) -> str:
        """What ``tokenizer.json`` would hold."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of ``text``, with those that the model expects around it where ``special`` is set."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of ``tokens``, with special ones where ``special`` is set; bytes that are no character as U+FFFD.
        Tokens that the vocabulary does not have, as a model with rows to spare may give, have no text."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=not special))

    def token(self, text: str) -> int | None:
        """The token that is spelled so, if there is one."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def stream(self, context: Sequence[int] = (), special: bool = False) -> Stream:
        """For decoding one token after the other, after ``context``."""
        return Stream(lambda tokens: self.decode(tokens, special), list(context)[-_CONTEXT:])

    def chat(self, messages: Sequence[Message], *, prompt: bool = True, tools: Any = None, **values: Any) -> str:
        """The text of a chat, by the model's template: see ``Template.render``. Raises InputError where it has none."""
        source = self._with_tools if tools and self._with_tools else self.template
        if not source:
            raise InputError("the model has no chat template: give it a prompt instead of messages")
        made = self._templates.get(source)
        if made is None:
            made = self._templates[source] = Template(source, self.special)
        return made.render(messages, prompt=prompt, tools=tools or None, **values)

    def chat_tokens(self, messages: Sequence[Message], **values: Any) -> list[int]:
        """The tokens of a chat; its template spells special tokens itself."""
        return self.encode(self.chat(messages, **values), special=False)


_CONTEXT = 8  # tokens before a text that decide how it begins


def load(source: str | Path | Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a folder with ``tokenizer.json``, as transformers and ``luminal.llm`` write it, of such a file
    itself, or of the metadata of a GGUF file. Raises ModelError where there is none, or it cannot be read."""
    if isinstance(source, Mapping):
        return of(gguf_vocabulary.read(source).files(), "the GGUF file's vocabulary")
    path = Path(source)
    folder = path.parent if path.name == FILE else path
    return of({name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}, str(folder))


def of(files: Mapping[str, bytes], where: str) -> Tokenizer:
    """The tokenizer of ``files`` by their names; ``where`` they come from. Raises as ``load`` does."""
    if FILE not in files:
        raise ModelError(f"{where!r}: expected a file {FILE}, as tokenizers writes it, found none")
    package = require("tokenizers", "llm", "a tokenizer")
    tokenizer = _reading(f"{where}: {FILE}", lambda: package.Tokenizer.from_str(files[FILE].decode()))
    configs = {name: _object(where, name, files[name]) for name in _CONFIGS if name in files}
    tokens, generation, config = (configs.get(name, {}) for name in (_CONFIGS[0], *_CONFIGS[2:]))
    named = {**configs.get("special_tokens_map.json", {}), **tokens}
    special = {role: text for role in _NAMED if (text := _text(named.get(role)))}
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    stops = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(isinstance(token, int) for token in stops):
        raise ModelError(f"{where}: eos_token_id: expected a token's number, or a list of them, found {ends!r}")
    own = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    stops = [*stops, *(() if own is None else (own,))]
    template, with_tools = _templates(files, tokens.get("chat_template"))
    return Tokenizer(tokenizer, stops, special, template, with_tools)


def _reading(where: Any, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        raise ModelError(f"{where}: the tokenizer cannot be read: {error}") from error


def _object(where: str, name: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ModelError(f"{where}: {name}: expected a file of JSON, found one that cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{where}: {name}: expected an object of JSON, found {type(found).__name__}")
    return found


def _text(value: Any) -> str:
    """The text of a special token, which may be an object with its properties."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _templates(files: Mapping[str, bytes], given: Any) -> tuple[str, str]:
    """The template of a chat, and the one of a chat with tools if that is another."""
    if _TEMPLATE in files:
        return files[_TEMPLATE].decode(errors="replace"), ""
    if isinstance(given, list):
        named = {row.get("name"): row.get("template", "") for row in given if isinstance(row, dict)}
        return named.get("default", ""), named.get("tool_use", "")
    return (given, "") if isinstance(given, str) else ("", "")
