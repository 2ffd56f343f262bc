"""Cases of the ONNX project's own node tests, compiled into one library for each theme and run."""

import pytest

from tests import onnx_suite

THEMES = {
    "sampling": """test_gridsample_bicubic_align_corners_0_additional_1 test_gridsample_reflection_padding
       test_gridsample_volumetric_bilinear_align_corners_1 test_gridsample_nearest test_roialign_aligned_true
       test_roialign_mode_max test_deform_conv_with_multiple_offset_groups test_deform_conv_with_mask_bias""",
    "transposed": """test_convtranspose_dilations test_convtranspose_group_2 test_convtranspose_3d
       test_convtranspose_output_shape test_convtranspose_pads test_col2im_dilations test_col2im_5d
       test_col2im_strides""",
    "fourier": "test_dft_axis test_dft_irfft test_dft_rfft test_stft_with_window test_melweightmatrix",
    "resize": """test_resize_upsample_scales_nearest_axes_3_2 test_resize_downsample_scales_cubic_antialias
       test_resize_downsample_scales_linear_half_pixel_symmetric test_resize_tf_crop_and_resize_extrapolation_value
       test_resize_upsample_sizes_nearest_not_smaller test_upsample_nearest""",
}


@pytest.mark.parametrize("theme", THEMES)
def test_compiled_cases_pass(theme: str) -> None:
    onnx_suite.check_compiled(THEMES[theme].split())
