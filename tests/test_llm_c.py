"""Text from C alone: the program of examples/llm, with an exported library and the table of a tokenizer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers import models as tables

import luminal.llm
from tests.language_support import bytes_tokenizer
from tests.llm_support import CONTEXT, VOCABULARY, models
from tests.runtime_example import run

SOURCE = Path(__file__).resolve().parents[1] / "examples" / "llm" / "generate.c"
PROMPT = [int(token) for token in np.random.default_rng(3).integers(5, VOCABULARY, 75)]
COUNT = 80  # beyond where the ring wraps, which has 128 rows


class Built(NamedTuple):
    program: Path
    answer: list[int]  # the likeliest tokens after the prompt


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """With a window in its layers, and room for two sequences, drafts and adapters."""
    model = luminal.llm.compile(
        models("mistral").single, slots=2, chunk=32, context=CONTEXT, speculate=2, adapters=1, rank=4, name="decoder"
    )
    folder = model.export(tmp_path_factory.mktemp("decoder"), python_module=False)
    model.prefill(0, PROMPT)
    answer: list[int] = []
    while len(answer) < COUNT:
        answer.append(int(model.logits(0).argmax()))
        model.decode({0: answer[-1]})
    program = folder.parent / "generate"
    run(["cc", "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", SOURCE, f"-I{folder}", f"-L{folder}", "-ldecoder",
         f"-Wl,-rpath,{folder}", "-o", program])  # fmt: skip
    return Built(program, answer)


def generated(built: Built, tokenizer: Path, *more: Any) -> subprocess.CompletedProcess[bytes]:
    given = " ".join(map(str, PROMPT)).encode()
    return subprocess.run([built.program, tokenizer, *map(str, more)], input=given, capture_output=True, check=False)


def sentence_pieces() -> Tokenizer:
    """The table and the decoder that Llama 2 has, of the size of the model's vocabulary."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(128))]
    words += [f"\u2581w{k}" if k % 3 else f"\u00e9{k}\u2581" for k in range(VOCABULARY - len(words))]
    made = Tokenizer(tables.BPE({word: k for k, word in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>"))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    made.add_special_tokens([AddedToken(word, special=True) for word in words[:3]])
    return made


@pytest.mark.parametrize("kind", ["bytes", "pieces", "unigram"])
def test_the_text_is_that_of_the_tokenizer(kind: str, built: Built, tmp_path: Path) -> None:
    if kind == "unigram":
        words = [(f'\u2581"{k}\\' if k % 2 else f"{k}\n", -float(k)) for k in range(VOCABULARY)]
        tokenizer = Tokenizer(tables.Unigram(words, unk_id=0))
        tokenizer.decoder = decoders.Metaspace()
    else:
        tokenizer = bytes_tokenizer() if kind == "bytes" else sentence_pieces()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    if kind == "pieces":  # the other spelling of texts, in ASCII alone
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8"))))
    done = generated(built, path, COUNT)
    assert done.returncode == 0, done.stderr
    wanted = tokenizer.decode(PROMPT + built.answer) + "\n"
    assert len(set(built.answer)) > 30 and len(wanted) > 150
    assert done.stdout.decode(errors="replace") == wanted


def test_it_ends_at_the_end_and_says_what_is_wrong(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = sentence_pieces()
    tokenizer.save(str(path))
    end = built.answer[10]
    known = built.answer[: built.answer.index(end)]
    done = generated(built, path, COUNT, end)
    assert done.stdout.decode(errors="replace") == tokenizer.decode(PROMPT + known) + "\n"
    done = generated(built, tmp_path / "nowhere", COUNT)
    assert done.returncode == 1 and done.stderr.startswith(b"cannot read ")
    done = generated(built, path, CONTEXT)
    assert done.returncode == 1 and b"decode: " in done.stderr
    for damaged in ('{"model": {"vocab": {"a": x}}}', '{"model": {"vocab"', "[]", '{"model": {"vocab": {}}}'):
        path.write_text(damaged)
        done = generated(built, path, 1)
        assert done.returncode == 1 and done.stderr, damaged
