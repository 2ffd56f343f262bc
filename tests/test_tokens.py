"""Tokenizers, chat templates and streaming of text, against tokenizers, transformers and SentencePiece."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers

from luminal.core.errors import InputError, ModelError
from luminal.llm import gguf_vocabulary, tokens
from luminal.llm.template import Template
from luminal.llm.text import Stops, Stream
from tests.language_support import SPECIAL, TEMPLATE, TEXT, by_number, bytes_tokenizer, write_folder

TEXTS = [
    "", " ", "Hello world", "  two  spaces\n\n\tand a tab ", "naïve café 12345, 3.14", "日本語 текст 🙂👩‍👩‍👧 e\u0301",
    "I'm we'll THEY'RE x's\r\n\r\n  end", "<|user|>hi<|end|>", "#include <x>\n    return a->b;", TEXT,
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_gives_tokens_as_transformers_does(folder: Path) -> None:
    own, other = tokens.load(folder), transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for text in TEXTS:
        assert own.encode(text) == other.encode(text)
        assert own.decode(own.encode(text)) == other.decode(other.encode(text), skip_special_tokens=True)
    assert own.decode(own.encode("<s>a</s>"), special=True) == "<s>a</s>"
    assert own.size == len(other) and own.token("<|end|>") == 4 and own.token("no such token") is None
    assert own.stops == {1, 4} and own.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokens.load(folder / "tokenizer.json").encode("Hello") == own.encode("Hello")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected a file tokenizer.json"):
        tokens.load(tmp_path)
    write_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text("[1, 2]")
    with pytest.raises(ModelError, match=r"generation_config.json: expected an object of JSON, found list"):
        tokens.load(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": ["x"]}')
    with pytest.raises(ModelError, match=r"eos_token_id: expected a token's number, or a list of them, found \['x'\]"):
        tokens.load(tmp_path)
    (tmp_path / "generation_config.json").write_bytes(b"\xff{")
    with pytest.raises(ModelError, match=r"generation_config.json: expected a file of JSON"):
        tokens.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ModelError, match="the tokenizer cannot be read"):
        tokens.load(tmp_path)


# ---- chat templates --------------------------------------------------------------------------------------------------

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "  Hello <b>&</b> "}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "ü🙂"}],
]
TEMPLATES = {
    "tests": TEMPLATE,
    "loops": "{% for m in messages %}{% if loop.index0 > 5 %}{% break %}{% endif %}{{ loop.index }}:"
    "{{ m['role'] | upper }}{{ '\\n' }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content|length %}"
    "{% endfor %}{{ ns.n }} {{ messages | tojson(indent=2) }} {{ messages[0] | tojson }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "blocks": "{%- for m in messages -%}\n    {%- if m.role == 'user' %}\n  [{{ m.content }}]\n{% endif %}\n"
    "{% endfor %}",
    "macros": "{% macro show(m) %}<{{ m.content }}>{% endmacro %}{{ show(messages[-1]) }}{{ eos_token }}",
}


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_templates_are_rendered_as_transformers_does(source: str, prompt: bool) -> None:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    other = transformers.PreTrainedTokenizerFast(tokenizer_object=bytes_tokenizer(), chat_template=source, **special)
    tools = [{"type": "function", "function": {"name": "f", "description": "ü <&>", "parameters": {}}}]
    for chat in CHATS:
        for given in (None, tools):
            expected = other.apply_chat_template(chat, tools=given, tokenize=False, add_generation_prompt=prompt)
            assert Template(source, special).render(chat, prompt=prompt, tools=given) == expected


def test_a_chat_becomes_tokens_with_special_ones_once(folder: Path) -> None:
    found = tokens.load(folder).chat_tokens(CHATS[0])
    assert found[:2] == [0, 2] and found[-1] == 3 and found.count(0) == 1


def test_a_template_for_tools_is_taken_where_there_are_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0] }}"}]
    own = tokens.load(write_folder(tmp_path, chat_template=named))
    assert (own.chat(CHATS[0]), own.chat(CHATS[0], tools=["f"])) == ("plain", "f")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert tokens.load(tmp_path).chat(CHATS[0]) == "file"


def test_a_template_can_do_no_harm() -> None:
    """What reaches Python's insides, and what never ends, is refused with a sentence."""
    for source in (
        "{{ messages.__class__ }}x{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for a in range(9999) %}{% for b in range(9999) %}0123456789abcdef{% endfor %}{% endfor %}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
    ):
        with pytest.raises(InputError, match="chat template"):
            Template(source, {}).render(CHATS[0])
    with pytest.raises(InputError, match="chat template cannot be read"):
        Template("{% for %}", {})
    with pytest.raises(InputError, match="has no chat template"):
        tokens.Tokenizer(bytes_tokenizer()).chat(CHATS[0])


