"""The ONNX project's own node tests through the interpreter: a scoreboard that may only grow.

``tests/onnx_backend_passed.txt`` names the cases that pass. After adding operators, run this file as a script: it
prints the count and rewrites the list.
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases

from luminal.core import interp, types
from luminal.core.errors import InputError, LuminalError, UnsupportedError
from luminal.core.ir import Graph
from luminal.frontends.onnx import importer

LIST = Path(__file__).with_name("onnx_backend_passed.txt")
CHUNKS = 16

# A value that decides shapes is given when the model is compiled, and such values are small.
DECIDES = 64


@lru_cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases' own numpy code overflows on purpose
        return {case.name: case for case in collect_testcases(None) if case.data_sets is not None}


def load(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Graph:
    try:
        return importer.load(model)
    except InputError:
        return importer.load(model, constants={k: v for k, v in inputs.items() if v.size <= DECIDES and v.ndim <= 1})


def check(case: Any) -> None:
    """Raises LuminalError where the case does not import, AssertionError where a result differs."""
    for arguments, expected in case.data_sets:
        names = [value.name for value in case.model.graph.input]
        inputs = {name: array(value) for name, value in zip(names, arguments, strict=False)}
        graph = load(case.model, inputs)
        results = interp.run(graph, {k: v for k, v in inputs.items() if k in {n.attr.name for n in graph.inputs}})
        assert len(results.outputs) == len(expected)
        for found, wanted in zip(results.outputs, expected, strict=True):
            compare(found, array(wanted), case.rtol, case.atol)


def array(value: Any) -> np.ndarray:
    """Cases of types that numpy has not by itself come as TensorProto, sequences as lists."""
    if isinstance(value, list):
        raise UnsupportedError("sequences are not supported")
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def compare(found: np.ndarray, wanted: np.ndarray, rtol: float, atol: float) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found.dtype, found.shape, wanted.dtype)
    dtype = types.from_numpy(found.dtype)
    if not dtype.is_float:
        np.testing.assert_array_equal(found, wanted)
        return
    # The cases' own numpy code rounds 16-bit values elsewhere than the operators that it spells out.
    rtol = max(rtol, 2 * dtype.eps) if dtype.bits <= 16 else rtol
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol, atol)


def listed() -> list[str]:
    return LIST.read_text().split() if LIST.exists() else []


def chunks(names: Sequence[str]) -> Iterator[list[str]]:
    return (list(names[start::CHUNKS]) for start in range(CHUNKS))


@pytest.mark.parametrize("names", [pytest.param(names, id=str(k)) for k, names in enumerate(chunks(listed()))])
def test_no_case_that_passed_fails(names: list[str]) -> None:
    failed: list[str] = []
    for name in names:
        if name in cases():  # another version of onnx may not have it
            try:
                check(cases()[name])
            except (LuminalError, AssertionError) as error:
                failed.append(f"{name}: {error}")
    assert not failed, "\n".join(failed)


def test_most_cases_pass() -> None:
    assert len(listed()) >= 1400


def scoreboard() -> None:
    passed: list[str] = []
    refused: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for name, case in sorted(cases().items()):
        try:
            check(case)
        except LuminalError as error:
            refused[name] = str(error)
        except Exception as error:  # noqa: BLE001 - a crash is a line of the report
            wrong[name] = f"{type(error).__name__}: {error}"
        else:
            passed.append(name)
    for title, found in {"refused": refused, "wrong": wrong}.items():
        for name, error in found.items():
            print(f"{title}: {name}: {' '.join(error.split())[:300]}")
    print(f"{len(passed)} of {len(cases())} pass, {len(refused)} refused, {len(wrong)} wrong")
    LIST.write_text("\n".join(passed) + "\n")


if __name__ == "__main__":
    scoreboard()
