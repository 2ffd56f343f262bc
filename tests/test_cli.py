"""The command line: what it prints, and its exit codes."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
import typer
from onnx import TensorProto, helper
from rich.console import Console
from typer.testing import CliRunner, Result

import luminal
from luminal import cli, cli_folders, cli_llm, console, options, peak, timing
from luminal.codegen import dialect_cpp
from luminal.comparison import survival
from luminal.core import ir, ops, types
from luminal.core import target as targets
from luminal.core.errors import BuildError, InputError
from luminal.module import Module
from luminal.runtime import loader
from luminal.tuning import outcome as tuned
from luminal.tuning import search
from luminal.tuning.outcome import NO_FASTER, Answer, Outcome
from luminal.tuning.records import Measured
from tests import emulation
from tests.comparison_models import classifier, saved


def luminal_(*arguments: Any) -> Result:
    """The result of a command; its ``output`` holds what goes to standard error, too."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def consoles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles that write where the runner looks, without line breaks in paths."""
    out, err = Console(width=200), Console(width=200)
    for module in (cli, cli_folders, cli_llm, console):
        for name, value in (("out", out), ("err", err)):
            monkeypatch.setattr(module, name, value, raising=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(classifier(), tmp_path)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter, while the process acts for one who may not write everywhere."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        (Path(name) / "file").write_text("kept")
        (Path(name) / "old.npz").touch(mode=0o444)
        for folder in ("locked", "folder.npz"):
            (Path(name) / folder).mkdir(mode=0o555)
        (Path(name) / "cache" / "models").mkdir(parents=True)
        (Path(name) / "cache" / "models").chmod(0o555)
        os.seteuid(user or 65534)
        yield Path(name)
        os.seteuid(user)


def test_a_reader_that_has_enough_hears_no_more(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(cli.out, "print", broken)
    assert "error" not in luminal_("check", model).output


def test_version_and_help() -> None:
    assert luminal_("--version").output.strip() == f"luminal {luminal.__version__}"
    result = luminal_("--help")
    assert result.exit_code == 0
    assert all(command in result.output for command in ("check", "compile", "run", "diff", "bench", "tune"))


def test_tune_measures_records_and_saves(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, saved_to = tmp_path / "records", tmp_path / "saved.json"
    monkeypatch.setenv("LUMINAL_RECORDS", str(records))
    monkeypatch.delenv("LUMINAL_NO_RECORDS")
    arguments = ("tune", model, "--budget", 300, "--threads", 1, "--save", saved_to)
    result = luminal_(*arguments)
    assert result.exit_code == 0, result.output
    (counts,) = (line for line in result.output.splitlines() if "measured now" in line)
    assert re.fullmatch(r"classifier at batch=\d+: [1-9]\d* questions? measured now, 0 before, none left", counts)
    assert result.output.count(counts.partition(": ")[0]) == 2 and "rejected" not in result.output  # the table's title
    measured = int(counts.split()[3])
    assert re.search(rf"is taken for \d+ of {measured}; records in {records}\n", result.output)
    assert set(json.loads(saved_to.read_text())) == {"language", "machines"}
    again = luminal_(*arguments)
    # A choice that the whole model does not confirm is dropped, and with it the questions that it alone had raised.
    answered = re.search(r": 0 questions measured now, (\d+) before, none left\n", again.output)
    assert answered and 1 <= int(answered[1]) <= measured, again.output
    assert "made for" in result.output and "made for" not in again.output
    records.write_text("damaged " * 1000)
    result = luminal_(*arguments)
    assert result.exit_code == 2 and "cannot be used" in result.output and str(records) in result.output


@pytest.mark.parametrize(
    ("default", "other", "taken"),
    [
        (Measured(0, "a", 1.0, 1.0, 5), Measured(1, "b", 0.5, 0.5, 5), "2.00x"),
        (Measured(0, "a", 1.0, 1.0, 5), Measured(1, "b", 2.0, 2.0, 5), "the default"),
        (Measured(0, "a", 1.0, 1.0, 5), Measured(1, "b", 0.98, 0.98, 5), "the default: 2% faster, not 3%"),
        (Measured(0, "a", 1.0, 1.1, 5), Measured(1, "b", 0.95, 0.95, 5), "the default: 5% faster, not 10%"),
        (Measured(0, "a", 0.0, 0.0, 0, "it crashed"), Measured(1, "b", 0.5, 0.5, 5), "the default"),
    ],
)
def test_the_table_of_tuning_says_what_is_taken(default: Measured, other: Measured, taken: str) -> None:
    shown = io.StringIO()
    Console(file=shown, width=120).print(tuned.table(outcome(Answer("tile", ("conv",), (default, other)))))
    cells = shown.getvalue().splitlines()[-2].split("│")
    assert cells[-3].strip() == taken


TIMED = {"seconds": (1.0, 0.5), "changed": 1}
ENDED = "the budget ended before all questions were known"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ["m: 1 question measured now, 0 before, none left", "is taken for 0 of 1; records in tuning.sqlite"]),
        ({"new": 0}, ["m: 0 questions measured now, 0 before, none left", "records in tuning.sqlite"]),
        ({"known": 3, "left": 2}, ["m: 1 question measured now, 3 before, 2 left", "is taken for 0 of 4; records in"]),
        ({"more": True}, [f"m: 1 question measured now, 0 before; {ENDED}", "is taken for 0 of 1; records in"]),
        ({"left": 2, "more": True}, [f"m: 1 question measured now, 0 before, 2 left; {ENDED}", "0 of 1; records in"]),
        ({"sizes": {"batch": 4, "n": 7}}, ["m at batch=4, n=7: 1 question measured now", "0 of 1; records in"]),
        (TIMED, ["1 s a run by default, 500 ms with all that was chosen, of which 1 stay", "m", "is taken for 1 of 1"]),
        ({**TIMED, "run_sizes": {"n": 3}}, ["1 s a run at n=3 by default, 500 ms with", "m: 1 question", "for 1 of 1"]),
    ],
)
def test_a_search_says_what_it_found(facts: dict[str, Any], expected: list[str]) -> None:
    found = outcome(Answer("tile", (), (Measured(0, "a", 1.0, 1.0, 5), Measured(1, "b", 0.5, 0.5, 5))), **facts)
    lines = tuned.lines(found)
    assert len(lines) == len(expected) and all(part in line for part, line in zip(expected, lines, strict=True))
    assert "made for" in str(found) and str(found).endswith("\n" + "\n".join(lines))
    assert str(outcome(**facts)) == "\n".join(tuned.lines(outcome(**facts)))