# ---- GGUF ------------------------------------------------------------------------------------------------------------


def metadata(**changes: Any) -> dict[str, Any]:
    """That of a file with the tests' byte-level tokenizer."""
    made = json.loads(bytes_tokenizer().to_str())
    texts = by_number(bytes_tokenizer())
    values = {
        "model": "gpt2", "tokens": texts, "token_type": [3] * len(SPECIAL) + [1] * (len(texts) - len(SPECIAL)),
        "merges": [" ".join(pair) for pair in made["model"]["merges"]], "bos_token_id": 0, "eos_token_id": 1,
        "eot_token_id": 4, **changes,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}


def test_a_byte_level_vocabulary_gives_the_same_tokens() -> None:
    own, other = tokens.load(metadata()), bytes_tokenizer()
    for text in TEXTS:
        assert own.encode(text) == other.encode(text).ids
        assert own.decode(own.encode(text)) == other.decode(other.encode(text).ids)
    assert own.stops == {1, 4} and own.special == {"bos_token": "<s>", "eos_token": "</s>"}
    around = tokens.load(metadata(add_bos_token=True, add_eos_token=True))
    assert around.encode("a") == [0, *own.encode("a"), 1] and around.encode("a", special=False) == own.encode("a")
    arrays = {"token_type": np.array([3] * 5 + [1] * 595, np.int32), "eos_token_id": np.uint32(1)}
    files = gguf_vocabulary.read({**metadata(**arrays), "tokenizer.chat_template": TEMPLATE}).files()
    again = tokens.of(files, "a file")
    assert again.encode(TEXT) == own.encode(TEXT) and again.stops == own.stops and again.template == TEMPLATE
    shown = tokens.load({**metadata(), "tokenizer.chat_template": TEMPLATE})
    assert shown.chat(CHATS[0]).startswith("<s>")


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "smollm"])
def test_words_are_cut_as_the_vocabulary_s_kind_says(name: str) -> None:
    """Against tokenizers' own classes with the words' pattern: the vocabulary decides nothing here, the cut does."""
    own = json.loads(tokens.load(metadata(pre=name)).to_json())
    words = Tokenizer.from_str(json.dumps(own)).pre_tokenizer
    found = [word for word, _ in words.pre_tokenize_str("I'm 12345 x\n\n  y 6789")]
    digits = [word for word in found if any(c.isdigit() for c in word)]
    alone = ["1", "2", "3", "4", "5", "6", "7", "8", "9"]
    assert [d.lstrip("Ġ") for d in digits] == (["123", "45", "678", "9"] if name == "llama-bpe" else alone)
    assert "I" in found and "'m" in found


def sentence_piece(tmp_path: Path, kind: str) -> Any:
    package = pytest.importorskip("sentencepiece", reason="no sentencepiece is installed, the reference of its models")
    (tmp_path / "text").write_text(TEXT * 2)
    package.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=700, model_type=kind,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
        character_coverage=0.995,
    )  # fmt: skip
    return package.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))


