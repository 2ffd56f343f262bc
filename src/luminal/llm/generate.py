"""From a prompt to an answer: the loop around an engine, for one answer or for as many as it has slots.

A ``Scheduler`` goes step by step. In a step, each slot whose prompt is in gets its next token, all in one call of the
engine, and one slot gets the next part of its prompt, so a long prompt does not make the others wait for all of it. A
slot keeps what it holds after its answer: the next prompt that begins alike starts from there. An answer with drafts
goes on by itself, by as many tokens as they are right, and one more.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from luminal import arguments
from luminal.core.errors import InputError
from luminal.llm.drafts import Counts, Drafter, check, drafter
from luminal.llm.engine import Engine
from luminal.llm.grammar import Constraint, Grammars
from luminal.llm.sampling import Sampler, Sampling
from luminal.llm.text import Stops
from luminal.llm.tokens import Tokenizer

Array = np.ndarray[Any, Any]
PART = 256  # tokens of a prompt that go in at a time while others wait
_WORTH = 32  # tokens that another slot has to have more of, to be copied from


@dataclass(frozen=True)
class Options:
    """What is asked of one answer. ``max_tokens`` None: as many as there is room for. ``stop`` are texts before which
    it ends. ``logprobs`` asks for the logarithms of the probabilities of each token and of so many likeliest ones.
    ``special`` shows special tokens. With ``endless``, tokens that end an answer do not. ``adapter`` is the number of
    the one that it is computed with, in its ``strength``. ``draft`` is where drafts of it come from: ``lookup``, from
    the text so far, or another model."""

    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    constraint: Constraint | None = None
    special: bool = False
    endless: bool = False
    adapter: int | None = None
    strength: float = 1.0
    draft: Engine | str | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and not arguments.is_whole(self.max_tokens, 1, sys.maxsize):
            raise InputError(f"max_tokens: expected 1 or more, found {self.max_tokens!r}")
        if self.logprobs is not None and not arguments.is_whole(self.logprobs, 0, 100):
            raise InputError(f"logprobs: expected 0 .. 100 tokens, found {self.logprobs!r}")


@dataclass(frozen=True)
class Piece:
    """What a token adds to an answer. ``text`` may be empty while a character or a stop string may still come of it.
    ``logprob`` and ``top`` are of the model's own distribution, before penalties and temperature, where they are asked
    for. The last piece has ``finish``: ``stop`` for a token or text that ends the answer, ``length`` where there is no
    room for more; and, of an answer with drafts, their ``drafts``."""

    token: int
    text: str
    finish: str | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    drafts: Counts | None = None


class Answer:
    """One answer while it is made."""

    def __init__(self, prompt: Sequence[int], options: Options, tokenizer: Tokenizer, grammars: Grammars, room: int):
        """``room`` is the context of the engine, of whose vocabulary the prompt's tokens are."""
        self.prompt, self.options = list(map(int, prompt)), options
        self.made: list[int] = []
        self.reused = 0  # tokens of the prompt that were in the slot
        most = room - len(self.prompt)
        if not self.prompt:
            raise InputError("the prompt has no tokens: expected at least one")
        if most < 1:
            raise InputError(
                f"the prompt has {len(self.prompt)} tokens, and there is room for {room} with the answer: shorten it, "
                "or compile the model with a longer context"
            )
        self._most = most if options.max_tokens is None else min(options.max_tokens, most)
        self._ends = frozenset() if options.endless else tokenizer.stops
        self._stream = tokenizer.stream(self.prompt, options.special)
        self._stops = Stops(options.stop)
        self._matcher = None if options.constraint is None else grammars.matcher(options.constraint)
        self.sampler = Sampler(options.sampling, grammars.vocabulary, self.prompt)
        self.drafter: Drafter | None = None
        self.drafts = Counts()
        self.finish: str | None = None

    def prepare(self) -> None:
        """Before the next token is drawn."""
        if self._matcher is not None:
            self.sampler.allowed = self._matcher.allowed()

    def drafted(self, most: int) -> tuple[list[int], list[Sampler]]:
        """Up to so many drafts of what comes next, and the samplers of what comes before the first and after each."""
        most = min(most, self._most - len(self.made) - 1)
        if self.drafter is None or most < 1:
            return [], []
        self.prepare()
        drafts = self.drafter.draft(most, self.sampler)
        allowed: Sequence[Array | None] = [None] * len(drafts)
        if self._matcher is not None:
            allowed = self._matcher.ahead(drafts)
        samplers = [self.sampler]
        for token, may in zip(drafts, allowed, strict=False):
            samplers.append(samplers[-1].after(token))
            samplers[-1].allowed = may
        return drafts[: len(allowed)], samplers

    def take(self, token: int, logits: Array | None) -> Piece:
        """Go on with ``token``; ``logits`` are those that it was drawn from."""
        if token < 0:
            raise InputError("no token may come next: the logits, with bias and constraint, leave none")
        self.made.append(token)
        self.sampler.accept(token)
        if self.drafter is not None:
            self.drafter.extend([token])
        whole = False
        if self._matcher is not None:
            self._matcher.accept(token)
            whole = self._matcher.complete
        ends = token in self._ends
        text = self._stops.push("" if ends else self._stream.push(token))
        if ends or whole or len(self.made) >= self._most:
            text += self._stops.push(self._stream.finish()) + self._stops.finish()
            self.finish = "stop" if ends or whole else "length"
        if self._stops.found is not None:
            self.finish = "stop"
        asked = self.options.logprobs
        logprob, top = (None, ()) if logits is None or asked is None else _logprobs(logits, token, asked)
        counts = None if self.finish is None or self.options.draft is None else self.drafts
        return Piece(token, text, self.finish, logprob, top, counts)


