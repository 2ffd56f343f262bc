"""A compiled language model: sequences in slots, each at its own position, whose cache is the state of a library."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from luminal import destination
from luminal import module as modules
from luminal.core.data import Array
from luminal.core.errors import ArtifactError, InputError
from luminal.core.ir import Graph
from luminal.frontends.llm import adapters
from luminal.frontends.llm.cache import BLOCK, Room
from luminal.frontends.llm.config import Attention, Config
from luminal.frontends.llm.files import json_object
from luminal.frontends.llm.sampling import ROWS
from luminal.llm import tokens as texts
from luminal.llm.generate import Generator
from luminal.llm.sampling import Sampler, Slots
from luminal.module import Module
from luminal.progress import Progress

DESCRIPTION = "language_model.json"
_VERSION = 3
_STATE = "luminal.llm state 1"  # what a file of saved slots says that it is


@dataclass(frozen=True)
class Shape:
    """What there is to know of a language model besides its library: the size of its ``vocabulary``, what it has room
    for, and the windows of its layers of attention; those that are None see everything. Where slots go ``one_by_one``,
    a step is of one. Where it is ``recurrent``, of what layers keep only the last position's value is known."""

    vocabulary: int
    room: Room
    windows: tuple[int | None, ...]
    one_by_one: bool = False
    recurrent: bool = False

    @classmethod
    def of(cls, config: Config, room: Room) -> Shape:
        windows = {layer.mixer.window for layer in config.layers if isinstance(layer.mixer, Attention)}
        sizes = tuple(sorted(windows, key=lambda w: (w is None, w)))
        return cls(config.vocabulary, room, sizes, recurrent=config.recurrent)

    @classmethod
    def read(cls, text: str, where: str) -> Shape:
        try:
            given = json.loads(text)
            if given["version"] != _VERSION:
                raise ArtifactError(f"{where}: expected version {_VERSION}, found {given['version']}: export it again")
            room, windows = Room(**given["room"]), tuple(given["windows"])
            flags = (bool(given.get(name, False)) for name in ("one_by_one", "recurrent"))
            return cls(given["vocabulary"], room, windows, *flags)
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{where} does not describe a language model ({error}): export it again") from error

    def text(self) -> str:
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1)

    def rows(self) -> list[int]:
        """The different numbers of rows that the layers have."""
        return sorted({self.room.rows(window) for window in self.windows})

    def keeps(self, length: int, written: int) -> bool:
        """Whether what is kept of ``written`` tokens is enough for a sequence of the first ``length``: rings still have
        what that sees, and of a recurrence it is the last state."""
        if self.recurrent and 0 < length < written:
            return False
        rings = [(w, rows) for w in self.windows if w is not None and (rows := self.room.rows(w)) < self.room.context]
        return length == 0 or all(max(0, length - window + 1) >= written - rows for window, rows in rings)


@dataclass(frozen=True)
class Uncompiled:
    """A language model before it is compiled: its library's ``name``, the graph of each entry, what ``luminal.compile``
    rounds their ``weights`` to, and the ``files`` that it keeps of its source, by name."""

    name: str
    graphs: Mapping[str, Graph]
    weights: str | None
    shape: Shape
    files: Mapping[str, bytes]


@dataclass
class Slot:
    """A sequence: its ``length``, up to where rows were ``written`` since it was empty, and whether the kept logits are
    those of its last token. It is computed with an ``adapter``, -1 for none, of a ``strength``."""

    length: int = 0
    written: int = 0
    fresh: bool = False
    adapter: int = -1
    strength: float = 0.0