@pytest.mark.parametrize(("kind", "model"), [("bpe", "llama"), ("unigram", "t5")])
def test_a_vocabulary_of_sentencepiece_gives_its_tokens(kind: str, model: str, tmp_path: Path) -> None:
    other = sentence_piece(tmp_path, kind)
    count = range(other.get_piece_size())
    kinds = [6 if other.is_byte(k) else 3 if other.is_control(k) else 2 if other.is_unknown(k) else 1 for k in count]
    own = tokens.load(metadata(
        model=model, tokens=[other.id_to_piece(k) for k in count], scores=[other.get_score(k) for k in count],
        token_type=kinds, merges=None, bos_token_id=1, eos_token_id=2, eot_token_id=None, unknown_token_id=0,
    ))  # fmt: skip
    for text in TEXTS:
        if text.strip() and "<|" not in text:
            lines = [line for line in text.split("\n") if line.strip()]
            for line in lines:
                assert own.encode(line)[1:] == other.encode(line), line
                assert own.encode(line)[0] == 1
                assert own.decode(own.encode(line)) == other.decode(other.encode(line))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": "rwkv"}, "tokenizer.ggml.model: expected one of 'gpt2', 'llama', 't5', found 'rwkv'"),
    ({"model": None}, "tokenizer.ggml.model: expected one of"),
    ({"pre": "unheard-of"}, "tokenizer.ggml.pre: expected one of default"),
    ({"tokens": None, "token_type": None}, "tokenizer.ggml.tokens: expected the texts of tokens, found none"),
    ({"tokens": [3], "token_type": None}, "tokenizer.ggml.tokens: expected a list of str"),
    ({"token_type": [1]}, "tokenizer.ggml.token_type: expected one for each of 600 tokens, found 1"),
    ({"merges": ["ab"]}, "tokenizer.ggml.merges: expected pairs of texts"),
    ({"merges": ["a bnothing"]}, "the tokenizer cannot be read"),
    ({"eos_token_id": 600}, "eos_token_id: expected one of 600 tokens, found 600"),
    ({"tokens": ["\udcff"], "token_type": None}, "tokenizer.ggml.tokens: expected texts in UTF-8, found other bytes"),
    ({"model": "llama", "tokens": ["a", "b" * 10**6], "token_type": None, "scores": None, "merges": None},
     "token 1 has 1000000 letters: expected at most 512"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_metadata_that_is_wrong_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tokens.load(metadata(**changes))


# ---- streaming -------------------------------------------------------------------------------------------------------


def sentence_pieces() -> Tokenizer:
    """Bytes and characters, with SentencePiece's spaces."""
    rows = [("<unk>", 0.0), *((f"<0x{k:02X}>", -9.0) for k in range(256)), *((c, -2.0) for c in "▁abcdefgh")]
    made = Tokenizer(models.Unigram(rows, unk_id=0, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made


@pytest.mark.parametrize("kind", ["byte level", "SentencePiece"])
def test_a_stream_gives_the_text_in_whole_characters(kind: str) -> None:
    own = tokens.Tokenizer(bytes_tokenizer() if kind == "byte level" else sentence_pieces())
    text = "ab cd 🙂 é 日本語\u200d👩‍👩‍👧  ef" if kind == "byte level" else "ab cd 🙂 é 日本 ef"
    numbers, stream = own.encode(text), own.stream()
    parts = [stream.push(number) for number in numbers] + [stream.finish()]
    assert "".join(parts) == own.decode(numbers) == text
    assert all("\ufffd" not in part for part in parts)
    assert sum(bool(part) for part in parts) > 8


def test_a_stream_goes_on_after_its_context() -> None:
    """SentencePiece's first word has no space before it, one in the middle has."""
    own = tokens.Tokenizer(sentence_pieces())
    numbers = own.encode("ab cd ef")
    for at in range(1, len(numbers)):
        stream = own.stream(numbers[:at])
        rest = "".join([*(stream.push(n) for n in numbers[at:]), stream.finish()])
        assert own.decode(numbers[:at]) + rest == "ab cd ef"


def test_bytes_that_are_no_character_come_out_as_such() -> None:
    own = tokens.Tokenizer(sentence_pieces())
    for values in ([0x80] * 9, [0xF0, 0x9F], [0xF0, 0x9F, 0xC3], list(range(0x80, 0x100))):
        numbers = [own.token(f"<0x{value:02X}>") or 0 for value in values]
        stream = own.stream()
        parts = [stream.push(number) for number in numbers]
        assert "".join([*parts, stream.finish()]) == own.decode(numbers)


def test_a_stream_of_random_tokens_is_their_text() -> None:
    chosen = random.Random(4)
    own = tokens.Tokenizer(bytes_tokenizer())
    for _ in range(60):
        numbers = [chosen.randrange(5, own.size) for _ in range(40)]
        stream = own.stream()
        found = "".join([*(stream.push(n) for n in numbers), stream.finish()])
        assert found.replace("\ufffd", "") == own.decode(numbers).replace("\ufffd", "")


def test_nothing_is_shown_of_a_stop_string_or_after_it() -> None:
    chosen = random.Random(5)
    for _ in range(400):
        text = "".join(chosen.choice("abc") for _ in range(30))
        strings = ["".join(chosen.choice("abc") for _ in range(chosen.randrange(1, 5))) for _ in range(2)]
        stops, shown, at = Stops(strings), "", 0
        while at < len(text):
            size = chosen.randrange(1, 4)
            shown += stops.push(text[at : at + size])
            at += size
        shown += stops.finish()
        ends = [k for string in strings if (k := text.find(string)) >= 0]
        # A string that ends earlier is found first where it comes in another part.
        if not ends:
            assert shown == text and stops.found is None
        else:
            assert stops.found in strings and text.startswith(shown + stops.found)
            assert not any(string in shown for string in strings)
    with pytest.raises(InputError, match="expected texts that are not empty"):
        Stops([""])


def test_a_stream_needs_little_of_what_came_before() -> None:
    seen: list[int] = []

    def decode(numbers: Any) -> str:
        seen.append(len(numbers))
        return "".join(chr(97 + n % 26) for n in numbers)

    stream = Stream(decode)
    assert "".join(stream.push(n) for n in range(500)) == "".join(chr(97 + n % 26) for n in range(500))
    assert max(seen) < 10
