"""Cases of the ONNX project's own suites, compiled and run: a few of each theme, and each sixteenth of all that pass.

``python -m tests.onnx_suite --compiled`` runs all of them.
"""

import pytest

from tests import onnx_suite

THEMES = {
    "sampling": """test_gridsample_bicubic_align_corners_0_additional_1 test_gridsample_reflection_padding
       test_roialign_mode_max test_deform_conv_with_mask_bias""",
    "transposed": "test_convtranspose_dilations test_convtranspose_group_2 test_col2im_dilations",
    "fourier": "test_dft_irfft test_dft_inverse test_stft_with_window",
    "resize": "test_resize_downsample_scales_cubic_antialias test_resize_tf_crop_and_resize_extrapolation_value",
    "picked": """test_compress_1 test_reversesequence_time test_tensorscatter_circular test_det_nd
       test_maxpool_with_argmax_2d_precomputed_pads""",
    "n-grams": "test_tfidfvectorizer_tf_batch_uniandbigrams_skip5",
    "trees": "test_ai_onnx_ml_tree_ensemble_set_membership",
    "steps of training": "test_adam_multiple test_adagrad test_nesterov_momentum test_batchnorm_epsilon_training_mode",
    "sizes": "test_onehot_with_axis",
    "narrow": """test_cast_no_saturate_FLOAT_to_FLOAT8E4M3FNUZ test_cast_e8m0_FLOAT16_to_FLOAT8E8M0
       test_cast_FLOAT4E2M1_to_FLOAT16 test_quantizelinear_int4 test_dequantizelinear_uint2
       test_quantizelinear_e5m2""",
    "selections": """test_nonzero_example test_unique_sorted_with_axis_3d test_unique_not_sorted_without_axis
       test_nonmaxsuppression_two_classes test_nonmaxsuppression_center_point_box_format""",
    "loops": """test_loop11 test_if test_scan9_multi_state test_linear_attention_gated_delta_gqa
       test_linear_attention_fp16""",
    "quantised": "test_qlinearconv test_qlinearmatmul_2D_uint8_float32",
    "models": """simple/test_expand_shape_model1 simple/test_gradient_of_add_and_mul simple/test_sequence_model4
       pytorch-converted/test_PReLU_2d_multiparam pytorch-converted/test_BatchNorm3d_eval
       pytorch-operator/test_operator_convtranspose pytorch-operator/test_operator_add_size1_broadcast""",
}


SLICE = 16


def test_compiled_cases_pass() -> None:
    onnx_suite.check_compiled([name for names in THEMES.values() for name in names.split()])


@pytest.mark.parametrize("part", range(3))
def test_each_sixteenth_case_passes(part: int) -> None:
    names = [name for name in onnx_suite.listed(compiled=True) if not name.startswith("real/")]
    onnx_suite.check_compiled(names[::SLICE][part::3])