class LanguageModel:
    """A compiled language model, an ``Engine``. ``module`` is its library, ``files`` are others that belong to the
    model, such as those of its tokenizer, by name."""

    def __init__(self, module: Module, shape: Shape, files: Mapping[str, bytes] | None = None) -> None:
        self.module = module
        self.shape = shape
        self.files = dict(files or {})
        self._loaded: dict[int, dict[str, Array]] = {}  # the inputs that put each adapter into its place
        self._slots = [Slot() for _ in range(shape.room.slots)]
        self._entries = {name: module[name] for name in module.entries}
        longest = max([shape.room.slots, *shape.rows()])
        self._settings = Slots(shape.room.slots, shape.vocabulary)
        self._ahead = Slots(shape.room.speculate + 1 if shape.room.speculate else 0, shape.vocabulary)
        self._carrier = np.zeros(longest, np.uint8)  # what inputs are made of of which the shape alone is read

    def __repr__(self) -> str:
        room = self.shape.room
        sequences = f"{room.slots} sequence{'s' if room.slots > 1 else ''}"
        return f"<luminal language model {self.module.interface.name!r}: {sequences} of {room.context} tokens>"

    @property
    def vocabulary(self) -> int:
        return self.shape.vocabulary

    @property
    def context(self) -> int:
        """The most tokens of a sequence."""
        return self.shape.room.context

    @property
    def slots(self) -> int:
        """The number of sequences."""
        return self.shape.room.slots

    @property
    def speculate(self) -> int:
        """The most drafts of what comes next that one step verifies."""
        return self.shape.room.speculate

    def length(self, slot: int) -> int:
        """The number of tokens in a slot."""
        return self._slot(slot).length

    # ---- text --------------------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> texts.Tokenizer:
        """That of the model's files. Raises ModelError where there is none."""
        return texts.of(self.files, self.module.interface.name)

    @cached_property
    def generator(self) -> Generator:
        """Answers of this model, in all of its slots."""
        return Generator(self, self.tokenizer)

    def generate(self, prompt: Any, **options: Any) -> Any:
        """The text that follows ``prompt``, or with ``stream=True`` its pieces: see ``Generator.generate``. It uses all
        slots."""
        return self.generator.generate(prompt, **options)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """Append ``tokens`` to a slot; the logits after the last of them are kept. Raises InputError for tokens that
        are none, or more than there is room for; then nothing is appended."""
        found, given = self._slot(slot), self._tokens(tokens)
        self._check_room(slot, len(given))
        for start in range(0, len(given), self.shape.room.chunk):
            part = given[start : start + self.shape.room.chunk]
            sizes = self._sizes("prefill", slot, found.length + len(part), found.length)
            positions = np.array([found.length], np.int64)
            chosen = self._chosen([found])
            self._entries["prefill"].run({"tokens": part[None], "positions": positions, **chosen, **sizes})
            self._append(found, len(part))

    def decode(self, tokens: Mapping[int, int]) -> None:
        """Append a token to each of these slots, in one step; the logits after it are kept. Slots between them cost
        what they would if they had a token too. Raises InputError as ``prefill`` does."""
        if not isinstance(tokens, Mapping):
            raise InputError(f"expected the token of each slot, {{slot: token}}, found {tokens!r}")
        if not tokens:
            return
        for slot in tokens:
            self._check_room(slot, 1)
        if self.shape.one_by_one and len(tokens) > 1:
            self._tokens(list(tokens.values()))
            for slot, token in tokens.items():
                self.decode({slot: token})
            return
        first, count = min(tokens), max(tokens) - min(tokens) + 1
        given, positions = np.zeros((count, 1), np.int64), np.full(count, -1, np.int64)
        for slot, token in zip(tokens, self._tokens(list(tokens.values())), strict=True):
            given[slot - first], positions[slot - first] = token, self._slots[slot].length
        longest = max(self._slots[slot].length for slot in tokens)
        sizes = self._sizes("decode", first, longest + 1, longest)
        chosen = self._chosen(self._slots[first : first + count])
        self._entries["decode"].run({"tokens": given, "positions": positions, **chosen, **sizes})
        for slot in tokens:
            self._append(self._slots[slot], 1)

    def logits(self, slot: int) -> Array:
        """The logits that the last token of a slot left: ``float32[vocabulary]``. Raises InputError where it has none,
        or was rewound since."""
        self._check_fresh(slot)
        found: Array = self._entries["logits"].run(self._sizes("logits", slot, 1))["logits_row"]
        return found

    def sample(self, settings: Mapping[int, Sampler]) -> dict[int, int]:
        """The next token of each of these slots, chosen by its settings; -1 where none may come. Nothing is appended.
        Raises InputError as ``logits`` does."""
        for slot in settings:
            self._check_fresh(slot)
        samplers = settings.values()
        if all(sampler.is_plain for sampler in samplers):
            tokens = self._entries["likeliest"].run({})["token"]
        elif any(sampler.has_rows for sampler in samplers):
            tokens = self._entries["sample"].run(self._settings.filled(settings))["token"]
        else:
            filled = self._settings.filled(settings)
            given = {name: array for name, array in filled.items() if name not in ROWS}
            tokens = self._entries["draw"].run(given)["token"]
        return {slot: int(tokens[slot]) for slot in settings}

    def verify(self, slot: int, tokens: Sequence[int], samplers: Sequence[Sampler]) -> tuple[list[int], Array]:
        """Append a token and up to ``speculate`` drafts of what follows it to a slot, in one step. Returns what
        ``sample`` chooses after each of these tokens, by a sampler each, and the logits ``float32[tokens,
        vocabulary]``. Drafts that turn out wrong are to be rewound. Raises InputError as ``prefill`` does."""
        if not self.speculate:
            raise InputError("the model verifies no drafts: compile it with speculate=, the most of them in one step")
        found, given = self._slot(slot), self._tokens(tokens)
        if len(given) > self.speculate + 1 or len(samplers) != len(given):
            raise InputError(
                f"expected a token, up to {self.speculate} drafts and a sampler for each of them, found {len(given)} "
                f"tokens and {len(samplers)} samplers"
            )
        self._check_room(slot, len(given))
        settings = self._ahead.filled(dict(enumerate(samplers)))
        result = self._entries["verify"].run({
            "tokens": given[None], "positions": np.array([found.length], np.int64), **self._chosen([found]),
            **self._sizes("verify", slot, found.length + len(given), found.length),
            **{name: array[: len(given)] for name, array in settings.items()},
        })  # fmt: skip
        self._append(found, len(given))
        return [int(token) for token in result["token"]], result["scores"]

    # ---- adapters ----------------------------------------------------------------------------------------------------

    @property
    def adapters(self) -> int:
        """The number of adapters that there is room for."""
        return self.shape.room.adapters

    def load_adapter(self, number: int, folder: str | Path) -> None:
        """Put the adapter (LoRA) in a folder that PEFT has written into place ``number`` of those that there is room
        for, instead of what is there; slots that use that are emptied.

        Raises InputError where there is no such place, ModelError for a folder that is damaged or for another model,
        UnsupportedError for a kind of adapter that is not supported; then the place keeps what it has.
        """
        self._check_adapter(number)
        config = json_object(self.files.get("config.json", b"{}"), "config.json of the library")
        found = adapters.read(Path(folder), config, self.context, self.shape.room.rank)
        entry = next(entry for entry in self.module.interface.entries if entry.name == "adapt")
        given: dict[str, Array] = {"number": np.array([number], np.int64)}
        for spec in entry.inputs[1:]:
            role, _, part = spec.name.removesuffix("_new").rpartition(".lora_")
            pair = found.get(role)
            given[spec.name] = np.zeros(spec.shape, np.float32) if pair is None else pair["ab".index(part)]
        self._entries["adapt"].run(given)
        self._loaded[number] = given
        for slot, used in enumerate(self._slots):
            if used.adapter == number:
                self.rewind(slot, 0)

    def use_adapter(self, slot: int, number: int | None, strength: float = 1.0) -> None:
        """Compute an empty slot's sequence with an adapter, whose effect is multiplied by ``strength``; None: without.
        Raises InputError where the slot has tokens, which were computed otherwise, or the place has no adapter."""
        found = self._slot(slot)
        if number is not None:
            self._check_adapter(number)
            if number not in self._loaded:
                raise InputError(f"there is no adapter in place {number}: load one")
        if found.length:
            raise InputError(f"slot {slot}: expected no tokens where its adapter is set, found {found.length}: rewind")
        if isinstance(strength, bool) or not isinstance(strength, int | float) or not math.isfinite(strength):
            raise InputError(f"strength: expected a number, found {strength!r}")
        found.adapter, found.strength = (-1, 0.0) if number is None else (number, float(strength))

    def _check_adapter(self, number: int) -> None:
        if not self.adapters:
            raise InputError("the model has no room for adapters: compile it with adapters=, the number of them")
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < self.adapters:
            raise InputError(f"expected an adapter of 0 to {self.adapters - 1}, found {number!r}")

    def _chosen(self, slots: Sequence[Slot]) -> dict[str, Array]:
        """The inputs that say which adapters a call uses."""
        if not self.adapters:
            return {}
        return {
            "adapters": np.array([slot.adapter for slot in slots], np.int64),
            "strengths": np.array([slot.strength for slot in slots], np.float32),
        }

    # ---- sequences ---------------------------------------------------------------------------------------------------

    def rewind(self, slot: int, length: int) -> None:
        """Forget all but the first ``length`` tokens of a slot. Logits can be asked for only after the next token.

        Raises InputError where there are fewer, or where the ring of a window has lost what the last of them sees: a
        few tokens can always be taken back, up to ``chunk``, and all of them. A recurrence can take back all or none.
        """
        found = self._slot(slot)
        if not 0 <= length <= found.length:
            raise InputError(f"slot {slot}: expected a length of 0 to {found.length}, found {length}")
        if not self.shape.keeps(length, found.written):
            if self.shape.recurrent:
                raise InputError(
                    f"slot {slot}: a recurrence of {found.length} tokens keeps nothing of the first {length} alone: "
                    "rewind to 0 and prefill again, or fork or save the slot where others will begin"
                )
            raise InputError(
                f"slot {slot}: its windows no longer hold what token {length} sees, as {found.written} were written: "
                "rewind to 0 and prefill again"
            )
        if length < found.length:
            found.length, found.fresh = length, False
        found.written = found.written if length else 0

    def keeps(self, slot: int, length: int) -> bool:
        """Whether a slot can be rewound to ``length`` tokens."""
        found = self._slot(slot)
        return 0 <= length <= found.length and self.shape.keeps(length, found.written)

    def fork(self, source: int, target: int) -> None:
        """Let ``target`` hold what ``source`` holds, logits included. Its rows are copied."""
        found, _ = self._slot(source), self._slot(target)
        if source != target:
            self._write(target, self._read(source), found.length)
            self._slots[target] = replace(found)

    def reset(self) -> None:
        """Empty all slots, and what is left of NaN in their rows."""
        self.module.reset()
        for given in self._loaded.values():  # a reset takes them away, too
            self._entries["adapt"].run(given)
        for slot in range(self.slots):
            self.rewind(slot, 0)

    def save(self, path: str | Path, slots: Iterable[int] | None = None) -> None:
        """Write what these slots hold (None: all) to a file of numpy's ``npz`` format, atomically. Raises InputError
        where it cannot be written."""
        chosen = list(range(self.slots) if slots is None else slots)
        arrays = {f"{slot}.{name}": array for slot in chosen for name, array in self._read(slot).items()}
        head = {
            "kind": _STATE, "model": self._identity,
            "slots": {str(slot): asdict(self._slot(slot)) for slot in chosen},
        }  # fmt: skip
        path = destination.file(path, "path")
        with destination.writing(path, "path"):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(handle, "wb") as file:
                    np.savez(file, allow_pickle=False, head=np.array(json.dumps(head)), **arrays)
                os.replace(name, path)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(name)

    def restore(self, path: str | Path) -> None:
        """Let slots hold what a file of ``save`` has for them; the others stay. Raises ArtifactError for a file that is
        damaged, or that another model wrote; then no slot is changed."""
        where = f"the state in {str(path)!r}"
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            head = json.loads(str(arrays.pop("head")))
            kind, model = head["kind"], head["model"]
            slots = {int(slot): Slot(**fields) for slot, fields in head["slots"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
            raise ArtifactError(f"{where} cannot be read: {error}") from error
        except Exception as error:  # a damaged archive raises what zipfile and zlib have
            raise ArtifactError(f"{where} is damaged: {error}") from error
        if kind != _STATE or model != self._identity:
            raise ArtifactError(f"{where} belongs to another model, or to one with other room: compute it again")
        parts = {slot: self._stored(arrays, slot, found, where) for slot, found in slots.items()}
        for slot, found in slots.items():
            self._write(slot, parts[slot], found.length)
            self._slots[slot] = found

    @property
    def _identity(self) -> list[Any]:
        """What the rows of a cache belong to: weights, and how many rows there are of each kind."""
        return [self.module.manifest.get("content_id"), self.shape.vocabulary, self.shape.rows()]

    def _stored(self, arrays: Mapping[str, Array], slot: int, found: Slot, where: str) -> dict[str, Array]:
        """The arrays of one slot, checked."""
        lengths = (found.length, found.written)
        whole = all(type(n) is int for n in lengths) and 0 <= found.length <= found.written <= self.context
        whole = whole and type(found.adapter) is int and -1 <= found.adapter < max(1, self.adapters)
        whole = whole and type(found.strength) is float and math.isfinite(found.strength)
        if not (whole and type(found.fresh) is bool and 0 <= slot < self.slots):
            raise ArtifactError(f"{where} has a slot {slot} that is none of this model's: {found}")
        parts = {spec.name: arrays.get(f"{slot}.{spec.name}") for spec in self._outputs}
        spans = self._spans(found.length)
        for spec in self._outputs:
            wanted = tuple(n if isinstance(n, int) else _span(n, spans) for n in spec.shape)
            part = parts[spec.name]
            if part is None or part.shape != wanted or part.dtype != spec.dtype:
                raise ArtifactError(f"{where}: expected {spec.name!r} of slot {slot} as {spec.dtype}{list(wanted)}")
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def _outputs(self) -> tuple[Any, ...]:
        entry = next(entry for entry in self.module.interface.entries if entry.name == "read")
        return entry.outputs

    def _read(self, slot: int) -> dict[str, Array]:
        """What the library holds of a slot."""
        return self._entries["read"].run(self._sizes("read", slot, self._slot(slot).length))

    def _write(self, slot: int, parts: Mapping[str, Array], length: int) -> None:
        self._entries["write"].run({**parts, **self._sizes("write", slot, length)})

    # ---- arguments ---------------------------------------------------------------------------------------------------

    def _slot(self, slot: int) -> Slot:
        if not isinstance(slot, int | np.integer) or not 0 <= slot < self.slots:
            raise InputError(f"expected a slot of 0 to {self.slots - 1}, found {slot!r}")
        return self._slots[slot]

    def _tokens(self, tokens: Sequence[int]) -> Array:
        given = np.asarray(tokens)
        if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
            raise InputError(f"expected a list of one or more tokens, found {tokens!r}")
        wrong = given[(given < 0) | (given >= self.vocabulary)]
        if wrong.size:
            raise InputError(f"expected tokens of 0 to {self.vocabulary - 1}, found {wrong[0]}")
        return given.astype(np.int64)

    def _check_room(self, slot: int, more: int) -> None:
        length = self._slot(slot).length
        if length + more > self.context:
            raise InputError(
                f"slot {slot} holds {length} tokens: expected at most {self.context - length} more, found {more}; "
                "compile the model with a longer context, or rewind"
            )

    def _check_fresh(self, slot: int) -> None:
        if not self._slot(slot).fresh:
            raise InputError(f"slot {slot}: expected a token since it was emptied or rewound, found none")

    def _append(self, slot: Slot, count: int) -> None:
        slot.length += count
        slot.written = max(slot.written, slot.length)
        slot.fresh = True

    def _spans(self, length: int) -> dict[int, int]:
        """For each number of rows that layers have, how many blocks of them a sequence of ``length`` tokens fills."""
        return {rows: max(1, -(-min(rows, length) // BLOCK)) for rows in self.shape.rows()}

    def _sizes(self, entry: str, slot: int, length: int, past: int = 0) -> dict[str, Array]:
        """The inputs by whose shapes a call says its first slot, how many blocks of each kind of layer it reads, and
        how many tokens are in the cache before."""
        self._slot(slot)
        said = {"slot": slot, "past": past, **{f"span_{rows}": count for rows, count in self._spans(length).items()}}
        return {name: self._carrier[: said[name]] for name in self._entries[entry].input_names if name in said}

    # ---- folders -----------------------------------------------------------------------------------------------------

    def export(self, folder: str | Path, *, python_module: bool = True, progress: Progress | None = None) -> Path:
        """Write the library and what belongs to the model to ``folder``: see ``Module.export``."""
        made = self.module.export(folder, python_module=python_module, progress=progress)
        with destination.writing(made, "folder"):
            for name, content in {DESCRIPTION: self.shape.text().encode(), **self.files}.items():
                destination.written(content, made / name)
        return made


def _span(text: str, spans: Mapping[int, int]) -> int:
    """The rows that an axis has of which the size is said as a text: a number of times a number of blocks."""
    rows = next(rows for rows in spans if f"blocks_{rows}" in text)
    return BLOCK * spans[rows]


def load(folder: str | Path, *, threads: int = 0, verify: bool = False) -> LanguageModel:
    """Open a language model that was exported. Raises as ``luminal.load`` does, and ArtifactError where the folder does
    not hold a language model."""
    module = modules.load(folder, threads=threads, verify=verify)
    path = Path(folder) / DESCRIPTION
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"{str(folder)!r} holds a model, but no language model, of which {DESCRIPTION} would say more: open it by "
            "luminal.load"
        ) from error
    shape = Shape.read(text, str(path))
    known = set(module.manifest["files"]) | {DESCRIPTION}
    files = {
        item.name: item.read_bytes()
        for item in Path(folder).iterdir()
        if item.is_file() and item.name not in known and item.name in BELONGING
    }
    return LanguageModel(module, shape, files)


# Files of a checkpoint that an exported model keeps.
BELONGING = frozenset(
    {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    | {"added_tokens.json", "chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt", "tokenizer.model"}
)
