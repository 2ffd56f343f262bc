"""Arithmetic, casts and memory access of GPU kernels, under emulation, by the tests of the vector headers."""

from typing import Any

import pytest

from luminal.core import target as targets
from tests.test_vector_arithmetic import (  # noqa: F401
    test_bools,
    test_casts_round_once_and_are_total,
    test_floats_have_numpy_s_bits,
    test_fused_multiply_add_rounds_once_where_it_says_so,
    test_gather_reads_valid_lanes_only,
    test_integers_are_total,
    test_masked_and_strided_moves,
    test_masks_of_different_widths_meet,
    test_multiply_add_rounds_once_on_every_target,
    test_partial_moves_touch_their_lanes_only,
    test_reductions_across_lanes,
    test_scatter_leaves_the_last_of_equal_indices,
)
from tests.vector_support import build

CHECKED = ("-fsanitize=undefined,float-cast-overflow",)


@pytest.fixture(scope="module", params=[1, 4, 8], ids="{} lanes".format)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One lane is compiled with every check of undefined behaviour that the compiler has."""
    flags = [f"-DLANES={request.param}", "-DDEVICE", "-O1", *(CHECKED if request.param == 1 else ())]
    library = build("vector_arithmetic.cpp", targets.detect(), tmp_path_factory.mktemp("arithmetic"), *flags)
    library.lanes = request.param
    return library
