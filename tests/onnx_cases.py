"""The cases of the suites that the ONNX project has for back ends: single operators, exported modules, whole models."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

Array = np.ndarray[Any, Any]

# Beside the suite of nodes. The package holds their models and data; those of the suite "real" are named by a URL into
# its folder "light": real architectures, whose weights ConstantOfShape makes.
MODELS = ("simple", "pytorch-converted", "pytorch-operator", "real")


@lru_cache
def cases() -> dict[str, Any]:
    """The suite of nodes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases' own numpy code overflows on purpose
        with exact_transforms():
            return {case.name: case for case in collect_testcases(None) if case.data_sets is not None}


@lru_cache
def models() -> dict[str, Any]:
    """The suites of whole models, each name behind that of the suite."""
    return {f"{suite}/{case.name}": read(case) for suite in MODELS for case in load_model_tests(kind=suite)}


def everything() -> dict[str, Any]:
    return cases() | models()


def exact_transforms() -> AbstractContextManager[Any]:
    """Within this numpy's Fourier transforms are in double precision, as they were when ONNX wrote the data that it
    publishes. numpy 2 rounds those of float32 at each step: ``test_dft_inverse`` would expect 1.9e-7, its tolerance
    being 1e-7, where the sum that defines the transform is exactly 0, and 1e-15 is published."""
    names = ["fft", "ifft", "rfft", "irfft"]
    return mock.patch.multiple(np.fft, **{name: partial(in_double, getattr(np.fft, name)) for name in names})


def in_double(transform: Callable[..., Array], x: Array, *args: Any, **options: Any) -> Array:
    return transform(np.asarray(x, np.complex128 if np.iscomplexobj(x) else np.float64), *args, **options)


# ---- files ---------------------------------------------------------------------------------------------------------


def read(case: TestCase) -> TestCase:
    """``case`` with its model and the values that its files hold."""
    if case.url is not None:
        return read_light(case, Path(DATA_DIR) / "light" / Path(case.url).name)
    assert case.model_dir is not None
    folder = Path(case.model_dir)
    case.model = onnx.load(folder / "model.onnx")
    inputs, outputs = case.model.graph.input, case.model.graph.output
    case.data_sets = [
        (values(data, "input", inputs), values(data, "output", outputs)) for data in sorted(folder.glob("test_data_*"))
    ]
    return case


def read_light(case: TestCase, path: Path) -> TestCase:
    """The inputs of these models are made, as ONNX's own runner makes them; their files hold the one output."""
    case.model = onnx.load(path)
    weights = {tensor.name for tensor in case.model.graph.initializer}
    inputs = [Runner.generate_dummy_data(x) for x in case.model.graph.input if x.name not in weights]
    (output,) = case.model.graph.output
    case.data_sets = [(inputs, [value(path.with_name(f"{path.stem}_output_0.pb"), output)])]
    return case


def values(folder: Path, kind: str, declared: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [value(folder / f"{kind}_{k}.pb", declared[k]) for k in range(count)]


def value(path: Path, declared: onnx.ValueInfoProto) -> Any:
    """A tensor, or a list of them where a sequence is declared."""
    content = path.read_bytes()
    if declared.type.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(content))
