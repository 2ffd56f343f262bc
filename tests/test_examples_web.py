"""The example of a web page (examples/web): a small model in the place of MiniLM, in headless Chromium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers.implementations import BertWordPieceTokenizer
from torch import nn

import luminal
from tests import browser, drawn

pytestmark = pytest.mark.skipif(browser.program() is None, reason="needs Chromium: install Debian's package chromium")

WEB = Path(__file__).resolve().parents[1] / "examples" / "web"
PIECES = """[PAD] [UNK] [CLS] [SEP] the cat sits out ##side . a man is play ##ing guitar ##doors some ##body ##s an in
    ##stru ##ment cafe , ! naive u ##ni""".split()  # noqa: SIM905
WIDTH = 16


class Sentences(nn.Module):
    """MiniLM's interface: hidden states, and a vector of length one for each sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(len(PIECES), WIDTH), nn.Embedding(2, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.mix(self.words(input_ids) + self.kinds(token_type_ids)))
        attended = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * attended).sum(1) / attended.sum(1)
        return hidden, nn.functional.normalize(mean, dim=1)


@pytest.fixture(scope="module")
def model() -> Sentences:
    found = Sentences().eval()
    drawn.draw(found, seed=0, spread=0.5)
    return found


@pytest.fixture(scope="module")
def folder(model: Sentences, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's files, with the model as examples/web/README.md puts it there."""
    made = tmp_path_factory.mktemp("page") / "web"
    shutil.copytree(WEB, made, ignore=shutil.ignore_patterns("minilm"))
    ids = torch.ones(1, 8, dtype=torch.int64)
    names = ("input_ids", "attention_mask", "token_type_ids")
    dims = {"seq": (1, 32), **{name: {1: "seq"} for name in names}}
    compiled = luminal.compile(model, (ids, ids, 0 * ids), dims=dims, name="minilm", target="wasm32")
    assert isinstance(compiled, luminal.Module)
    compiled.export(made / "minilm")
    (made / "minilm" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    return made


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[browser.Page]:
    with browser.served(folder) as address, browser.browser() as found:
        found.open(address)
        yield found


def shown(page: browser.Page) -> list[list[str]]:
    rows = page.value("[...document.querySelectorAll('#pairs tr')].map(row => [...row.cells].map(c => c.textContent))")
    return [list(row) for row in rows]


def expected(model: Sentences, folder: Path, sentences: list[str]) -> dict[frozenset[str], float]:
    """Cosines by pairs, from PyTorch in float64 and the words of the package tokenizers."""
    tokenizer = BertWordPieceTokenizer(str(folder / "minilm" / "vocab.txt"), lowercase=True)
    vectors = []
    with torch.no_grad():
        wide = model.double()
        for sentence in sentences:
            ids = torch.tensor([tokenizer.encode(sentence).ids])
            vectors.append(wide(ids, torch.ones_like(ids), torch.zeros_like(ids))[1][0].numpy())
        model.float()
    pairs = zip(combinations(sentences, 2), combinations(vectors, 2), strict=True)
    return {frozenset(names): float(np.dot(a, b)) for names, (a, b) in pairs}


def check(page: browser.Page, cosines: dict[frozenset[str], float]) -> None:
    rows = shown(page)
    assert {frozenset(row[1:]) for row in rows} == set(cosines)
    values = [float(row[0]) for row in rows]
    assert values == sorted(values, reverse=True)
    for text, one, other in rows:
        assert abs(float(text) - cosines[frozenset((one, other))]) < 6e-4  # three digits are shown


def test_the_page_compares_its_sentences(page: browser.Page, model: Sentences, folder: Path) -> None:
    sentences = page.value("document.getElementById('sentences').value").split("\n")
    assert len(sentences) == 4
    check(page, expected(model, folder, sentences))
    assert "4 sentences in" in page.value("document.getElementById('state').textContent")
    assert not [problem for problem in page.problems if not problem.startswith("http")]


def test_the_page_compares_what_is_typed(page: browser.Page, model: Sentences, folder: Path) -> None:
    """Accents, signs, pieces of words, and words that the vocabulary does not have."""
    sentences = ["The naïve cat, outside!", "A Café is playing guitars", "university", "somebody sits ..."]
    page.value(f"document.getElementById('sentences').value = {json.dumps(chr(10).join(sentences))}")
    page.value("document.getElementById('compare').click()")
    check(page, expected(model, folder, sentences))
