"""Benchmarks of language models: what is measured, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import apart, drafts, language_peers, llama, llm, serving
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
    assert [row[1:] for row in llm.beside_llama(llm.read(found))] == [
        ("q8_0", "float32", "1.50", "1.50", "1.50", ""), ("q8_0", "q8", "0.50", "0.50", "0.50", "1.2e-02"),
    ]  # fmt: skip
    page = llm.page(found)
    assert "Below it: TinyLlama-1.1B q8_0 by q8." in page
    assert not llm.beside_llama(llm.read(Results(tmp_path / "none.json")))


def test_runtimes_of_their_own_are_beside_what_luminal_has(tmp_path: Path) -> None:
    found = Results(tmp_path / "page.json")
    found.put("tinyllama/f32/float32", asdict(speed(1e-3)))
    times = dict.fromkeys(WORK[:2], (0.003, 0.002))
    found.put("tinyllama/f32/eager", {"times": times, "version": "eager 1", "layers": 22})
    found.put("tinyllama/f32/inductor", {"times": times, "version": "inductor 1", "layers": 2})  # another model
    row = ("TinyLlama-1.1B", "f32", "eager 1", "float32", "3.00", "3.00", "", "")
    assert llm.beside_others(llm.read(found), found) == [row]
    assert "## Beside other runtimes" in llm.page(found) and "| 3.00 |" in llm.page(found)


def test_runtimes_that_are_not_installed_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = language_peers.Peer(("no_such_package", "json"), {}, language_peers.time_torch)
    monkeypatch.setitem(language_peers.PEERS, "other", made)
    assert language_peers.missing(["other"]) == {"other": ["no_such_package"]}
    monkeypatch.setattr(apart, "run", lambda module, options, python: language_peers.missing(options["missing"]))
    assert llm.installed(["eager", "other"], "python") == ["eager"]
    assert "without other: python lacks no_such_package" in capsys.readouterr().err


def test_steps_of_pytorch_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each step has as many tokens as it says, at its place; the module has as many weights as the shape."""
    monkeypatch.setattr(language_peers, "PLACES", (3, 7))
    monkeypatch.setattr(language_peers, "PROMPT", 5)
    monkeypatch.setattr(language_peers, "CONTEXT", 16)
    seen: list[tuple[tuple[int, ...], int]] = []
    made = language_peers.module

    def watched(shape: llama.Shape, kind: str) -> Any:
        model = made(shape, kind)

        def before(module: Any, given: Any, named: Any) -> None:
            seen.append((tuple(named["input_ids"].shape), int(named["cache"].layers[0].cumulative_length)))

        model.register_forward_pre_hook(before, with_kwargs=True)
        return model

    monkeypatch.setattr(language_peers, "module", watched)
    times = language_peers.time_torch(tmp_path, TINY, "float32", 1, 3)
    assert list(times) == list(WORK) and all(time.best > 0 for time in times.values())
    assert {((1, 1), 3), ((1, 1), 7), ((8, 1), 3), ((1, 5), 0)} <= set(seen)
    numbers = {tuple(p.shape) for p in made(TINY).parameters()}
    assert set(TINY.matrices().values()) <= numbers


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