def outcome(*answers: Answer, **facts: Any) -> Outcome:
    """Of a search that measured one question of the model ``m``."""
    plain: dict[str, Any] = {
        "known": 0, "left": 0, "more": False, "seconds": None, "new": 1, "changed": 0, "name": "m", "sizes": {},
        "run_sizes": {}, "path": Path("tuning.sqlite"),
    }  # fmt: skip
    return Outcome(answers, **{**plain, **facts})


def test_what_a_search_rejects_is_listed() -> None:
    rows = Measured(0, "a", 1, 1, 5), Measured(1, "b", 0, 0, 0, "it crashed"), Measured(2, "c", 2, 2, 5, NO_FASTER)
    found = str(outcome(Answer("tile", (), rows)))
    assert "tile: b is rejected: it crashed" in found and NO_FASTER not in found


def test_an_interrupted_search_says_how_it_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("LUMINAL_RECORDS", str(tmp_path / "records"))
    monkeypatch.setattr(luminal, "tune", interrupted, raising=False)
    monkeypatch.setattr(luminal, "compile", interrupted, raising=False)
    build = ("compile", model, "-o", tmp_path / "built")
    said = f"interrupted: what was measured is in {tmp_path / 'records'}; the same command goes on there"
    for command in (("tune", model, "--budget", 5), (*build, "--search", "quick")):
        result = luminal_(*command)
        assert result.exit_code == 130 and said in result.output
    result = luminal_("tune", model, "--budget", 5, "--again")
    assert result.exit_code == 130 and "; without --again, the same command goes on there" in result.output
    result = luminal_(*build)
    assert result.exit_code == 130 and "records" not in result.output


