"""What the benchmarks make of their measurements."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import torch
import typer
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import (
    algebra,
    attention,
    contractions,
    decode,
    decoding,
    devices,
    errors,
    filtering,
    goals,
    integers,
    llama,
    machine,
    measure,
    products,
    progress,
    report,
    searching,
    tables,
    training,
    zoo,
)
from benchmarks import page as rewriting
from benchmarks.chart import Bars, draw
from benchmarks.peers import PEERS
from benchmarks.results import Results
from benchmarks.suite import CASES, FRONT_ENDS, KINDS, Case, Setting, chosen
from benchmarks.suite import luminal as contender
from luminal import timing
from luminal.core import config
from luminal.display import Display
from luminal.profile import KernelTime
from tests import device_support


def found(luminal: float, peer: float, **changes: Any) -> dict[str, Any]:
    """A sample as it comes from another process: onnxruntime takes as long as ``peer``, the others longer."""
    ours = {contender(end, kind): luminal for end in FRONT_ENDS for kind in KINDS}
    ours["luminal PyTorch symbolic"] = 1.5 * luminal
    times = {**ours, **{name: peer * factor for name, factor in zip(PEERS, (1, 1.25, 2, 4), strict=True)}}
    kernel = KernelTime("slow", 2, 0.75 * luminal, 10**9, 10**6, "FMA", 2, ("MatMul 'a'", "Add 'b'"))
    return {
        "times": times,
        "best": {name: 0.5 * seconds for name, seconds in times.items()},
        "errors": dict.fromkeys(times, 1e-3),
        "failed": {},
        "compiled": {key: {"seconds": 3.0, "memory": 2**30} for key in ours},
        "operations": 10**9,
        "bytes": 10**6,
        "peak": {"operations": 4e11, "bytes": 1e10, "bf16": 4e12, "int8": 8e12},
        "reading": 2e10,
        "library": 2**20,
        "kernels": [asdict(kernel)],
        "kernel_seconds": luminal,
        "seconds": 30.0,
        **changes,
    }


def measured(*cells: tuple[str, Setting, list[dict[str, Any]]]) -> Results:
    results = Results()
    for case, setting, samples in cells:
        results.put(report.part(case, setting), {"layers": 4, "samples": samples})
    return results


MAIN, NARROW = Setting(), Setting("bf16")


def test_the_page_of_algebra_goes_on_from_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = dict.fromkeys(algebra.CONTENDERS, 2e-3)
    line = "algebra: a 'x'; b 'y': sum[2] (x * y) becomes (x * y), for {} cycles 1"
    measured_: list[str] = []

    def run(module: str, options: dict[str, Any]) -> dict[str, Any]:
        measured_.append(options["name"])
        if options["name"] == "repvgg":
            raise KeyboardInterrupt
        explained = "\n".join(line.format(k) for k in (9, 8))
        times_ = times if options["name"] in algebra.FORMS else {**times, "exact": 3e-3}
        return asdict(algebra.Row(times_, 1e-7, 2e-7, explained, 2, 1.5))

    monkeypatch.setattr(algebra.apart, "run", run)
    arguments = {"only": "chain,segformer,repvgg,densenet", "threads": 2, "runs": 3, "write": tmp_path / "a.md"}
    with pytest.raises(KeyboardInterrupt):
        algebra.main(**arguments, resume=False)
    assert measured_ == ["chain", "segformer", "repvgg"]
    page = (tmp_path / "a.md").read_text()
    assert "| chain of three matrices | 1.00 | 2 ms |" in page and "for 9 cycles 1 (and 1 more)" in page
    assert "| SegFormer-B0, 512 x 512 | 1.50 | 2 ms | 3 ms | 2 ms | 2 ms | 1.0e-07 / 2.0e-07 | 2 | 1.5 s |" in page
    monkeypatch.setattr(algebra.apart, "run", lambda module, options: run(module, {**options, "name": "chain"}))
    measured_.clear()
    algebra.main(**arguments, resume=True)
    assert len(measured_) == 2 and "DenseNet-121" in (tmp_path / "a.md").read_text()
    with pytest.raises(typer.BadParameter):
        algebra.main("", 2, 3, None, resume=True)


def test_the_page_of_training_goes_on_from_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The ratio is that of the faster of luminal's two; a process of its own tells each contender's memory."""
    asked: list[str] = []

    def run(module: str, options: dict[str, Any]) -> Any:
        if "step" not in options:
            return [["contraction7", 0.25, 5e10, "MatMul 'a'"]]
        alone = len(options["contenders"]) == 1
        asked.append(f"{options['name']}/{options['step']}" + f" {options['contenders'][0]}" * alone)
        if asked[-1] == "gpt/gradients":
            raise KeyboardInterrupt
        times = {"backend": 4e-3, "library": 2e-3, "torch.compile": 3e-3, "eager": 5e-3}
        failed = {} if options["step"] == "gradients" else {"library": "an operator has no gradient"}
        found_ = {key: times[key] for key in options["contenders"] if key not in failed}
        memory = {key: (1 + list(times).index(key)) * 2**20 for key in options["contenders"]} if alone else {}
        return asdict(training.Row(found_, failed, memory, 9.0))

    monkeypatch.setattr(training.apart, "run", run)
    arguments = {"only": "mlp,gpt", "threads": 2, "runs": 3, "write": tmp_path / "t.md"}
    with pytest.raises(KeyboardInterrupt):
        training.main(**arguments, steps="", resume=False)
    assert len(asked) == 1 + 4 + 1 + 3 + 1
    page = (tmp_path / "t.md").read_text()
    assert "| gradients | 1.50 | 2.50 | 4 ms | 2 ms | 3 ms | 5 ms | 1 MiB | 4 MiB | 9 s |" in page
    assert "| whole | 0.75 | 1.25 | 4 ms |  | 3 ms | 5 ms | 1 MiB | 4 MiB | 9 s |" in page
    assert "| contraction7 | 25% | 50 | MatMul 'a' |" in page and "`library`: an operator has no gradient" in page
    assert "Geometric mean of gradients: 1.50x torch.compile" in page
    asked.clear()
    with pytest.raises(KeyboardInterrupt):
        training.main(**arguments, steps="", resume=True)
    assert asked == ["gpt/gradients"]


