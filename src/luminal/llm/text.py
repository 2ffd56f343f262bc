"""Text as it comes, token by token: no half characters, and nothing beyond a stop string."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from luminal.core.errors import InputError

_UNKNOWN = "\ufffd"  # what decoders put for bytes that are no character
_LONGEST = 4  # bytes of a character in UTF-8, so tokens that one may need


class Stream:
    """The text of tokens that come one by one. ``decode`` gives the text of several tokens; ``context`` are tokens that
    came before, on which it may depend whether a word begins with a space."""

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._tokens = list(context)
        self._shown = len(self._tokens)  # tokens whose text is out
        self._text = decode(self._tokens)

    def push(self, token: int) -> str:
        """The text that ``token`` makes certain; empty while a character is not whole."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(_UNKNOWN) and len(self._tokens) - self._shown < _LONGEST:
            return ""
        return self._out(text)

    def finish(self) -> str:
        """The text of tokens that were held back: the character that they begin is not going to be whole."""
        return self._out(self._decode(self._tokens))

    def _out(self, text: str) -> str:
        new = text[len(self._text) :]
        # What is out is context for what follows, and what it was context for is no longer needed.
        self._tokens = self._tokens[self._shown :] if self._shown < len(self._tokens) else self._tokens
        self._shown, self._text = len(self._tokens), self._decode(self._tokens)
        return new


class Stops:
    """Text up to the first of some strings. What may be the beginning of one is held back."""

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = tuple(strings)
        if not all(isinstance(string, str) and string for string in self.strings):
            raise InputError(f"stop: expected texts that are not empty, found {list(self.strings)!r}")
        self.found: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """What may be shown; nothing after a stop string was ``found``."""
        if self.found is not None:
            return ""
        self._held += text
        places = [(at, string) for string in self.strings if (at := self._held.find(string)) >= 0]
        if places:
            at, self.found = min(places, key=lambda place: (place[0], -len(place[1])))
            shown, self._held = self._held[:at], ""
            return shown
        keep = max((self._begun(string) for string in self.strings), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def _begun(self, string: str) -> int:
        """How much of ``string`` the text ends with."""
        most = min(len(string) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if self._held.endswith(string[:n])), 0)

    def finish(self) -> str:
        """What was held back for a stop string that did not come."""
        shown, self._held = self._held, ""
        return shown
