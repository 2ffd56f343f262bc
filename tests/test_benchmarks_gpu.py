"""The command that measures on GPUs, tried on an emulated one and on parts that are written here."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import page, parts, subjects
from benchmarks.gpu.machine import TARGET, Machine
from benchmarks.gpu.parts import EAGER, OURS, TUNED
from benchmarks.zoo.model import Model

EMULATED = Machine(TARGET, emulated=True, runs=1)


def run(keep: Path, only: str, **options: Any) -> None:
    given = {"target": TARGET, "write": None, "budget": 3600.0, "runs": 1, "prepare": False, "emulate": True}
    command.main(**{**given, **options}, only=only, keep=keep, listed=False)


def row(**changes: Any) -> dict[str, Any]:
    times = {OURS: 1e-3, EAGER: 3e-3, TUNED: 1.5e-3, "copy": 9e-4}
    found = {
        "what": "vit", "precision": "bf16", "bytes": 10**9, "operations": 10**12, "times": times,
        "errors": dict.fromkeys(times, 1e-3), "failed": {},
    }  # fmt: skip
    return {**found, **changes}


def part(*rows: dict[str, Any], card: str = "a card", **more: Any) -> dict[str, Any]:
    return {"card": card, "day": "2026-11-27", "rows": list(rows), "seconds": 3.0, **more}


def test_a_run_on_an_emulated_gpu_checks_times_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, run and compared in processes of their own; the second time nothing is left to do."""
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))  # put back at the end: the command sets it
    wrong = tmp_path / "wrong.md"
    with pytest.raises(typer.BadParameter):
        run(tmp_path, "nonsense")
    run(tmp_path, "products/bf16,sanitizer/memcheck", write=wrong)
    text = wrong.read_text()
    assert "emulated on a CPU: times say nothing" in text and "| 20 x 12 x 24 | bf16 |" in text
    kept = command.kept(tmp_path)
    assert [r["what"] for r in kept["products/bf16"]["rows"]] == ["20 x 12 x 24", "1 x 16 x 8"]
    for found in kept["products/bf16"]["rows"]:
        assert 0 < found["errors"][OURS] < 1e-2 and set(found["times"]) == {OURS, EAGER}
    monkeypatch.setattr(command, "measure", None)
    run(tmp_path, "products/bf16,sanitizer/memcheck")
    assert len(list((tmp_path / command.CACHE / "objects").glob("*/*.o"))) > 0


def test_a_part_that_is_stopped_or_fails_leaves_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "import time; print('[1]', flush=True); print('[1, 2]', flush=True); "
    monkeypatch.setattr(command, "command", lambda name, machine: ["python3", "-c", says + "time.sleep(60)"])
    found = command.measure("copy", EMULATED, 2.0)
    assert found["rows"] == [1, 2] and found["stopped"] == "after 2 s" and found["seconds"] < 30
    monkeypatch.setattr(command, "command", lambda name, machine: ["python3", "-c", says + "raise ValueError('no')"])
    found = command.measure("copy", EMULATED, 30.0)
    assert found["rows"] == [1, 2] and found["failed"] == "ValueError: no"


def test_what_never_ran_comes_before_what_went_wrong(tmp_path: Path) -> None:
    names = ["copy", "attention", "products/bf16", "train/bf16"]
    for name, found in (("copy", part(failed="no")), ("attention", part()), ("train/bf16", part(card="another"))):
        command.file_of(tmp_path, name).write_text(json.dumps(found))
    assert command.waiting(names, tmp_path, "a card") == ["products/bf16", "train/bf16", "copy"]