def test_models_to_train_have_losses() -> None:
    for case in training.CASES.values():
        model, inputs = case.small()
        loss = model.train()(*inputs)
        loss.backward()
        assert loss.ndim == 0 and all(p.grad is not None for p in model.parameters())


def test_whole_steps_are_those_of_a_library_too() -> None:
    row = training.measure("mlp", "whole", 1, 3, ["library", "eager"], small=True)
    assert not row.failed and row.times.keys() == {"library", "eager"} and all(row.times.values())


DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_ratios_are_medians_over_processes() -> None:
    # By the medians of the times, 3/8; by that of the ratios, 1/2.
    samples = [found(1e-2, 2e-2), found(3e-2, 8e-2), found(5e-2, 8e-2)]
    (result,) = report.results(measured(("minilm", MAIN, samples)))
    assert result.seconds("onnxruntime") == 8e-2 and result.seconds("luminal ONNX fixed") == 3e-2
    assert result.ratio("luminal PyTorch fixed", "onnxruntime") == 0.5 and result.best("onnxruntime") == 1e-2
    assert result.advantage() == 2 and result.advantage(("OpenVINO", "torch")) == 2.5
    assert result.best_peer == "onnxruntime"
    assert result.ceiling("luminal ONNX fixed") == (pytest.approx(1e9 / 4e11 / 3e-2), "FMA")
    first, second = (dict(zip(report.headings(MAIN), row, strict=True)) for row in report.rows([result]))
    assert first["luminal from"] == "PyTorch" and second["luminal from"] == "ONNX"
    assert first["ahead of the best"] == "2.00x onnxruntime" and first["symbolic / fixed"] == "1.50"
    assert first["of ceiling"] == "8% FMA" and first["luminal"] == "30 (5)" and first["library"] == "1.00 MiB"
    assert "2.00x onnxruntime, 2.50x OpenVINO, 4.00x torch.compile" in report.summary([result])
    assert "luminal's median run took 6.00 times its shortest" in report.summary([result])


def test_the_best_peer_is_that_of_each_process() -> None:
    """A peer that is slow in one process and fast in another is no worse for it."""
    samples = [found(1e-2, 2e-2), found(1e-2, 2e-2), found(1e-2, 2e-2)]
    samples[1]["times"]["torch"] = samples[2]["times"]["OpenVINO"] = 5e-3
    (result,) = report.results(measured(("minilm", MAIN, samples)))
    assert result.advantage() == 0.5


