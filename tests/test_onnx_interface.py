"""luminal as a back end of ONNX's interface: the functions, and a selection of ONNX's own tests through its runner."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import TensorProto, helper

from luminal import onnx_backend
from luminal.core.errors import InputError

# One of each kind: element by element, reductions, views, contractions, windows, recurrence, control flow, values that
# decide shapes, integers, texts.
CASES = (
    "test_add_bcast_cpu", "test_softmax_large_number_cpu", "test_matmul_3d_cpu", "test_gemm_all_attributes_cpu",
    "test_conv_with_strides_padding_cpu", "test_maxpool_2d_dilations_cpu", "test_transpose_all_permutations_2_cpu",
    "test_reshape_negative_dim_cpu", "test_reduce_sum_keepdims_random_cpu", "test_slice_negative_axes_cpu",
    "test_gather_negative_indices_cpu", "test_lstm_with_peepholes_cpu", "test_if_cpu",
    "test_topk_smallest_cpu", "test_nonzero_example_cpu", "test_quantizelinear_axis_cpu", "test_string_concat_cpu",
    "test_argmax_no_keepdims_random_cpu", "test_layer_normalization_2d_axis1_cpu",
)  # fmt: skip


def chosen() -> dict[str, Any]:
    """The selected tests of ONNX's runner by name."""
    runner = onnx.backend.test.BackendTest(onnx_backend, __name__)
    for name in CASES:
        runner.include(f"^{name}$")
    found = {}
    for suite in runner.test_cases.values():
        for name in dir(suite):
            if name in CASES:
                found[name] = suite(name)
    return found


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    return chosen()


@pytest.mark.parametrize("name", CASES)
def test_case_of_onnx(cases: dict[str, Any], name: str) -> None:
    if name not in cases:
        pytest.skip("this version of onnx has no such case")
    result = unittest.TestResult()
    cases[name].run(result)
    assert result.testsRun == 1 and not result.skipped
    assert not result.errors and not result.failures, (result.errors + result.failures)[0][1]


def test_what_the_data_of_a_call_decides_without_a_bound_is_refused() -> None:
    node = helper.make_node("Range", ["start", "limit", "delta"], ["y"])
    with pytest.raises(InputError, match="state how many there can be, dims="):
        onnx_backend.run_node(node, [np.int32(10), np.int32(6), np.int32(-3)])


def model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["a", "b"], ["product"]), helper.make_node("Neg", ["a"], ["negative"])],
        "two",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "ab"],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("product", "negative")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_model_is_prepared_once_and_run_often() -> None:
    assert onnx_backend.is_compatible(model())
    prepared = onnx_backend.prepare(model(), "CPU", threads=1)
    for size in (1, 3):
        a, b = np.arange(size, dtype=np.float32), np.full(size, 3, np.float32)
        for inputs in ([a, b], (a, b), {"b": b, "a": a}):
            product, negative = prepared.run(inputs)
            np.testing.assert_array_equal(product, a * 3)
            np.testing.assert_array_equal(negative, -a)
    (found,) = onnx_backend.run_node(helper.make_node("Exp", ["x"], ["y"]), np.zeros(2, np.float32))
    np.testing.assert_array_equal(found, [1, 1])
    clip = helper.make_node("Clip", ["x", "", "most"], ["y"])  # the least is left out
    (found,) = onnx_backend.run_node(clip, [np.float32([1, 5]), np.float32(2)], opset_version=13)
    np.testing.assert_array_equal(found, [1, 2])
    with pytest.raises(InputError, match="expected 2 inputs, x, most, found 1"):
        onnx_backend.run_node(clip, np.float32([1]))


def test_devices() -> None:
    assert onnx_backend.supports_device("CPU") and onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA:0") and not onnx_backend.supports_device("abacus")
    with pytest.raises(InputError, match="expected CPU, found 'CUDA'"):
        onnx_backend.prepare(model(), "CUDA")
    with pytest.raises(onnx.checker.ValidationError):
        onnx_backend.prepare(onnx.ModelProto())
    unknown = model()
    unknown.graph.node[0].op_type = "NoSuchOperator"
    assert not onnx_backend.is_compatible(unknown)
