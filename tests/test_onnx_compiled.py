"""Cases of the ONNX project's own node tests, compiled into one library for each theme and run."""

import pytest

from tests import onnx_suite

THEMES = {
    "resize": """test_resize_upsample_scales_nearest_axes_3_2 test_resize_downsample_scales_cubic_antialias
       test_resize_downsample_scales_linear_half_pixel_symmetric test_resize_tf_crop_and_resize_extrapolation_value
       test_resize_upsample_sizes_nearest_not_smaller test_upsample_nearest""",
}


@pytest.mark.parametrize("theme", THEMES)
def test_compiled_cases_pass(theme: str) -> None:
    onnx_suite.check_compiled(THEMES[theme].split())