def test_bfloat16_is_compared_with_its_own_peak_and_peers() -> None:
    sample = found(1e-3, 2e-3, failed={"torch": "RuntimeError: no"})
    for name in ("onnxruntime", "torch"):
        del sample["times"][name]
    (result,) = report.results(measured(("vit", NARROW, [sample])))
    assert result.peers == ["OpenVINO", "torch.compile"] and result.ceiling(NARROW.headline) == (
        pytest.approx(0.25),
        "bf16",
    )
    assert "onnxruntime" not in report.headings(NARROW)
    (row,) = report.error_rows([result])
    assert row == ("ViT-B/16, 224", "1.0e-03", "1.0e-03", "1.0e-03", "")
    page = report.text_of(measured(("vit", NARROW, [sample])), {})
    assert "ViT-B/16, 224: torch does not run (RuntimeError: no)." in page and "### Bfloat16, batch 1" in page


def test_integers_are_those_of_one_file() -> None:
    setting = Setting("int8")
    sample = found(1e-3, 2e-3)
    for name in [name for name in sample["times"] if name not in (setting.headline, "onnxruntime", "OpenVINO")]:
        del sample["times"][name]
    assert setting.headline == "luminal ONNX fixed" and not setting.main
    (result,) = report.results(measured(("vit", setting, [sample])))
    assert result.advantage() == 2 and result.ceiling(setting.headline) == (pytest.approx(0.125), "int8")
    page = report.text_of(measured(("vit", setting, [sample])), {})
    assert "the least ahead; 8-bit integers, batch 1, 2 threads: the best peer's time" in page
    assert "### 8-bit integers, batch 1, 2 threads" in page and "from ONNX: 2.00x onnxruntime, 2.50x OpenVINO" in page