def test_a_spent_budget_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))
    clock = iter([0.0, 0.0, 100.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    asked: list[float] = []
    monkeypatch.setattr(command, "measure", lambda name, machine, seconds: asked.append(seconds) or part(row()))
    run(tmp_path, "products/bf16,attention,check", budget=120.0)
    assert asked == [120.0]


def test_the_page_names_ratios_faults_and_what_is_missing() -> None:
    kept = {
        "copy": part(row(what="softmax")),
        "model/vit/bf16": part(row(), row(precision="fp32", times={OURS: 2e-3}, failed={TUNED: "no memory"})),
        "check/vit": part({"what": "vit", "precision": "fp32", "error": 0.5, "wrong": ["y"]}),
        "sanitizer/memcheck": part({"what": "memcheck", "faults": 3, "status": 9}),
        "tune/vit": part(row(times={"default": 2e-3, "64 x 64, 32 bytes": 1e-3}, errors={"default": 1e-3})),
        "train/bf16": part(stopped="after 540 s"),
    }
    text = page.text(kept)
    assert "| softmax | bf16 | 1000 | 1111 | 333 | 667 | 0.90 | 1.0e-03 |" in text
    assert "| ViT-B/16, 224 | bf16 | 1 ms | 3 ms | 1.5 ms | 3.00 | 1.50 |" in text
    assert "Geometric mean over 1: 1.50 times as fast as max-autotune." in text
    assert "| vit | 64 x 64, 32 bytes | 2 ms | 1 ms | 2.00 |" in text
    assert "- train/bf16: stopped after 540 s" in text and "max-autotune fails: no memory" in text
    assert page.wrong(kept) == [
        "check/vit: fp32: y differ from the interpreter", "sanitizer/memcheck: 3 faults, exit code 9",
    ]  # fmt: skip


@pytest.mark.parametrize(("error", "count"), [(0.5, 1), (float("nan"), 1), (1e-3, 0)])
def test_an_answer_that_is_none_has_no_time(error: float, count: int) -> None:
    assert len(page.wrong({"attention": part(row(errors={OURS: error}))})) == count


def test_a_contender_that_fails_is_named_and_the_others_go_on() -> None:
    def fails() -> Any:
        raise RuntimeError("no kernel\nfor this")

    x = torch.ones(3)
    (found,) = parts.compared(
        EMULATED, {"what": "one"}, {TUNED: fails, EAGER: lambda: lambda: [x]}, lambda: [x.double() + 1]
    )
    assert found["failed"] == {TUNED: "no kernel"} and found["errors"] == {EAGER: 0.5}
    assert not list(parts.compared(replace(EMULATED, prepare=True), {}, {EAGER: lambda: lambda: [x]}, lambda: [x]))


@pytest.mark.parametrize(
    ("tool", "summary", "faults"),
    [("memcheck", "ERROR SUMMARY: 2 errors", 2), ("racecheck", "RACECHECK SUMMARY: 0 hazards displayed", 0)],
)
def test_the_sanitizer_is_asked_where_there_is_one(
    tool: str, summary: str, faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "========= {summary}"\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (found,) = next(iter(parts.sanitizer(tool)(EMULATED)))
    assert found["faults"] == faults and f"--tool {tool}" in (tmp_path / "asked").read_text()
    assert "benchmarks.gpu.part" in (tmp_path / "asked").read_text()


def test_attention_and_products_are_what_they_are_called() -> None:
    q, k, v = (torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3))
    for causal in (False, True):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.testing.assert_close(subjects.Attention(causal)(q, k, v), expected)
    (found,) = parts._eager(EMULATED, Model(subjects.Product(), (q, k.mT), {}))()
    torch.testing.assert_close(found, torch.einsum("bik,bjk->bij", q, k))


def test_every_part_is_short_enough_and_the_eight_models_are_there() -> None:
    assert max(p.seconds for p in parts.PARTS.values()) <= command.LONGEST <= 9 * 60
    assert len(subjects.MODELS) == 8 and set(subjects.MODELS) < set(subjects.TINY)
    assert all(f"{kind}/{name}{end}" in parts.PARTS for name in subjects.MODELS for kind, end in
               (("check", ""), ("model", "/bf16"), ("model", "/fp32"), ("tune", "")))  # fmt: skip


def test_variants_differ_from_the_default_in_one_tile_each() -> None:
    found = Machine(TARGET).variants()
    assert found["default"] is None and len(found) > 4
    assert all(t is None or (t.grid is not None and len(t.grid.costs.tiles) == 1) for t in found.values())
