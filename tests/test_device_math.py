"""The math functions of GPU kernels, under emulation, by the tests of the vector math library: 2 ULP."""

from typing import Any

import pytest

from luminal.core import target as targets
from tests.test_vector_math import (  # noqa: F401
    references,
    samples,
    test_a_scale_that_is_no_known_constant_counts_as_written,
    test_doubles_closest_to_multiples_of_half_pi,
    test_scalars_give_the_bits_of_vectors,
    test_special_values_as_the_c_library_has_them,
    test_within_two_units_in_the_last_place,
)
from tests.vector_support import build


@pytest.fixture(scope="module", params=[(), ("-DLM_EMULATE_CUDA",)], ids=["any device", "CUDA"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With ``LM_EMULATE_CUDA``, what a GPU's instruction may be wrong by is emulated, too."""
    flags = ("-DLANES=4", "-DDEVICE", "-O1", *request.param)
    return build("vector_math.cpp", targets.detect(), tmp_path_factory.mktemp("math"), *flags)
