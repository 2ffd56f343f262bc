"""Arithmetic, casts and memory access of GPU kernels, under emulation, by the tests of the vector headers."""

from typing import Any

import numpy as np
import pytest

from luminal.core import target as targets
from tests.test_vector_arithmetic import (  # noqa: F401
    apply,
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
    test_quantising_rounds_to_nearest_even_and_saturates,
    test_reductions_across_lanes,
    test_scatter_leaves_the_last_of_equal_indices,
)
from tests.vector_support import build, same_bits

CHECKED = ("-fsanitize=undefined,float-cast-overflow",)


@pytest.fixture(scope="module", params=[1, 4, 8], ids="{} lanes".format)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One lane is compiled with every check of undefined behaviour that the compiler has."""
    flags = [f"-DLANES={request.param}", "-DDEVICE", "-O1", *(CHECKED if request.param == 1 else ())]
    library = build("vector_arithmetic.cpp", targets.detect(), tmp_path_factory.mktemp("arithmetic"), *flags)
    library.lanes = request.param
    return library


def test_quotients_round_once_however_close_to_a_middle_they_are(library: Any) -> None:
    """Also by divisors of whose reciprocals an estimate does not settle, of any exponents, and in the middle between
    subnormal numbers."""
    rng, count = np.random.default_rng(0), 200_000
    fractions = rng.integers(0, 1 << 23, count, dtype=np.uint32)
    fractions[: count // 8] = 0x7FFFFF - np.arange(count // 8, dtype=np.uint32) // 64
    b = (fractions | np.uint32(0x3F800000)).view(np.float32)
    quotients = rng.uniform(1, 2, count).astype(np.float32)
    middles = quotients.astype(np.float64) + 2.0**-24
    near = (b * middles).astype(np.float32)
    powers = np.ldexp(np.float32(1), rng.integers(-126, 127, count))
    odd = (2 * rng.integers(0, 1 << 22, count) + 1).astype(np.float32)
    with np.errstate(all="ignore"):
        for x, y in (
            (near, b),
            (np.ones_like(b), b),
            (near * powers, b),
            (near, b * powers),
            (near * powers, b * powers),
            (near * np.float32(2.0**-126), -b),
            (odd * np.float32(2.0**-110), np.full(count, 2.0**40, np.float32)),
            (rng.integers(0, 1 << 24, count, dtype=np.uint32).view(np.float32), b * powers),
        ):
            assert same_bits(apply(library, "div", x, y), x / y)