def test_a_file_is_quantised_as_its_users_would(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    model = zoo.Model(layers, (torch.ones(3, 8),), {})
    path = integers.quantised(zoo.to_onnx(model, tmp_path / "model.onnx", dynamic=False), [np.ones((3, 8), np.float32)])
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("DequantizeLinear") > 2 and "QuantizeLinear" in kinds
    assert integers.quantised(tmp_path / "model.onnx", []) == path  # made once


def two() -> zoo.Model:
    """A model that gives its input, and twice that."""

    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, 2 * x

    return zoo.Model(Two(), (torch.tensor([1.0, -4.0]),), {})


def test_errors_are_the_worst_of_the_outputs() -> None:
    """Relative to the largest magnitude of an output, of results in any of the forms that contenders return."""
    runs = {
        "near": lambda: [np.float32([1, -4]), np.float32([2, -7])],
        "exact": lambda: (torch.tensor([1, -4]).bfloat16(), torch.tensor([2, -8]).bfloat16()),
    }
    assert measure._errors(two(), runs) == {"near": 0.125, "exact": 0.0}


def test_verdicts() -> None:
    names = list(goals.FASTER["fp32"])
    cells = [(name, MAIN, [found(1e-2, 1.4e-2)]) for name in names]
    cells[0] = ("minilm", MAIN, [found(1e-2, 1.1e-2)])
    slow = ("vit", Setting("fp32", 8, 1), [found(1e-2, 0.94e-2)])
    results = report.results(measured(*cells, slow))
    rows = {v.what: v for v in goals.faster("fp32", results)}
    mini = rows["MiniLM-L6, 128 tokens"]
    assert (mini.goal, mini.found, mini.reached) == ("at least 1.15", "1.10", False)
    assert rows["ResNet-50, 224"].reached
    mean = rows["geometric mean of these 8"]
    assert mean.found == f"{1.1 ** (1 / 8) * 1.4 ** (7 / 8):.2f}" and mean.reached
    narrow = goals.faster("bf16", results)
    assert len(narrow) == 9 and all(v.reached is None and v.found == "not measured" for v in narrow)
    (row,) = (row for row in report.goal_rows(results) if row[0] == "ViT-B/16, 224")
    assert row[1:] == ("at least 1.05", "1.40", "yes", "at least 1.20", "not measured", "")
    rows = {v.what: v for v in goals.verdicts(results)}
    elsewhere = rows["the least ahead; float32, batch 8, 1 thread: the best peer's time / luminal's"]
    assert (elsewhere.found, elsewhere.reached) == ("0.94 (ViT-B/16, 224; 1 measured)", False)
    symbolic = rows["symbolic sizes: the most that they cost, as a part of the time of fixed ones"]
    assert symbolic.found.startswith("1.50 (") and symbolic.reached is False
    assert rows["the largest library without weights"].reached


def accuracy(precision: str, *samples: dict[str, Any]) -> goals.Verdict:
    """The verdict on the errors of a model."""
    results = report.results(measured(("minilm", Setting(precision), list(samples))))
    (found,) = (v for v in goals.verdicts(results) if "luminal's largest error" in v.what)
    return found


def test_float32_is_as_exact_as_it_has_to_be() -> None:
    sample = found(1e-2, 2e-2, errors=dict.fromkeys(found(1, 1)["times"], 9.9e-6))
    verdict = accuracy("fp32", sample)
    assert (verdict.goal, verdict.reached) == ("at most 1.00", True)
    assert verdict.found == "0.99 (9.9e-06, MiniLM-L6, 128 tokens; float32, batch 1, 2 threads)"
    # Whichever of luminal's is the worst, in whichever process; its peers do not count.
    symbolic = {**sample, "errors": {**sample["errors"], "luminal ONNX symbolic": 1.001e-5}}
    assert accuracy("fp32", sample, symbolic).reached is False
    assert accuracy("fp32", {**sample, "errors": {**sample["errors"], "OpenVINO": 1.0}}).reached


@pytest.mark.parametrize(("precision", "times"), [("bf16", 1.0), ("int8", 2.0)])
def test_narrow_types_are_as_exact_as_those_of_others(precision: str, times: float) -> None:
    def sample(ours: float, *peers: float) -> dict[str, Any]:
        made = found(1e-2, 2e-2)
        errors = dict.fromkeys(made["times"], ours) | dict(zip(("OpenVINO", "onnxruntime"), peers, strict=False))
        for peer in ("torch", "torch.compile", *(["onnxruntime"] if len(peers) < 2 else [])):
            del made["times"][peer]
        return {**made, "errors": errors}

    assert accuracy(precision, sample(times * 0.99e-2, 1e-2)).reached
    assert accuracy(precision, sample(times * 1.01e-2, 1e-2)).reached is False
    assert accuracy(precision, sample(times * 1.01e-2, 1e-2, 2e-2)).reached  # the largest of them
    assert accuracy(precision, sample(times * 1.01e-2, np.nan, 1e-2)).reached is False  # a NaN excuses none
    assert accuracy(precision, sample(0.0, 0.0)).reached and accuracy(precision, sample(1e-9, 0.0)).reached is False


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_result_that_is_no_number_is_never_exact_enough(precision: str, wrong: float) -> None:
    """Also where it is not the first that is looked at, or where nobody else ran."""
    right = found(1e-2, 2e-2)
    right["errors"] = dict.fromkeys(right["times"], 1e-6)
    bad = {**right, "errors": {**right["errors"], Setting(precision).headline: wrong}}
    for samples in ([right, bad], [bad, right]):
        assert accuracy(precision, *samples).reached is False
        (row,) = report.error_rows(report.results(measured(("minilm", Setting(precision), samples))))
        assert row[1] == str(wrong)
    alone = {**bad, "times": {key: time for key, time in bad["times"].items() if key not in PEERS}}
    assert accuracy(precision, alone).reached is False


def test_a_nan_is_the_largest_error() -> None:
    for values in ([1.0, np.nan, 2.0], [np.nan, 1.0], [1.0, np.nan]):
        assert np.isnan(errors.worst(values))
    assert errors.worst([1.0, 3.0, 2.0]) == 3.0
    expected = np.float32([1, -4])
    assert errors.relative(np.float32([1, -3]), expected) == 0.25
    assert np.isnan(errors.relative(np.float32([np.nan, -4]), expected))
    assert errors.relative(np.float32([1]), expected) == np.inf

    assert np.isnan(measure._errors(two(), {"second": lambda: [expected, 2 * expected * np.nan]})["second"])
    rows = [products.Row(64, 128, 256, 1e-3, 2e-3, 0.8, error) for error in (1e-7, np.nan)]
    assert products.summary("matrices", "fp32", 2, rows).endswith("the largest error nan.")


# Pages of language models and of training have their own figures of exactness, and their own tests.
OTHERS = {DOCS / f"benchmarks-{name}.json" for name in ("llm", "training")}
INFERENCE = sorted({*DOCS.glob("benchmarks*.json")} - OTHERS)


@pytest.mark.parametrize("path", INFERENCE, ids=lambda path: path.stem)
def test_the_page_of_what_was_measured_says_how_exact_it_is(path: Path) -> None:
    page = report.text_of(Results(path), {})
    precisions = {result.setting.precision for result in report.results(Results(path))}
    assert precisions and page.count("luminal's largest error") == len(precisions)


def test_rounding_never_says_that_a_number_is_reached() -> None:
    cases = [(1.3, 1.2951, "1.295"), (1.3, 1.2949, "1.29"), (1.3, 1.3049, "1.30"), (goals.ELSEWHERE, 0.9512, "0.95")]
    for goal, ratio, read in cases:
        row = goals.at_least("", goal, ratio)
        assert (row.found, row.reached) == (read, ratio >= goal)
    assert goals.at_least("", goals.ELSEWHERE, None).goal == "at least 0.952"
    assert goals.told(81.96, lambda part: part >= 82, 1) == "81.96"
    assert goals.told(1.1004, lambda cost: cost <= 1.1) == "1.1004"


def test_a_mean_needs_all_models() -> None:
    rows = goals.faster("fp32", report.results(measured(("minilm", MAIN, [found(1e-2, 2e-2)]))))
    assert [v.reached for v in rows] == [True, *([None] * 8)]


def test_a_mean_that_is_not_reached_says_where_its_models_stand(tmp_path: Path) -> None:
    """Each is 1.2 times as fast as its best peer, and takes 6 % of its time at the peak."""
    results = measured(*((name, MAIN, [found(4e-2, 4.8e-2)]) for name in goals.FASTER["fp32"]))
    report.write(results, tmp_path / "speed.md")
    _, _, section = (
        (tmp_path / "speed.md").read_text().partition("### The mean of these 8; float32, batch 1, 2 threads")
    )
    assert (
        "It asks every model to be 1.04 times as fast: they stand at 6% of their ceilings, and would at 7%" in section
    )
    assert "| MiniLM-L6, 128 tokens | 1.20 | 6% FMA | 19.20 | 8% |" in section
    report.write(measured(*((name, MAIN, [found(1, 2)]) for name in goals.FASTER["fp32"])), tmp_path / "fast.md")
    assert "The mean of these" not in (tmp_path / "fast.md").read_text()


def test_the_page_and_its_charts(tmp_path: Path) -> None:
    results = measured(("minilm", MAIN, [found(1e-2, 2e-2)]), ("gpt2", MAIN, [found(4e-2, 2e-2)]))
    head = attention.Result("plain", {"luminal": 1.0, "torch": 4.0}, (2**20, 2**30), (1e-6, 2e-6))
    results.put(f"{report.ATTENTION}2", [asdict(head)])
    step = decoding.Step(22, 0.05, 0.049, 0.073, 0.07, 2**30, 2.5e10, 1e-6, "llama-cpp-python 1.2")
    results.put(f"{decoding.PREFIX}q8_0/2", asdict(step))
    rows = [products.Row(64, 128, 256, 1e-3, 2e-3, 0.8, 1e-7), products.Row(64, 64, 64, 1e-3, 1e-3, 0.9, 2e-7)]
    results.put(f"{products.PREFIX}matrices/fp32/2", [asdict(row) for row in rows])
    report.write(results, tmp_path / "speed.md")
    page = (tmp_path / "speed.md").read_text()
    assert "](speed.svg)" in page and f"{machine.name()}; {machine.today()}." in page
    assert "| MiniLM-L6, 128 tokens | PyTorch | 2.00x onnxruntime | 1.50 | 10 (5) | 20 (10) | 25 (12.5) |" in page
    assert "| plain |  | 0.25 |  | 1 s | 4 s |  | 1 MiB | 1024 MiB | 1.0e-06 | 2.0e-06 |" in page
    assert "luminal's | at least 1.217 | 1.46 (50 ms, 73 ms) | yes |" in page
    assert "part of the peak of multiply-adds, geometric mean | at least 82% | 84.9% | yes |" in page
    assert page.index("| 64 x 128 x 256 |") < page.index("| 64 x 64 x 64 |")  # the farthest from the peak first
    assert "2 threads, 22 of 22 layers, llama-cpp-python 1.2:" in page
    short = page[page.index("## What does not reach its number") :]
    assert "### GPT-2, 256 tokens; float32" in short and "MiniLM" not in short
    # It is 0.5 times as fast as the best peer, and is to be 1.15 times as fast.
    assert "Its number asks for 17.4 ms, 14% of FMA at the peak of the same processes; it takes 40 ms, 6%" in short
    assert "| slow | MatMul, Add | 2 | 2 | 30 ms | 75.0% | 1 | 33.3 | 8% FMA |" in short
    drawing = ElementTree.fromstring((tmp_path / "speed.svg").read_text())
    texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    assert {"MiniLM-L6, 128 tokens", "GPT-2, 256 tokens", "luminal", "2.00", "0.50", "onnxruntime"} <= set(texts)


def test_measurements_join_those_of_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "speed.json"
    setting, name = Setting("fp32", 8, 1), "models/fp32/8/1/minilm"
    Results(path).put(report.part("minilm", setting), {"layers": 4, "samples": [found(1 / 3, 2.0)]})
    Results(path).put("other/1", [0.5])
    (tmp_path / "speed.json.part").write_text("half of what a run that was stopped wr")
    again = Results(path)
    assert list(again.under("models/")) == ["fp32/8/1/minilm"] and again.get("other/1") == [0.5]
    (sample,) = report.kept(again, CASES["minilm"], setting, 4)
    assert sample["times"][setting.headline] == 0.333333 and report.expected(again, CASES["minilm"], setting) == 30
    assert report.kept(again, CASES["minilm"], MAIN, 4) == [] and report.expected(again, CASES["minilm"], MAIN) is None
    assert again.machines == [f"{machine.name()}; {machine.today()}"]
    # What another machine has measured is shown with it, and not gone on from.
    monkeypatch.setattr(machine, "name", lambda: "another")
    assert again.get(name) is not None and report.kept(again, CASES["minilm"], setting, 4) == []
    again.put("other/2", 1)
    assert len(again.machines) == 2


def test_decoders_of_another_depth_are_measured_anew() -> None:
    results = measured(("tinyllama", MAIN, [found(1.0, 2.0)]))
    assert len(report.kept(results, CASES["tinyllama"], MAIN, 4)) == 1
    assert report.kept(results, CASES["tinyllama"], MAIN, 22) == []


def test_what_is_left_follows_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    work = progress.Work([10.0, None, 30.0])
    assert work.left == 60  # what is not known takes as long as the others
    work.begin("the first")
    now[0] = 20.0
    assert work.end() == 20 and work.left == 100


def test_shapes_of_contractions() -> None:
    """They are always the same, within their bounds, and spread evenly on a logarithmic scale."""
    shapes = products.matrices()
    assert shapes == products.matrices() and len(set(shapes)) == 60
    for shape in shapes:
        assert 64 <= shape.m <= 2048 and 64 <= shape.n <= 8192 and 64 <= shape.k <= 8192
        assert 2 * shape.m * shape.n * shape.k >= 50e6
    assert 0.3 < sum(shape.k < 724 for shape in shapes) / 60 < 0.5  # the lower half, less what is too small
    for itemsize in (2, 4):
        rows = products.vectors(itemsize)
        assert len(rows) >= 20 and {row.m for row in rows} == {1}
        assert all(row.n * row.k * itemsize > 16 << 20 for row in rows)
        assert sum(row.n * row.k for row in rows) * itemsize > 1 << 30


# Of the largest result: float32 sums, and operands rounded by 2^-9 each in sums whose magnitudes are four times it.
@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-6), ("bf16", 4 * 2**-8)])
@pytest.mark.parametrize("kind", ["matrices", "vectors"])
def test_contractions_are_measured(kind: str, precision: str, error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One library of several products, which agree with PyTorch's."""
    shapes = [products.Shape(5, 48, 64), products.Shape(3, 40, 33)]
    monkeypatch.setattr(products, "BURST", 1e-4)
    monkeypatch.setattr(products, "matrices", lambda count: shapes)
    monkeypatch.setattr(products, "vectors", lambda itemsize, *bounds: [replace(s, m=1) for s in shapes])
    with Display(Console(stderr=True)) as display:
        rows = products.measure(kind, precision, 1, 3, 2, display)
    assert [(row.n, row.k) for row in rows] == [(48, 64), (40, 33)]
    assert all(row.error < error and row.seconds > 0 and row.torch > 0 and row.part > 0 for row in rows)


def test_filtering_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with filtered convolutions beside one without; they go onto the page."""
    networks = {"small": ("Small", lambda batch: zoo.vgg16((1, 1), batch=batch, size=96))}
    monkeypatch.setattr(filtering, "MODELS", networks)
    with Display(Console(stderr=True)) as display:
        row = filtering.measure("small", 1, 3, display)
    assert (row.filtered, row.convolutions) == (1, 2) and all(s > 0 for s in row.seconds)
    assert 0 < row.errors[0] < 1e-6 and 0 < row.errors[1] < 1e-4 and row.weights[0] < row.weights[1]
    results = Results()
    results.put(f"{filtering.PREFIX}1", [asdict(row)])
    page = report.text_of(results, {})
    assert "## Convolutions by minimal filtering" in page and "| Small | 1 of 2 |" in page


def test_what_a_search_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()
    case = Case("small", "Small", lambda layers_of_a_decoder, batch: zoo.Model(layers, (torch.ones(40, 64),), {}))
    for variable in (config.RECORDS.variable, config.NO_RECORDS.variable):
        monkeypatch.setenv(variable, "")  # what is set below ends with the test
    with Display(Console(quiet=True)) as display:
        row = searching.measure(case, 1, 1.0, 3, tmp_path / "records", display)
    assert row.kernels == 2 and all(s > 0 for s in (*row.medians, *row.best)) and 0 < row.spent < 60
    assert (tmp_path / "records").is_file()
    results = Results()
    cases = [CASES[name] for name in goals.FASTER["fp32"]]
    for case in cases:
        same = replace(row, model=case.title, medians=(1.0, 1.5), changed=0, budget=60.0)
        assert [v.reached for v in searching.verdicts(results)] == [None, None]  # of all, or none
        results.put(searching.part(case, 2), asdict(same))
    first, second = searching.verdicts(results)
    assert first.reached and first.found == "1.00, in no model was a kernel changed" and second.reached
    slower = replace(same, medians=(1.0, 1.0201), changed=1, spent=60.04)
    results.put(searching.part(cases[-1], 2), asdict(slower))
    first, second = searching.verdicts(results)
    assert (first.found, first.reached) == (f"1.0201 ({same.model})", False)
    assert (second.found, second.reached) == ("60.04 s", False)
    assert f"| {same.model} | 1 of 2 | 1.020 |" in report.text_of(results, {})


def test_quantised_layers_are_near_what_they_were() -> None:
    layer = nn.Linear(64, 8, bias=False)
    module = zoo.quantise(nn.Sequential(nn.Sequential(layer)), 8)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    exact, near = layer(x), module(x)
    assert 0 < (near - exact).abs().max() < 0.02 * exact.abs().max()
    coarse = zoo.quantise(nn.Sequential(layer), 4)[0]
    assert coarse.codes.abs().max() == 7 and coarse.codes.shape == (8, 2, 32)


def test_lists_of_options() -> None:
    assert tables.among("b,a", ["a", "b", "c"], "--only") == ["a", "b"] and tables.among("", "ab", "--only") == [
        "a",
        "b",
    ]
    assert tables.numbers("2,1", "--threads") == [2, 1]
    for wrong in (lambda: tables.among("a,d", "abc", "--only"), lambda: tables.numbers("0", "--threads")):
        with pytest.raises(typer.BadParameter, match="expected"):
            wrong()
    with pytest.raises(typer.BadParameter, match="no products of float32 in that precision"):
        tables.precisions("tf32", ["fp32", "tf32"])


def test_commands_refuse_what_makes_no_sense(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(llama, "missing", lambda: ["llama_cpp"])
    for main, options, message in (
        (decode.main, [], "llama_cpp is missing: pip install llama-cpp-python gguf"),
        (command.main, ["--resume"], "without --write"),
        (command.main, ["--only", "lenet"], "found lenet"),
        (contractions.main, ["--first", "2", "--write", str(tmp_path / "a.md")], "a first look is not written"),
        (rewriting.main, [str(tmp_path / "a.json")], "found its measurements"),
        (rewriting.main, [str(tmp_path / "a.md")], "there are no measurements"),
    ):
        app = typer.Typer()
        app.command()(main)
        result = CliRunner().invoke(app, options, env={"COLUMNS": "200"})
        assert result.exit_code == 2 and message in result.output


def test_bars_are_as_long_as_their_values() -> None:
    drawing = ElementTree.fromstring(draw("title", [Bars("a", {"x": 0.5, "y": 2.0})], "one"))
    widths = [float(e.attrib["width"]) for e in drawing.iter() if e.tag.endswith("rect")][2:]  # after the legend
    assert widths[1] == 4 * widths[0]


def test_every_text_of_a_chart_has_room() -> None:
    """Titles of any length are whole, and the line at 1 crosses no value."""
    titles = ["a", "a model of a long name, 1 token after 256, 4 of 22 layers"]
    values = {f"at {v}": v for v in (0.9, 0.95, 0.98, 1.0, 1.02)}
    drawing = ElementTree.fromstring(draw("title", [Bars(title, values) for title in titles], "one"))
    (line,) = (float(e.attrib["x1"]) for e in drawing.iter() if e.tag.endswith("line"))
    texts = [(e.text or "", float(e.attrib["x"])) for e in drawing.iter() if e.tag.endswith("text")]
    assert all(x >= 6.5 * len(text) for text, x in texts if text in titles)
    starts = [x for text, x in texts if text in ("0.90", "0.95", "0.98", "1.00", "1.02")]
    assert len(starts) == 10 and all(x > line or x + 22 < line for x in starts)
    (width,) = {float(e.attrib["width"]) for e in drawing.iter() if e.tag.endswith("svg")}
    assert max(starts) + 22 < width


def test_models_are_chosen_by_name() -> None:
    assert [case.name for case in chosen(["vit", "minilm"])] == ["minilm", "vit"]
    assert chosen(None) == list(CASES.values()) and len(CASES) == 10
    with pytest.raises(ValueError, match="no model is called lenet"):
        chosen(["lenet"])


def test_a_run_waits_for_threads_that_still_work() -> None:
    data = bytes(64 << 20)
    worker = threading.Thread(target=lambda: hashlib.sha256(data).digest())  # without the interpreter's lock
    worker.start()
    timing.settle(0.0, longest=60.0)
    assert not timing._others_run()
    worker.join()
    assert timing.settle(0.0) < 60


# ---- kernels for GPUs ------------------------------------------------------------------------------------------------


def line(**changes: Any) -> devices.Line:
    return devices.Line(**{**asdict(devices.Line("net", "cuda:sm_90", 3, 64, 2048, 0, (), 7.4)), **changes})


def test_a_spill_or_a_warning_is_not_ok() -> None:
    assert line().ok and not line(spilled=4).ok and not line(warnings=("unused variable",)).ok


def test_the_page_of_kernels_names_compiler_and_machine() -> None:
    page = devices.markdown([line(), line(warnings=("one", "two"))], "Cuda compilation tools, release 13.0, V13.0.88\n")
    assert f"nvcc 13.0.88; {machine.describe()}." in page
    assert "| net | cuda:sm_90 | 3 | 64 | 2048 B | 0 B | 0 | 7 s |" in page and "| 0 B | 2 | 7 s |" in page


@device_support.needs_nvcc
def test_kernels_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_NO_CACHE", "1")
    module, x = nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1)), torch.zeros(4, 8)
    case = Case("net", "a net", lambda layers, batch: zoo.Model(module.eval(), (x,), {}))
    with Display(Console(stderr=True)) as display:
        found = devices.known(case, "cuda:sm_80", False, tmp_path, display)
        monkeypatch.setattr(devices, "measure", None)
        assert devices.known(case, "cuda:sm_80", False, tmp_path, display) == found
    assert found.ok and found.kernels == 2 and 8 <= found.registers <= 255 and found.seconds > 0