def test_compile_says_what_its_search_found(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = tmp_path / "records"
    monkeypatch.setenv("LUMINAL_RECORDS", str(records))
    monkeypatch.delenv("LUMINAL_NO_RECORDS")
    monkeypatch.setattr(search, "QUICK", 300.0)
    result = luminal_("compile", model, "-o", tmp_path / "built", "--search", "quick", "--threads", 1)
    assert result.exit_code == 0, result.output
    assert re.search(r"classifier at batch=\d+: [1-9]\d* questions? measured now, 0 before, none left\n", result.output)
    assert f"records in {records}\n" in result.output
    assert "measured now" not in luminal_("compile", model, "-o", tmp_path / "built").output


def test_tune_refuses_a_gpu_that_is_not_there(model: Path) -> None:
    result = luminal_("tune", model, "--budget", 5, "--target", "metal")
    assert (
        result.exit_code == 2
        and "schedules for metal cannot be measured here: this machine has no Metal" in result.output
    )


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore interrupts
sys.meta_path.insert(0, Interrupt())
from luminal.__main__ import main
main()
"""


def test_an_interrupt_of_the_imports_leaves_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGINT and done.stdout == done.stderr == ""


# ---- check ---------------------------------------------------------------------------------------------------------


def test_check_says_yes(model: Path) -> None:
    result = luminal_("check", model)
    assert result.exit_code == 0 and "every operator is supported" in result.output


def test_check_lists_operators(model: Path) -> None:
    rows = luminal_("check", model).output.splitlines()
    (row,) = (row for row in rows if "MatMul" in row)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["MatMul", "13", "2", "7 of 7", "yes"]


@pytest.fixture
def streams(consoles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error apart from what a program reads."""
    monkeypatch.setattr(cli, "err", Console(width=200, stderr=True))


def test_check_for_programs(streams: None, model: Path, tmp_path: Path) -> None:
    result = luminal_("check", model, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["model"] == model.name and found["supported"] and found["places"] == []
    assert {"name": "MatMul", "opset": 13, "nodes": 2, "places": [], "cases": [7, 7]} in found["operators"]
    result = luminal_("check", saved(classifier(unknown=True), tmp_path), "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and not found["supported"]
    unknown = [(place["op"], place["node"]) for place in found["places"]]
    assert unknown == [("nowhere.Perhaps", "first"), ("nowhere.Never", "second")]


def test_check_for_programs_says_errors_as_to_people(streams: None, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"\x08")
    for path in (tmp_path / "nowhere.onnx", tmp_path / "broken.onnx"):
        result = luminal_("check", path, "--json")
        assert result.exit_code == 2 and result.stdout == "" and str(path) in result.stderr


def test_check_lists_everything_at_once(tmp_path: Path) -> None:
    result = luminal_("check", saved(classifier(unknown=True), tmp_path))
    assert result.exit_code == 1 and "2 unsupported" in result.output
    assert all(word in result.output for word in ("Perhaps", "first", "Never", "second"))


def test_check_reads_exported_programs(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.zeros(4, 3),))
    torch.export.save(program, tmp_path / "linear.pt2")
    assert luminal_("check", tmp_path / "linear.pt2").exit_code == 0


# ---- compile and run -----------------------------------------------------------------------------------------------


def test_compile_then_run(model: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    result = luminal_("compile", model, "-o", built, "--dim", "batch=1:16", "--name", "small")
    assert result.exit_code == 0 and "libsmall.so" in result.output and "small.weights" in result.output
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    result = luminal_("run", built, "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "made" / "results.npz")
    assert result.exit_code == 0 and "probabilities: float32[3, 5]" in result.output
    found = np.load(tmp_path / "made" / "results.npz")["probabilities"]
    np.testing.assert_allclose(found.sum(1), np.ones(3), rtol=1e-6)
    result = luminal_("run", built, "--input", tmp_path / "made" / "results.npz")
    assert result.exit_code == 2 and "x: float32[batch, 8]" in result.output
    np.save(tmp_path / "wide.npy", np.zeros((3, 9), np.float32))
    assert luminal_("run", built, "--input", f"x={tmp_path / 'wide.npy'}").exit_code == 2
    result = luminal_("run", built, "--input", f"y={tmp_path / 'x.npy'}")
    assert result.exit_code == 2 and "--input names y; the inputs are x" in result.output
    for nothing in (tmp_path / "nothing", tmp_path, model):
        result = luminal_("run", nothing)
        assert result.exit_code == 2 and "no exported model" in result.output and "luminal compile" in result.output
    result = luminal_("run", built, "-o", tmp_path / "y.npy")
    assert result.exit_code == 2 and ".npz" in result.output and not (tmp_path / "y.npy").exists()
    with pytest.raises(InputError, match="expected a folder, found a file of that name"):
        luminal.load(built).export(tmp_path / "x.npy")


def test_files_of_types_that_numpy_has_not_by_itself(tmp_path: Path) -> None:
    """Its files keep their bits, not their names."""
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["y"], to=TensorProto.FLOAT8E5M2),
    ]
    x, y = (("x", TensorProto.INT4), ("y", TensorProto.FLOAT8E5M2))
    graph = helper.make_graph(
        nodes, "narrow", [helper.make_tensor_value_info(*x, [3])], [helper.make_tensor_value_info(*y, [3])]
    )
    path, built = tmp_path / "narrow.onnx", tmp_path / "built"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    assert luminal_("check", path).exit_code == 0
    assert luminal_("compile", path, "-o", built).exit_code == 0
    np.save(tmp_path / "x.npy", np.array([-8, 3, 0], ml_dtypes.int4))
    result = luminal_("run", built, "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "results")
    assert result.exit_code == 0 and "y: float8_e5m2[3], -8 .. 3" in result.output
    found = np.load(tmp_path / "results" / "y.npy").view(ml_dtypes.float8_e5m2)
    assert found.astype(float).tolist() == [-8, 3, 0]
    result = luminal_("diff", path, "--input", f"x={tmp_path / 'x.npy'}", "--reference", "interpreter")
    assert result.exit_code == 0, result.output


def test_an_export_replaces_nothing_but_its_own_model(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for content in ("not ours", '{"name": "an app"}'):
        (project / "CMakeLists.txt").write_text("mine")
        (project / "manifest.json").write_text(content)
        with monkeypatch.context() as patch:
            patch.delattr(luminal.api, "compile")  # it says so before it compiles
            result = luminal_("compile", model, "-o", project)
        assert result.exit_code == 2 and "found CMakeLists.txt, manifest.json" in result.output
        assert "name another folder" in result.output and (project / "CMakeLists.txt").read_text() == "mine"
    built = tmp_path / "built"
    built.mkdir()
    assert luminal_("compile", model, "-o", built, "--name", "small").exit_code == 0
    assert luminal_("compile", model, "-o", built, "--name", "small", "--dim", "batch=2:8").exit_code == 0
    result = luminal_("compile", model, "-o", built, "--name", "large")
    assert result.exit_code == 2 and "found the model 'small'" in result.output
    with pytest.raises(InputError, match="found CMakeLists"):
        luminal.load(built).export(project)
    assert sorted(path.name for path in project.iterdir()) == ["CMakeLists.txt", "manifest.json"]


FOREIGN = targets.AARCH64
NO_COMPILER = emulation.missing_compiler(FOREIGN)


@pytest.mark.skipif(targets.architecture() == FOREIGN.architecture, reason="this machine is no other")
@pytest.mark.skipif(bool(NO_COMPILER), reason=NO_COMPILER)
def test_compile_for_another_machine(model: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    result = luminal_("compile", model, "-o", built, "--dim", "batch=1:16", "--target", "aarch64")
    assert result.exit_code == 0 and "cannot run here: it is for aarch64, and this machine is" in result.output
    assert not list(built.glob("*.cpython*"))
    for command in (("run", built), ("diff", model, "--target", "neon"), ("bench", model, "--target", "neon")):
        result = luminal_(*command)
        assert result.exit_code == 2 and "for aarch64, and this machine is" in result.output
    result = luminal_("compile", model, "-o", built, "--target", "pentium")
    assert result.exit_code == 2 and "aarch64" in result.output and "'pentium'" in result.output


@pytest.mark.parametrize("target", ["cuda:sm_90", "metal"])
def test_compile_for_a_gpu_that_is_emulated(model: Path, target: str, tmp_path: Path) -> None:
    built = tmp_path / "built"
    options = ("-o", built, "--dim", "batch=1:16", "--target", target)
    result = luminal_("compile", model, *options, "--emulate")
    assert result.exit_code == 0 and f"emulates {target} on this machine: slowly" in result.output
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32))
    result = luminal_("run", built, "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "results.npz")
    assert result.exit_code == 0 and "probabilities: float32[3, 5]" in result.output
    np.testing.assert_allclose(np.load(tmp_path / "results.npz")["probabilities"].sum(1), np.ones(3), rtol=1e-6)
    result = luminal_("compile", model, "-o", built, "--emulate")
    assert result.exit_code == 2 and "emulate: expected a GPU" in result.output


def test_constants_fix_inputs(tmp_path: Path) -> None:
    model = classifier()
    model.graph.input.append(onnx.helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [2]))
    model.graph.node.append(onnx.helper.make_node("Reshape", ["probabilities", "shape"], ["shaped"]))
    model.graph.output[0].name = "shaped"
    np.save(tmp_path / "shape.npy", np.array([-1, 1]))
    path = saved(model, tmp_path)
    fixed = ("--constant", f"shape={tmp_path / 'shape.npy'}", "--dim", "batch=2")
    assert luminal_("check", path, *fixed).exit_code == 0
    result = luminal_("diff", path, *fixed)
    assert result.exit_code == 0 and "shaped float32[10, 1]" in result.output


# ---- diff and bench ------------------------------------------------------------------------------------------------


def test_diff(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = luminal_("diff", model, "--dim", "batch=1:16", "--seed", 3)
    assert result.exit_code == 0 and "agrees" in result.output
    if targets.needs_emulation(targets.GPUS["metal"]):
        result = luminal_("diff", model, "--dim", "batch=1:16", "--target", "metal")
        assert result.exit_code == 0 and "for metal, emulated" in result.output and "agrees" in result.output
    recip = dialect_cpp.TABLE[ops.RECIP]
    monkeypatch.setitem(dialect_cpp.TABLE, ops.RECIP, lambda call: f"mul({recip(call)}, {recip(call)})")
    result = luminal_("diff", model, "--dim", "batch=1:16", "--save", tmp_path / "mismatch")
    assert result.exit_code == 1 and "first diverging operator: Softmax 'normalisation'" in result.output
    assert (tmp_path / "mismatch" / "inputs.npz").is_file()


def test_precision(model: Path, tmp_path: Path) -> None:
    result = luminal_("diff", model, "--target", "cuda:sm_90", "--precision", "tf32", "--dim", "batch=4")
    assert result.exit_code == 0 and "cuda:sm_90, tf32" in result.output
    result = luminal_("compile", model, "--precision", "tf32", "-o", tmp_path / "folder")
    assert result.exit_code == 2 and "expected fp32" in result.output
    result = luminal_("compile", model, "--precision", "tf16", "-o", tmp_path / "folder")
    assert result.exit_code == 2 and "tf32" in result.output and "Traceback" not in result.output


def test_weights(model: Path, tmp_path: Path) -> None:
    result = luminal_("diff", model, "--weights", "int8", "--dim", "batch=4")
    assert result.exit_code == 0 and "weights of int8 (operators: 0)" in result.output
    result = luminal_("compile", model, "--weights", "int8", "-o", tmp_path / "folder")
    assert result.exit_code == 0
    assert "--weights int8: operators computed so, listed in manifest.json: 0" in result.output
    result = luminal_("compile", model, "--activations", "q8", "-o", tmp_path / "folder")
    assert "--activations q8: operators computed so, listed in manifest.json: 0" in result.output
    result = luminal_("compile", model, "--weights", "int3", "-o", tmp_path / "folder")
    assert result.exit_code == 2 and "int4-128" in result.output


def test_winograd(model: Path, tmp_path: Path) -> None:
    result = luminal_("diff", model, "--winograd", "1e-3", "--dim", "batch=4")
    assert result.exit_code == 0 and "winograd 0.001" in result.output
    for budget in ("0", "-1", "nan", "inf", "small"):
        result = luminal_("compile", model, "--winograd", budget, "-o", tmp_path / "folder")
        assert result.exit_code == 2 and "--winograd" in result.output and "Traceback" not in result.output


def test_bench(model: Path) -> None:
    result = luminal_("bench", model, "--size", "batch=5", "--runs", 3, "--threads", 1)
    assert result.exit_code == 0 and "batch=5" in result.output and "onnxruntime" in result.output
    result = luminal_("bench", model, "--size", "depth=5", "--runs", 3)
    assert result.exit_code == 2 and "the model has no depth; its symbolic sizes are batch" in result.output
    result = luminal_("bench", model, "--size", "batch=3", "--dim", "batch=3", "--runs", 3)
    assert result.exit_code == 2 and "the model has no batch; it has no symbolic sizes" in result.output
    result = luminal_("bench", model, "--size", "batch=4000", "--dim", "batch=2:8", "--runs", 3)
    assert result.exit_code == 2 and "expected 2..8, the bounds of batch" in result.output
    result = luminal_("bench", model, "--threads", 100000)
    assert result.exit_code == 2 and "1023" in result.output and "Traceback" not in result.output
    assert [timing.ratio(value) for value in (1.234, 0.01, 0.004)] == ["1.23x", "0.01x", "<0.01x"]


def test_bench_of_kernels(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "STREAM", 1 << 20)
    result = luminal_("bench", model, "--kernels", "--size", "batch=5", "--runs", 3, "--threads", 1)
    assert result.exit_code == 0 and "batch=5" in result.output and "1 thread reaches" in result.output
    assert "onnxruntime" not in result.output
    assert "MatMul" in result.output and "Softmax" in result.output and "contraction0" in result.output


def test_timings_take_turns() -> None:
    calls: list[str] = []
    seen: list[tuple[int, int]] = []
    found = timing.interleaved(
        {name: lambda name=name: calls.append(name) for name in "ab"},  # type: ignore[misc]
        runs=3,
        warmup=1,
        pause=0.0,
        watch=lambda done, total: seen.append((done, total)),
    )
    assert "".join(calls) == "ab" * 4
    assert seen[0] == (0, 3) and seen[-1] == (3, 3)
    assert 0 <= found["a"].best <= found["a"].median
    lasting = timing.interleaved({"a": lambda: None}, runs=3, warmup=0, pause=0.001, lasting=0.5)
    assert len(lasting["a"].seconds) > 3
    assert [timing.text(s) for s in (2.5, 0.0125, 3e-6)] == ["2.5 s", "12.5 ms", "3 µs"]


def test_nothing_is_timed_after_itself_or_always_after_the_same() -> None:
    calls: list[str] = []
    contenders = {name: lambda name=name: calls.append(name) for name in "abcd"}  # type: ignore[misc]
    timing.interleaved(contenders, runs=40, warmup=0, pause=0.0)
    rounds = ["".join(calls[first : first + 4]) for first in range(0, len(calls), 4)]
    assert len(rounds) == 40 and {"".join(sorted(order)) for order in rounds} == {"abcd"}
    followed = Counter(pairwise(calls))
    assert set(followed) == set(permutations("abcd", 2)) and max(followed.values()) < 3 * min(followed.values())


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "compile", "diff", "bench"])
@pytest.mark.parametrize("content", [None, b"", b"no model at all", "half"])
def test_bad_files(command: str, content: bytes | str | None, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    if content is not None:
        whole = classifier().SerializeToString()
        path.write_bytes(whole[: len(whole) // 2] if content == "half" else bytes(content))
    result = luminal_(command, path, *(["-o", tmp_path / "built"] if command == "compile" else []))
    assert result.exit_code == 2
    assert "error:" in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--target", "abacus"), ("--dim", "batch"), ("--dim", "batch=many"), ("--dim", "batch=9:3"),
        ("--constant", "x"), ("--constant", "x=nothing.npy"),
    ],
)  # fmt: skip
def test_bad_options(arguments: tuple[str, str], model: Path) -> None:
    result = luminal_("diff", model, *arguments)
    assert result.exit_code == 2 and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a .npy file, as numpy.save writes it, found that it is empty"),
        ("1, 2, 3", "expected a .npy file, as numpy.save writes it, found that it is no such file"),
        ({"x": np.zeros(3)}, "expected a .npy file, as numpy.save writes it, found that it is no such file"),
        (np.array([None, "x"]), "it holds objects of Python: expected numbers or texts"),
    ],
)
def test_files_that_hold_no_array(content: Any, message: str, tmp_path: Path) -> None:
    """``NAME=FILE.npy`` and ``FILE.npz`` alike."""
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        if isinstance(content, str):
            file.write(content.encode())
        elif isinstance(content, dict):
            np.savez(file, **content)
        else:
            np.save(file, content)
    with pytest.raises(typer.BadParameter) as caught:
        options.arrays([f"x={path}"], "--input")
    assert message in caught.value.message and "pickle" not in caught.value.message
    archive = tmp_path / "x.npz"
    if isinstance(content, np.ndarray):
        np.savez(archive, x=content)
    else:
        archive.write_text(content if isinstance(content, str) else "no archive")
    with pytest.raises(typer.BadParameter) as caught:
        options.arrays([str(archive)], "--input")
    assert message.replace(".npy", ".npz").replace("numpy.save", "numpy.savez") in caught.value.message


@pytest.mark.parametrize("place", ["file", "file/beneath", "locked", "locked/beneath"])
def test_outputs_that_cannot_be_written(place: str, shared: Path) -> None:
    """Each command says so before it looks at anything else, in words of its own."""
    path = shared / place
    for command in (("compile", "x.onnx", "-o"), ("run", "x", "-o"), ("diff", "x.onnx", "--save")):
        result = luminal_(*command, path)
        assert result.exit_code == 2 and f"{str(path)!r}: expected a folder" in result.output
        assert "found a file" in result.output or str(shared / place.partition("/")[0]) in result.output
        assert "name another folder" in result.output
    assert "expected a folder" in luminal_("run", "x", "-o", path / "results.npz").output
    assert (shared / "file").read_text() == "kept"


def test_archives_that_cannot_be_written(shared: Path) -> None:
    result = luminal_("run", "x", "-o", shared / "folder.npz")
    assert result.exit_code == 2 and "expected a file, found a folder of that name" in result.output
    result = luminal_("run", "x", "-o", shared / "old.npz")
    assert result.exit_code == 2 and "expected a file that you may write" in result.output


def test_a_cache_that_cannot_be_written(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ir.input_("x", (3,), types.f32)
    for folder, done in ((shared / "locked", "create"), (shared / "cache", "write to")):
        monkeypatch.setenv("LUMINAL_CACHE", str(folder))
        with pytest.raises(BuildError, match=f"cannot {done} the cache {folder}/models .*: set LUMINAL_CACHE to"):
            luminal.compile(ir.Graph("m", (given,), (("y", given),)))


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("LUMINAL_JOBS", "0", "a positive number"),
        ("LUMINAL_JOBS", "abc", "a positive number"),
        ("LUMINAL_NO_RECORDS", "yes", "0 or 1"),
        ("LUMINAL_NO_CACHE", "-", "0 or 1"),
    ],
)
def test_variables_that_make_no_sense(variable: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before the model is looked at."""
    monkeypatch.setenv(variable, text)
    for command in (("check", "absent.onnx"), ("compile", "absent.onnx", "-o", "absent"), ("run", "absent")):
        result = luminal_(*command)
        assert result.exit_code == 2 and result.output.startswith(f"error: {variable}={text!r}: expected {expected}; ")


def test_unknown_dimensions_are_named(model: Path) -> None:
    result = luminal_("diff", model, "--dim", "depth=3")
    assert result.exit_code == 2 and "depth" in result.output and "batch" in result.output


def test_unsupported_operators_end_a_compilation(tmp_path: Path) -> None:
    result = luminal_("compile", saved(classifier(unknown=True), tmp_path), "-o", tmp_path / "built")
    assert result.exit_code == 1 and "Perhaps" in result.output and "Never" in result.output


def test_a_library_that_fails_ends_a_command(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, x = tmp_path / "built", tmp_path / "x.npy"
    options = ("--dim", "batch=1:16", "--target", "cuda:sm_90")
    assert luminal_("compile", model, "-o", built, *options, "--emulate").exit_code == 0
    np.save(x, np.zeros((3, 8), np.float32))
    for function, command in (
        ("cuInit", ("compile", model, "-o", built, *options, "--emulate")),
        ("cuGraphLaunch", ("run", built, "--input", f"x={x}")),
        ("cuMemAlloc_v2", ("run", built, "--input", f"x={x}")),
    ):
        result_code = 2 if function == "cuMemAlloc_v2" else 999
        monkeypatch.setenv("LUMINAL_CUDA_FAIL", f"{function}:1:{result_code}")
        result = luminal_(*command)
        (line,) = (line for line in result.output.splitlines() if "error" in line)
        assert result.exit_code == 1 and line.startswith("error: cannot ") and f"{function} says" in line
    monkeypatch.delenv("LUMINAL_CUDA_FAIL")

    def fail(*arguments: Any) -> None:
        raise loader.LibraryError("the operator failed in step 3")

    monkeypatch.setattr(Module, "run", fail)
    monkeypatch.setattr(survival, "run", lambda *_: ("", None))  # as where it raises in the process that tries it
    for command in (("diff", model), ("bench", model, "--runs", 3)):
        result = luminal_(*command)
        assert result.exit_code == 1 and "error: the operator failed in step 3" in result.output


def test_debug_shows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise BuildError("no compiler was found")

    monkeypatch.setattr(luminal, "compile", fail, raising=False)
    result = luminal_("compile", "x.onnx", "-o", tmp_path)
    assert result.exit_code == 1 and "error: no compiler was found" in result.output
    with pytest.raises(BuildError):
        luminal_("--debug", "compile", "x.onnx", "-o", tmp_path)
