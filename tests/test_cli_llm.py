"""The commands of language models on a small one: compiled, exported, generated with, chatted with, served."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import transformers
import typer
from typer.testing import CliRunner

import luminal.llm
from luminal import options
from luminal.cli import app
from luminal.core.errors import InputError, ModelError
from luminal.llm import tokens
from luminal.llm.generate import Options
from luminal.llm.sampling import Sampler, Sampling
from tests.language_support import write_folder


@pytest.fixture(scope="module")
def reference() -> Any:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=600, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.4,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = luminal.llm.compile(reference, context=128, slots=2, chunk=32, speculate=3)
    files = write_folder(tmp_path_factory.mktemp("files"))
    made.files |= {name: (files / name).read_bytes() for name in tokens.FILES if (files / name).is_file()}
    return made.export(tmp_path_factory.mktemp("exported") / "small", python_module=False)


def greedy(reference: Any, prompt: list[int], count: int) -> list[int]:
    given = torch.tensor([prompt])
    made = reference.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False, eos_token_id=[1, 4],
        pad_token_id=0,
    )  # fmt: skip
    return list(made[0, len(prompt) :].tolist())


def run(*arguments: Any, text: str | None = None, code: int = 0) -> Any:
    found = CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)
    assert found.exit_code == code, found.output + found.stderr
    return found


def test_what_is_exported_is_not_compiled_again(folder: Path) -> None:
    with pytest.raises(ModelError, match="is compiled already: luminal"):
        luminal.llm.compile(folder)


@dataclass(frozen=True)
class Group:
    size: Annotated[int, typer.Option()]
    names: list[str] = field(default_factory=list)


def test_options_of_a_group_without_defaults_have_to_be_given() -> None:
    found: list[Group] = []

    def command(group: Group) -> None:
        found.append(group)

    made = typer.Typer()
    made.command()(options.grouped(command))
    assert CliRunner().invoke(made, []).exit_code == 2
    assert CliRunner().invoke(made, ["--size", "3"]).exit_code == 0 and found == [Group(3)]


def test_generated_text_is_transformers_s(folder: Path, reference: Any) -> None:
    lm = luminal.llm.load(folder)
    for text in ("Hello", "Compile from PyTorch"):
        prompt = lm.tokenizer.encode(text)
        expected = greedy(reference, prompt, 40)
        assert [piece.token for piece in lm.generator.stream(prompt, Options(max_tokens=40))] == expected
        assert run("generate", folder, text, "--raw", "--max-tokens", 40).stdout == lm.tokenizer.decode(expected) + "\n"
    chat = lm.tokenizer.chat_tokens([{"role": "user", "content": "Hello"}])
    found = run("generate", folder, "-", "--max-tokens", 20, text="Hello")
    assert found.stdout == lm.tokenizer.decode(greedy(reference, chat, 20)) + "\n"
    assert re.search(rf"prompt of {len(chat)} tokens in .* answer of \d+ tokens", found.stderr)


def test_a_library_draws_from_its_own_logits(folder: Path) -> None:
    lm = luminal.llm.load(folder)
    lm.prefill(1, [9, 8, 7])
    logits = lm.logits(1)
    taken = {lm.sample({1: Sampler(Sampling(1.0, top_k=3, seed=seed), 600)})[1] for seed in range(60)}
    assert taken == set((-logits).argsort()[:3].tolist())
    assert lm.sample({1: Sampler(Sampling(), 600)}) == {1: int(logits.argmax())}
    with pytest.raises(InputError, match="slot 0: expected a token since it was emptied"):
        lm.sample({0: Sampler(Sampling(), 600)})


def test_a_chat_goes_on_and_begins_anew(folder: Path, reference: Any) -> None:
    tokenizer = tokens.load(folder)
    found = run("chat", folder, "--max-tokens", 6, text="Hello\nmore\n\nHello\n")
    messages: list[dict[str, str]] = []
    texts = []
    for line in ("Hello", "more"):
        messages.append({"role": "user", "content": line})
        texts.append(tokenizer.decode(greedy(reference, tokenizer.chat_tokens(messages), 6)))
        messages.append({"role": "assistant", "content": texts[-1]})
    assert found.stdout == "".join(f"{text}\n" for text in (*texts, texts[0]))
    assert "a new chat" in found.stderr
    long = run("chat", folder, text="a b c d e f " * 40 + "\n")
    assert "there is room for 128 with the answer" in " ".join(long.stderr.split())


def test_drafts_change_no_answer_and_are_counted(folder: Path, reference: Any) -> None:
    tokenizer = tokens.load(folder)
    expected = tokenizer.decode(greedy(reference, tokenizer.encode("Hello"), 40))
    for draft in ("lookup", folder):
        found = run("generate", folder, "Hello", "--raw", "--max-tokens", 40, "--draft", draft)
        assert found.stdout == expected + "\n"
        said = re.search(r"; (\d+) of (\d+) drafts accepted", " ".join(found.stderr.split()))
        assert said is not None and 0 <= int(said[1]) <= int(said[2])
        assert draft == "lookup" or 0 < int(said[1]) == int(said[2])  # the same model is always right
    chat = run("chat", folder, "--max-tokens", 6, "--draft", "lookup", text="Hello\n")
    assert chat.stdout == run("chat", folder, "--max-tokens", 6, text="Hello\n").stdout
    assert "drafts accepted" in " ".join(chat.stderr.split())


def test_options_that_do_not_fit_are_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "schema").write_text("{")
    for arguments, message in (
        (("generate", tmp_path / "none", "a"), "no model at"),
        (("generate", folder, "a", "--context", "64"), "--context: .* is compiled already"),
        (("generate", folder, "a", "--cache", "int8"), "--cache: .* is compiled already"),
        (("generate", folder, "a", "--activations", "q8"), "--activations: .* is compiled already"),
        (("generate", folder, "a", "--speculate", "2"), "--speculate: .* is compiled already"),
        (("generate", folder, "a", "--draft", tmp_path / "none"), "no model at"),
        (("generate", folder, "a", "--temperature", "-1"), "temperature: expected a number, at least 0"),
        (("generate", folder, "a", "--raw", "--system", "b"), "--system: a prompt as it is has no place for it"),
        (("generate", folder, "a", "--system", "b"), "no system messages here"),
        (("generate", folder, "a", "--json-schema", tmp_path / "schema"), "a JSON schema: expected JSON"),
        (("generate", folder, "a", "--json-schema", tmp_path / "none"), "--json-schema: cannot read"),
    ):
        assert re.search(message, " ".join(run(*arguments, code=2).stderr.split())), message


def test_serve_ends_when_it_is_told_to(folder: Path, reference: Any) -> None:
    httpx = pytest.importorskip("httpx", reason="no httpx is installed: pip install 'luminal[test]'")
    pytest.importorskip("uvicorn", reason="no uvicorn is installed: pip install 'luminal[serve]'")
    command = [sys.executable, "-m", "luminal", "serve", str(folder), "--port", "0", "--name", "tiny"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = re.search(r"listening at (http://\S+)", process.stderr.readline())
            assert found is not None
            url = found[1]
            asked = {"model": "tiny", "prompt": "Hello", "max_tokens": 10, "temperature": 0}
            answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
            tokenizer = tokens.load(folder)
            expected = tokenizer.decode(greedy(reference, tokenizer.encode("Hello"), 10))
            assert answer.json()["choices"][0]["text"] == expected
            with httpx.stream("POST", f"{url}/v1/completions", json={**asked, "stream": True, "max_tokens": 90}) as s:
                process.send_signal(signal.SIGTERM)
                lines = [line for line in s.iter_lines() if line]
            assert lines[-1] == "data: [DONE]" and json.loads(lines[-2][6:])["choices"][0]["finish_reason"]
            assert process.wait(60) == 0
        finally:
            process.kill()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
