"""What the benchmarks make of their measurements."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks import attention, devices, machine, report, zoo
from benchmarks.chart import Bars, draw
from benchmarks.peers import PEERS
from benchmarks.suite import CASES, Case, chosen
from luminal import timing
from luminal.display import Display
from tests import device_support


def found(luminal: float, peer: float) -> report.Sample:
    """A sample as it comes from another process."""
    ours = {f"luminal {end} {kind}": luminal for end in ("PyTorch", "ONNX") for kind in ("fixed", "symbolic")}
    ours["luminal PyTorch symbolic"] = 1.5 * luminal
    return report.sample(
        {
            "times": {**ours, **dict.fromkeys(PEERS, peer)},
            "compiled": {key: {"seconds": 3.0, "memory": 2**30} for key in ours},
            "operations": 10**9,
            "bytes": 10**6,
            "peak": {"operations": 4e11, "bytes": 1e10},
        }
    )


def test_ratios_are_medians_over_processes() -> None:
    # By the medians of the times, 3/8; by that of the ratios, 1/2.
    result = report.Result("a model", (found(1e-2, 2e-2), found(3e-2, 8e-2), found(5e-2, 8e-2)))
    assert result.seconds("onnxruntime") == 8e-2 and result.seconds("luminal ONNX fixed") == 3e-2
    assert result.ratio("luminal PyTorch fixed", "torch") == 0.5
    part, of = result.ceiling("luminal ONNX fixed")
    assert of == "FMA" and part == pytest.approx(1e9 / 4e11 / 3e-2)
    first, second = report.rows([result])
    assert first[:3] == ("a model", "PyTorch", "0.50") and second[1] == "ONNX"
    assert first[report.HEADINGS.index("symbolic / fixed")] == "1.50"
    assert first[report.HEADINGS.index("of ceiling")] == "8% FMA"
    assert "2.00x onnxruntime" in report.summary([result])


def test_the_page_and_its_chart() -> None:
    results = [report.Result("a & b", (found(1e-2, 2e-2),)), report.Result("c", (found(4e-2, 2e-2),))]
    heads = [attention.Result("plain", {"luminal": 1.0, "torch": 4.0}, (2**20, 2**30), (1e-6, 2e-6))]
    page = report.page(results, heads, "chart.svg", threads=2, processes=1, runs=5)
    assert "![" in page and "(chart.svg)" in page and "| a & b | PyTorch | 0.50 |" in page
    assert "| plain |  | 0.25 |  | 1 s | 4 s |  | 1 MiB | 1024 MiB | 1.0e-06 | 2.0e-06 |" in page
    drawing = ElementTree.fromstring(report.chart(results))
    texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    assert {"a & b", "c", "luminal", "2.00", "0.50", "onnxruntime"} <= set(texts)


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

needs_nvcc = pytest.mark.skipif(bool(device_support.without_nvcc()), reason=device_support.without_nvcc())


def line(**changes: Any) -> devices.Line:
    return devices.Line(**{**asdict(devices.Line("net", "cuda:sm_90", 3, 64, 2048, 0, (), 7.4)), **changes})


def test_a_spill_or_a_warning_is_not_ok() -> None:
    assert line().ok and not line(spilled=4).ok and not line(warnings=("unused variable",)).ok


def test_the_page_of_kernels_names_compiler_and_machine() -> None:
    page = devices.markdown([line(), line(warnings=("one", "two"))], "Cuda compilation tools, release 13.0, V13.0.88\n")
    assert f"nvcc 13.0.88; {machine.describe()}." in page
    assert "| net | cuda:sm_90 | 3 | 64 | 2048 B | 0 B | 0 | 7 s |" in page and "| 0 B | 2 | 7 s |" in page


@needs_nvcc
def test_kernels_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_NO_CACHE", "1")
    module, x = nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1)), torch.zeros(4, 8)
    case = Case("net", "a net", lambda layers: zoo.Model(module.eval(), (x,), {}))
    with Display(Console(stderr=True)) as display:
        found = devices.known(case, "cuda:sm_80", False, tmp_path, display)
        monkeypatch.setattr(devices, "measure", None)
        assert devices.known(case, "cuda:sm_80", False, tmp_path, display) == found
    assert found.ok and found.kernels == 2 and 8 <= found.registers <= 255 and found.seconds > 0
