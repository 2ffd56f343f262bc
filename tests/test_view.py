"""``luminal view``: what is collected of a model, and the page in headless Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

import luminal
from luminal import cli
from luminal.core.errors import BuildError
from luminal.module import Module
from luminal.view import page as pages
from luminal.view.collect import collect
from tests import browser

BUILT = Path(pages.__file__).parent / "built" / "viewer.js"
needs_viewer = pytest.mark.skipif(not BUILT.is_file(), reason="the viewer is not built: make viewer")
needs_browser = pytest.mark.skipif(browser.program() is None, reason="there is no Chromium")
WIDTH = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.softmax(x, -1)


@pytest.fixture(scope="module")
def module() -> Module:
    torch.manual_seed(0)
    compiled = luminal.compile(Blocks().eval(), (torch.zeros(8, WIDTH),), name="blocks", threads=1)
    assert isinstance(compiled, Module)
    return compiled


@pytest.fixture(scope="module")
def values(module: Module) -> dict[str, Any]:
    return collect(module, module.profile(torch.rand(8, WIDTH), runs=3, threads=1, peak=False))


def test_operators_have_modules_neighbours_and_kernels(values: dict[str, Any]) -> None:
    names = [row["name"].split("'")[1] for row in values["operators"]]
    modules = {name: row["module"] for name, row in zip(names, values["operators"], strict=True)}
    assert modules["linear"] == ["layers", "0", "up"] and modules["linear_3"] == ["layers", "1", "down"]
    assert modules["add_1"] == ["layers", "1"] and modules["softmax"] == []
    edges = {(names[a], names[b]) for a, b in values["edges"]}
    chain = ["layer_norm", "linear", "relu", "linear_1", "add", "layer_norm_1", "linear_2"]
    assert set(pairwise(chain)) <= edges and ("add", "add_1") in edges
    assert not {("linear", "linear_2"), ("relu", "add"), ("layer_norm", "layer_norm_1")} & edges
    assert {a < b for a, b in values["edges"]} == {True}
    computed = {names[number] for kernel in values["kernels"] for number in kernel["operators"]}
    assert {"linear", "relu", "linear_3", "add_1", "softmax"} <= computed
    assert any("SumReduce" in line for line in values["operators"][names.index("linear")]["primitives"])


class Shared(nn.Module):
    """Operators of five layers compute the same product of two inputs, each for itself."""

    def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = torch.tanh(torch.addcmul(x, a, b))
        return x


def test_what_operators_share_is_no_result_of_the_first() -> None:
    """The products are one node; of the source, each layer reads the one before it alone."""
    compiled = luminal.compile(Shared(), (torch.zeros(4), torch.ones(4), torch.ones(4)), threads=1)
    assert isinstance(compiled, Module)
    found = collect(compiled)
    names = [row["name"].split("'")[1] for row in found["operators"]]
    chain = ["addcmul", "tanh"]
    chain += [f"{name}_{layer}" for layer in range(1, 5) for name in ("addcmul", "tanh")]
    assert {(names[a], names[b]) for a, b in found["edges"]} == set(pairwise(chain))


def test_kernels_steps_and_memory(values: dict[str, Any], module: Module) -> None:
    assert module.program is not None
    for kernel in values["kernels"]:
        assert f"// {kernel['name']}, made for" in kernel["code"] and kernel["launches"] > 0 and kernel["seconds"] > 0
    assert sum(step["seconds"] for step in values["steps"]) == pytest.approx(
        sum(kernel["seconds"] for kernel in values["kernels"])
    )
    memory = values["memory"]
    assert memory["bytes"] == module.program.entries[0].arena_size and memory["buffers"]
    for one in memory["buffers"]:
        assert one["offset"] + one["bytes"] <= memory["bytes"] and 0 <= one["first"] <= one["last"]
        for other in memory["buffers"]:  # what is alive at once lies apart
            apart = one["offset"] + one["bytes"] <= other["offset"] or other["offset"] + other["bytes"] <= one["offset"]
            assert one is other or apart or one["last"] <= other["first"] or other["last"] <= one["first"]


def test_a_folder_shows_what_it_knows(module: Module, tmp_path: Path) -> None:
    found = collect(luminal.load(module.export(tmp_path / "build", python_module=False)))
    known = collect(module)
    assert found["kernels"][0]["code"] == known["kernels"][0]["code"]
    assert len(found["steps"]) == len(known["steps"]) and found["memory"]["buffers"] == []
    named = [[values["operators"][n]["name"] for n in step["operators"]] for values in (found, known)
             for step in values["steps"]]  # fmt: skip
    assert [sorted(row) for row in named[: len(named) // 2]] == [sorted(row) for row in named[len(named) // 2 :]]
    assert "exported folder" in " ".join(found["notes"])


@needs_viewer
def test_the_page_holds_the_values_whatever_they_are(values: dict[str, Any]) -> None:
    odd = {
        **values,
        "name": "<b>@MODEL@</script>",
        "notes": ["</script><script>alert(1)</script>", "@VIEWER@ \\ \u2028"],
    }
    text = pages.page(odd)
    found = re.search(r'<script type="application/json" id="model">(.*?)</script>', text, re.DOTALL)
    assert found is not None and json.loads(found[1]) == json.loads(json.dumps(odd))
    assert "<title>&lt;b&gt;@MODEL@" in text and text.count("<script") == 2
    assert "MIT" in text and not re.search(r"<(script|link|img)[^>]+(src|href)=", text)


def test_without_the_viewer_it_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pages, "_HERE", tmp_path)
    with pytest.raises(BuildError, match="make viewer"):
        pages.page({"name": "x"})


@pytest.fixture(scope="module")
def tab() -> Iterator[browser.Page]:
    with browser.browser() as page:
        yield page


@pytest.fixture(scope="module")
def address(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "blocks.html"
    path.write_text(pages.page(values), encoding="utf-8")
    return path.as_uri()


FOLLOW = "[...document.querySelectorAll('{} button')].find(b => b.innerText.includes('{}')).click()"
RIGHT = "document.getElementById('detail').innerText"


@needs_viewer
@needs_browser
def test_links_lead_both_ways(tab: browser.Page, address: str) -> None:
    tab.open(address)
    assert "blocks" in tab.value(RIGHT)
    tab.value(FOLLOW.format("#lists", "contraction"))
    assert "Schedule" in tab.value(RIGHT) and "made for" in tab.value(RIGHT)
    tab.value(FOLLOW.format("#detail", "linear"))
    tab.until(f"{RIGHT}.includes('Primitives')")
    assert "aten.linear.default" in tab.value(RIGHT) and "SumReduce" in tab.value(RIGHT)
    tab.value(FOLLOW.format("#detail", "contraction"))
    assert "Schedule" in tab.value(RIGHT)
    assert tab.problems == []  # no errors, and nothing was asked of the network


@needs_viewer
@needs_browser
def test_it_works_by_keyboard(tab: browser.Page, address: str) -> None:
    tab.open(address)
    tab.press("/")
    for letter in "softmax":
        tab.press(letter)
    assert "softmax" in tab.value("document.getElementById('lists').innerText")
    tab.press("Enter")
    tab.until(f"{RIGHT}.includes('aten.softmax.int')")
    tab.press("Escape")
    tab.press("Escape")
    tab.until(f"!{RIGHT}.includes('aten.softmax.int')")
    assert tab.problems == []


@needs_viewer
@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_something_is_drawn_in_light_and_in_dark(tab: browser.Page, address: str, dark: bool) -> None:
    tab.open(f"{address}#unfold", dark)
    counts = tab.until("""(() => { const c = document.getElementById('graph');
        const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const colors = new Set(); for (let i = 0; i < data.length; i += 4) if (data[i + 3] == 255)
        colors.add(data[i] + 256 * data[i + 1] + 65536 * data[i + 2]); return colors.size > 20 && colors.size; })()""")
    assert counts > 20
    lightness = tab.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (lightness < 60) == dark and tab.problems == []


@needs_viewer
@needs_browser
def test_memory_is_shown_over_time(tab: browser.Page, address: str, values: dict[str, Any]) -> None:
    tab.open(f"{address}#Memory")
    assert tab.value("document.querySelectorAll('.memory rect').length") == len(values["memory"]["buffers"])


@needs_viewer
def test_the_command(module: Module, tmp_path: Path) -> None:
    folder, output = module.export(tmp_path / "build", python_module=False), tmp_path / "page.html"
    result = CliRunner().invoke(cli.app, ["view", str(folder), "-o", str(output), "--no-time"])
    assert result.exit_code == 0, result.output
    assert "contraction" in output.read_text(encoding="utf-8")
    assert CliRunner().invoke(cli.app, ["view", str(tmp_path / "none.onnx"), "-o", str(output)]).exit_code == 2


def forking() -> bytes:
    """y = exp(x) where the sum of x is above zero, else the cumulated sum of x."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, [64])])

    then = branch("then", helper.make_node("Exp", ["x"], ["r"], "on_top"))
    other = branch("other", helper.make_node("CumSum", ["x", "axis"], ["r"], "below"))
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], "sum", keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=then, else_branch=other),
    ]
    constants = [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(np.int64(0), "axis")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy")
    graph = helper.make_graph(nodes, "forking", [x], [y], constants)
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def test_a_folder_of_which_a_branch_is_not_taken(tmp_path: Path) -> None:
    compiled = luminal.compile(forking(), threads=1)
    assert isinstance(compiled, Module)
    folder = compiled.export(tmp_path / "build", python_module=False)
    for module in (compiled, luminal.load(folder, threads=1)):
        for sign in (1, -1):
            x = np.full(64, sign, np.float32)
            found = collect(module, module.profile(x, runs=3, threads=1, peak=False))
            names = [step["name"] for step in found["steps"]]
            taken = [step["seconds"] > 0 for step in found["steps"]]
            assert len(names) == 3 and dict(zip(names[1:], taken[1:], strict=True)) == {
                "map1": sign == 1,
                "scan2": sign == -1,
            }


def test_a_folder_of_several_entries(tmp_path: Path) -> None:
    models = {"wide": nn.Linear(8, 64).eval(), "square": nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval()}
    compiled = luminal.compile(models, {name: (torch.zeros(2, 8),) for name in models}, name="several", threads=1)
    folder = compiled.export(tmp_path / "build", python_module=False)
    module = luminal.load(folder, threads=1)["square"]
    found = collect(module, module.profile(torch.ones(2, 8), runs=3, threads=1, peak=False))
    assert {step["seconds"] > 0 for step in found["steps"]} == {True, False}
