"""Benchmarks of language models: what is measured, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import drafts, llama, llm, serving
from benchmarks.language import SHAPES, WORK, Speed
from benchmarks.results import Results
from tests.language_support import engine

pytest.importorskip("gguf", reason="not installed: pip install 'luminal[llm]'")
for package in ("uvicorn", "starlette", "prometheus_client"):
    pytest.importorskip(package, reason="not installed: pip install 'luminal[serve]'")

TINY = llama.Shape("llama", 96, 64, 96, 1, 2, 2)


def speed(seconds: float, beside: float | None = None) -> Speed:
    theirs = {} if beside is None else {what: (beside, beside) for what in WORK if not what.startswith("decode 8")}
    needed = dict.fromkeys(WORK[:2], 1000000.0)
    return Speed(22, 2, dict.fromkeys(WORK, (seconds, seconds)), theirs, needed, 1e9, 0.5, 1 << 20, 1.0, "llama 1")


def test_rows_say_how_activations_are_computed(tmp_path: Path) -> None:
    found = Results(tmp_path / "page.json")
    found.put("tinyllama/q8_0/float32", asdict(speed(1e-3, 1.5e-3)))
    found.put("tinyllama/q8_0/q8", asdict(replace(speed(2e-3, 1e-3), apart=0.0123)))
    rows = llm.cells(llm.read(found))
    assert [row[1:5] for row in rows] == [("q8_0", "float32", "1 ms", "100%"), ("q8_0", "q8", "2 ms", "50%")]
    assert [row[1:] for row in llm.beside(llm.read(found))] == [
        ("q8_0", "float32", "1.50", "1.50", "1.50", ""), ("q8_0", "q8", "0.50", "0.50", "0.50", "1.2e-02"),
    ]  # fmt: skip
    page = llm.page(found)
    assert "Below it: TinyLlama-1.1B q8_0 by q8." in page
    assert not llm.beside(llm.read(Results(tmp_path / "none.json")))


def test_activations_are_rounded_where_llama_cpp_rounds_them() -> None:
    assert llm.holds("tinyllama", "q8_0", "q8") and llm.holds("tinyllama", "f32", "float32")
    assert not llm.holds("tinyllama", "f32", "q8") and not llm.holds("tinyllama", "bf16", "q8")
    assert not llm.holds("qwen", "q4_k", "float32")  # its rows are no whole blocks of 256


def test_clients_of_a_server_and_the_library_make_as_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", ("Tiny", TINY))
    monkeypatch.setattr(serving, "PROMPT", 3)
    served, alone = serving.measure("tiny", "q8_0", layers=0, streams=2, tokens=4, threads=1, runs=1)
    assert len(served) == len(alone) == 1 and min(*served, *alone) > 0


def test_drafts_are_timed_with_the_tokens_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is right is accepted; an edited text is found again by lookup."""
    monkeypatch.setattr(drafts, "DRAFTS", (3,))
    monkeypatch.setattr(drafts, "PIECES", 600)
    model, small = (drafts.Told(engine(slots, context=400, speculate=most)) for slots, most in ((3, 3), (1, 0)))
    rows = drafts.timed(model, small, prompt=200, tokens=24, right=1.0, runs=1, watch=lambda done: None)
    found = {(row.text, row.source): row.counts for row in rows}
    assert found["code", None].proposed == 0
    assert all(counts.accepted == counts.proposed >= 15 for (_, source), counts in found.items() if source == "a model")
    assert found["edited", "lookup"].accepted > 8
    table = drafts.cells(rows)
    assert len(table) == 9 and {row[6] for row in table if row[1] == "none"} == {"1.00"}