def _logprobs(logits: Array, token: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    x = logits.astype(np.float64)
    x = x - x.max()
    x = x - np.log(np.exp(x).sum())
    first = np.argsort(-x, kind="stable")[:count]
    return float(x[token]), tuple((int(k), float(x[k])) for k in first)


Found: TypeAlias = list[tuple[Answer, Piece | InputError]]


class Scheduler:
    """Answers in the slots of an engine, of which nobody else may use any."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self._grammars = Grammars(tokenizer, engine.vocabulary)
        self._held: list[list[int]] = [[] for _ in range(engine.slots)]
        self._adapted: list[tuple[int | None, float]] = [(None, 1.0)] * engine.slots  # what each is computed with
        for slot in range(engine.slots):
            if engine.length(slot):
                engine.rewind(slot, 0)
            engine.use_adapter(slot, None)
        self._answers: dict[int, Answer] = {}
        self._waiting: dict[int, list[int]] = {}  # by slot, what is not in it of its prompt, in order of arrival
        self._next: dict[int, int] = {}  # by slot, the token that was drawn last

    @property
    def free(self) -> int:
        """The number of slots in which no answer is made."""
        return self.engine.slots - len(self._answers)

    @property
    def answers(self) -> list[Answer]:
        return list(self._answers.values())

    def answer(self, prompt: Sequence[int], options: Options) -> Answer:
        """An answer to ``prompt``, to be added. Raises InputError for what it cannot be made of."""
        for token in prompt:
            if (
                isinstance(token, bool)
                or not isinstance(token, int | np.integer)
                or not 0 <= token < self.engine.vocabulary
            ):
                raise InputError(f"the prompt: expected tokens below {self.engine.vocabulary}, found {token!r}")
        if options.draft is not None:
            check(options.draft, self.engine)
        return Answer(prompt, options, self.tokenizer, self._grammars, self.engine.context)

    def add(self, answer: Answer) -> None:
        """Let an answer be made in a free slot, of which there must be one."""
        if answer.options.draft is not None:
            answer.drafter = drafter(answer.options.draft, [other.drafter for other in self.answers])
            answer.drafter.extend(answer.prompt)
        adapted = answer.options.adapter, answer.options.strength
        known = {
            slot: self._known(slot, answer.prompt) if self._adapted[slot] == adapted else 0
            for slot in range(self.engine.slots)
        }
        free = [slot for slot in known if slot not in self._answers]
        # Of slots that hold as much, the one that holds least besides.
        slot = max(free, key=lambda slot: (known[slot], -len(self._held[slot])))
        source = max(known, key=lambda slot: known[slot])
        if known[source] >= known[slot] + _WORTH:
            self.engine.fork(source, slot)
            self._held[slot], self._adapted[slot] = list(self._held[source]), adapted
        elif self._adapted[slot] != adapted:
            self._rewound(slot, 0)
            self.engine.use_adapter(slot, *adapted)
            self._adapted[slot] = adapted
        answer.reused = self._rewound(slot, self._known(slot, answer.prompt))
        self._answers[slot] = answer
        self._waiting[slot] = answer.prompt[answer.reused :]

    def _known(self, slot: int, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt need not go into a slot: none where it cannot go back so far."""
        # The logits after the prompt are those of its last token, which goes in again.
        length = min(_common(self._held[slot], prompt), self.engine.length(slot), len(prompt) - 1)
        return length if self.engine.keeps(slot, length) else 0

    def _rewound(self, slot: int, length: int) -> int:
        """The slot goes back to its first ``length`` tokens, as it can."""
        if length < self.engine.length(slot):  # which may be more than is held, after a prompt that was interrupted
            self.engine.rewind(slot, length)
        del self._held[slot][length:]
        return length

    def remove(self, answer: Answer) -> None:
        """Give up an answer that is not finished; nothing happens where it is."""
        for slot in [slot for slot, other in self._answers.items() if other is answer]:
            self._leave(slot)

    def clear(self) -> None:
        """Forget all answers and all that slots hold, after an error."""
        for slot in range(self.engine.slots):
            if slot in self._answers:
                self._leave(slot)
            self._held[slot] = []
            self.engine.rewind(slot, 0)

    def _leave(self, slot: int) -> None:
        answer = self._answers.pop(slot)
        if answer.drafter is not None:
            answer.drafter.close()
        self._waiting.pop(slot, None)
        self._next.pop(slot, None)

    def step(self) -> Found:
        """What the next step adds to answers; an error is the end of the one that it belongs to. Errors that are not of
        one answer are raised."""
        found = self._gone_on()
        if self._waiting:
            slot, rest = next(iter(self._waiting.items()))
            # Alone, nobody waits for it.
            part = rest if len(self._answers) == 1 else rest[:PART]
            try:
                self.engine.prefill(slot, part)
            except InputError as error:
                found.append((self._answers[slot], error))
                self._held[slot] = []
                self.engine.rewind(slot, 0)
                self._leave(slot)
            else:
                self._held[slot] += part
                self._waiting[slot] = rest[len(part) :]
                if not self._waiting[slot]:
                    del self._waiting[slot]
        return found + self._drawn()

    def _gone_on(self) -> Found:
        """The tokens that were drawn last go in: of answers with drafts together with these, which adds the next
        tokens, of the others in one call."""
        found: Found = []
        plain: dict[int, int] = {}
        for slot, token in list(self._next.items()):
            answer = self._answers[slot]
            try:
                drafts, samplers = answer.drafted(self.engine.speculate)
            except InputError as error:
                found.append((answer, error))
                self._leave(slot)
                continue
            del self._next[slot]
            if drafts:
                found += self._verified(slot, [token, *drafts], samplers)
            else:
                plain[slot] = token
        if plain:
            self.engine.decode(plain)
            for slot, token in plain.items():
                self._held[slot].append(token)
        return found

    def _verified(self, slot: int, tokens: Sequence[int], samplers: Sequence[Sampler]) -> Found:
        """The pieces of as many drafts, behind the first of ``tokens``, as are right, and of the token after them."""
        answer, held = self._answers[slot], self._held[slot]
        chosen, logits = self.engine.verify(slot, tokens, samplers)
        answer.drafts.steps += 1
        answer.drafts.proposed += len(tokens) - 1
        found: Found = []
        for k, token in enumerate(chosen):
            held.append(tokens[k])
            answer.drafts.accepted += (right := tokens[k + 1 : k + 2] == [token])
            if not (self._went_on(slot, token, logits[k], found) and right):
                break
        self.engine.rewind(slot, len(held))
        return found

    def _went_on(self, slot: int, token: int, logits: Array | None, found: Found) -> bool:
        """Whether the answer in a slot goes on after ``token``, of which ``found`` gets the piece."""
        answer = self._answers[slot]
        try:
            piece = answer.take(token, logits)
        except InputError as error:
            found.append((answer, error))
            self._leave(slot)
            return False
        found.append((answer, piece))
        if piece.finish is None:
            self._next[slot] = token
        else:
            self._leave(slot)
        return piece.finish is None

    def _drawn(self) -> Found:
        found: Found = []
        ready: dict[int, Answer] = {}
        for slot, answer in list(self._answers.items()):
            if slot not in self._waiting and slot not in self._next:
                try:
                    answer.prepare()
                    ready[slot] = answer
                except InputError as error:
                    found.append((answer, error))
                    self._leave(slot)
        tokens = self.engine.sample({slot: answer.sampler for slot, answer in ready.items()}) if ready else {}
        for slot, token in tokens.items():
            wanted = ready[slot].options.logprobs is not None
            self._went_on(slot, token, self.engine.logits(slot) if wanted else None, found)
        return found


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the prefix that both have."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Generator:
    """Answers of an engine one after the other, which reuse what its slots hold."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._scheduler = Scheduler(engine, tokenizer)
        self._found: dict[int, deque[Piece | InputError]] = {}  # of several answers that are read in turns

    def tokens(self, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]], **values: Any) -> list[int]:
        """The tokens of a prompt: of a text, of the messages of a chat (``values`` are for its template), or tokens."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if not isinstance(prompt, Iterable) or isinstance(prompt, Mapping):
            raise InputError(f"the prompt: expected a text, tokens or messages of a chat, found {prompt!r}")
        messages = [message for message in prompt if isinstance(message, Mapping)]
        if messages and len(messages) == len(prompt):
            return self.tokenizer.chat_tokens(messages, **values)
        return [token for token in prompt if not isinstance(token, Mapping)]

    def stream(self, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]], options: Options) -> Iterator[Piece]:
        """The pieces of one answer. Raises InputError for a prompt or options that do not fit, before the first."""
        answer = self._scheduler.answer(self.tokens(prompt), options)
        return self._pieces(answer)

    def _pieces(self, answer: Answer) -> Iterator[Piece]:
        if not self._scheduler.free:
            slots = self._scheduler.engine.slots
            raise InputError(f"all {slots} slots are in answers that were not read to their end: close those iterators")
        self._scheduler.add(answer)
        mine = self._found[id(answer)] = deque()
        try:
            while mine or answer.finish is None:
                if not mine:
                    for other, piece in self._scheduler.step():
                        self._found[id(other)].append(piece)
                    continue
                piece = mine.popleft()
                if isinstance(piece, InputError):
                    raise piece
                yield piece
        finally:
            self._scheduler.remove(answer)
            del self._found[id(answer)]

    def generate(
        self, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]], *, stream: bool = False,
        max_tokens: int | None = None, stop: str | Sequence[str] = (), logprobs: int | None = None,
        json_schema: Any = None, regex: str | None = None, grammar: str | None = None, special: bool = False,
        adapter: int | None = None, strength: float = 1.0, draft: Engine | str | None = None,
        sampling: Sampling | None = None, **settings: Any,
    ) -> str | Iterator[Piece]:  # fmt: skip
        """The text that follows ``prompt``, a text, tokens or messages; with ``stream`` its pieces as they come.

        ``settings`` are those of ``Sampling``, as ``temperature``. The answer ends with a token that the model ends
        answers with, before one of the texts ``stop``, after ``max_tokens``, or where the context is full. One of
        ``json_schema``, ``regex`` and ``grammar`` says what it has to be (``pip install 'luminal[grammar]'``).
        ``adapter`` is the number of one that is loaded. ``draft`` is where drafts come from: ``lookup`` or another
        model. Raises InputError for what does not fit.
        """
        if sampling is not None and settings:
            raise InputError(f"expected either sampling or its settings, found both: {', '.join(settings)}")
        unknown = sorted(set(settings) - set(Sampling.__dataclass_fields__))
        if unknown:
            raise InputError(
                f"there is no setting {unknown[0]!r}; there are {', '.join(Sampling.__dataclass_fields__)}"
            )
        options = Options(
            max_tokens, sampling or Sampling(**settings), (stop,) if isinstance(stop, str) else tuple(stop), logprobs,
            Constraint.of(json_schema, regex, grammar), special, adapter=adapter, strength=strength,
            draft=draft,
        )  # fmt: skip
        pieces = self.stream(prompt, options)
        return pieces if stream else "".join(piece.text for piece in pieces)
