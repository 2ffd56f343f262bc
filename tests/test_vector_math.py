"""The vector math library against wider arithmetic: every exponent, random mantissas, special values, 2 ULP."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from luminal.core.target import Target
from tests.native import fit_polynomials
from tests.vector_support import EVERY_TARGET, build, pointer, same_bits, ulps

Array = np.ndarray[Any, Any]

# Two units for the library; what the references add (float64 for float32, 64 bits for float64) is below a thousandth.
BOUND = 2.0


def log2_negative_third(x: Array) -> Array:
    return np.log2(x) * x.dtype.type(-1.0 / 3.0)  # the double nearest to -1/3, as the library is given it


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "exp_negative_eighth": lambda x: np.exp(x / -8),
    # The parts of this constant in float32 have two signs.
    "exp_three_tenths": lambda x: np.exp2(x * x.dtype.type(0.3 * 1.4426950408889634)),
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log2_negative_third": log2_negative_third,
    "sin": np.sin,
    "cos": np.cos,
    "negative_sin": lambda x: -np.sin(x),
    "negative_cos": lambda x: -np.cos(x),
}


@pytest.fixture(scope="module", params=EVERY_TARGET)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    target: Target = request.param
    lanes = target.register_bytes // 4
    return build("vector_math.cpp", target, tmp_path_factory.mktemp(target.name), f"-DLANES={lanes}")


def run(library: Any, name: str, x: Array, scalar: bool = False) -> Array:
    result = np.empty_like(x)
    suffix = f"f{8 * x.itemsize}" + ("_scalar" if scalar else "")
    getattr(library, f"{name}_{suffix}")(pointer(x), pointer(result), ctypes.c_int64(x.size))
    return result


def specials(dtype: type[np.floating[Any]]) -> Array:
    info = np.finfo(dtype)
    magnitudes = [0, 1, 0.5, 2, np.e, np.pi, np.pi / 2, np.pi / 4, np.sqrt(0.5), 10, 88.7, 103.9, 709.7, 745.1, 1074.5]
    magnitudes += [info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan, info.tiny / 8, 2.0**17, 2.0**19]
    signed = np.array([*magnitudes, *(-m for m in magnitudes)], dtype)
    with np.errstate(all="ignore"):
        return np.concatenate([signed, np.nextafter(signed, dtype(0)), np.nextafter(signed, dtype(np.inf))])


def floats() -> Array:
    """A stride through all bit patterns, and more of what the functions are called with."""
    rng = np.random.default_rng(1)
    strided = np.arange(0, 2**32, 2029, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = rng.uniform(-110, 110, 1 << 19).astype(np.float32)
    near_one = (1 + rng.uniform(-0.01, 0.01, 1 << 17)).astype(np.float32)
    return np.concatenate([strided, usual, near_one, specials(np.float32)])


def doubles() -> Array:
    rng = np.random.default_rng(2)
    exponents = np.repeat(np.arange(4096, dtype=np.uint64) << np.uint64(52), 16)
    patterns = exponents | rng.integers(0, 1 << 52, exponents.size, dtype=np.uint64)
    usual = rng.uniform(-760, 760, 1 << 15)
    near_one = 1 + np.concatenate([rng.uniform(-0.5, 0.5, 1 << 14), rng.uniform(-1e-4, 1e-4, 1 << 14)])
    # The worst cases of the argument reduction lie beside multiples of pi/2.
    multiples = np.arange(1, 1 << 14) * (np.pi / 2)
    large = rng.uniform(2.0**18, 2.0**20, 1 << 13)
    return np.concatenate([patterns.view(np.float64), usual, near_one, multiples, large, specials(np.float64)])


@pytest.fixture(scope="module")
def samples() -> dict[str, Array]:
    return {"f32": floats(), "f64": doubles()}


@pytest.fixture(scope="module")
def references() -> dict[tuple[str, str], Array]:
    """Filled as the functions are met, and shared by the instruction sets."""
    return {}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_two_units_in_the_last_place(
    library: Any,
    samples: dict[str, Array],
    references: dict[tuple[str, str], Array],
    name: str,
    dtype: str,
) -> None:
    x = samples[dtype]
    if (name, dtype) not in references:
        with np.errstate(all="ignore"):
            references[name, dtype] = FUNCTIONS[name](x.astype(np.float64 if dtype == "f32" else np.longdouble))
    reference = references[name, dtype]
    got = run(library, name, x)
    error = ulps(got, reference)
    worst = int(np.argmax(error))
    assert error[worst] <= BOUND, f"{name}({x[worst]!r}) = {got[worst]!r}, not {reference[worst]!r}"
    zero = reference == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(reference[zero]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", [*FUNCTIONS, "exp2_third", "exp_short"])
def test_scalars_give_the_bits_of_vectors(library: Any, samples: dict[str, Array], name: str, dtype: str) -> None:
    x = samples[dtype][::11].copy()
    assert same_bits(run(library, name, x), run(library, name, x, scalar=True))


def test_a_scale_that_is_no_known_constant_counts_as_written(library: Any) -> None:
    # 64-bit references would round x/3 too early.
    x = np.random.default_rng(3).uniform(-3200, 3060, 400)
    got = run(library, "exp2_third", x)
    with mpmath.workdps(50):
        exact = [mpmath.power(2, mpmath.mpf(v) * mpmath.mpf(1.0 / 3)) for v in x.tolist()]
        units = [mpmath.mpf(float(np.spacing(g))) for g in got]
        error = [abs(g - e) / unit for g, e, unit in zip(got.tolist(), exact, units, strict=True)]
    assert max(error) <= BOUND
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
        assert ulps(run(library, "exp2_third", single), np.exp2(single.astype(np.float64) / 3)).max() <= BOUND


@pytest.mark.parametrize(("name", "scale"), [("exp_short", 1.0), ("exp_short_tenth", 0.1)])
def test_exponentials_of_few_digits(library: Any, samples: dict[str, Array], name: str, scale: float) -> None:
    """Float32's of 16 digits are within 2**-16 of themselves or of the smallest normal number."""
    x = samples["f32"]
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64) * scale)
        got = run(library, name, x).astype(np.float64)
        close = np.abs(got - exact) <= np.maximum(exact, np.finfo(np.float32).tiny) * 2.0**-16
        over = (got == np.inf) & (exact > float(np.finfo(np.float32).max) * (1 - 2.0**-16))
    assert (close | over | (np.isnan(got) & np.isnan(x))).all(), x[~(close | over | np.isnan(x))]
    assert (got[x == 0] == 1).all() and (got[x == -np.inf] == 0).all()


def test_doubles_of_few_digits_are_as_exact_as_ever(library: Any, samples: dict[str, Array]) -> None:
    double = samples["f64"]
    assert same_bits(run(library, "exp_short", double), run(library, "exp", double))


def test_doubles_closest_to_multiples_of_half_pi(library: Any) -> None:
    # 6381956970095103 * 2^797 is the double nearest to a multiple of pi/2 (Muller, "Elementary Functions").
    x = np.array([np.ldexp(6381956970095103.0, 797), -np.ldexp(6381956970095103.0, 797), 1e22, 5.319372648326541e255])
    with mpmath.workdps(400):
        for name, function in (("sin", mpmath.sin), ("cos", mpmath.cos)):
            for got, v in zip(run(library, name, x).tolist(), x.tolist(), strict=True):
                exact = function(mpmath.mpf(v))
                assert abs(mpmath.mpf(got) - exact) <= BOUND * mpmath.mpf(float(np.spacing(abs(got)))), (name, v)


def test_special_values_as_the_c_library_has_them(library: Any) -> None:
    inf, nan = np.inf, np.nan
    table: dict[str, list[tuple[float, float]]] = {
        "exp": [(inf, inf), (-inf, 0.0), (0.0, 1.0), (-0.0, 1.0), (nan, nan)],
        "exp_negative_eighth": [(inf, 0.0), (-inf, inf), (nan, nan)],
        "exp_three_tenths": [(inf, inf), (-inf, 0.0), (1e30, inf), (-1e30, 0.0), (0.0, 1.0), (nan, nan)],
        "log": [(inf, inf), (0.0, -inf), (-0.0, -inf), (-1.0, nan), (-inf, nan), (1.0, 0.0), (nan, nan)],
        "log2_negative_third": [(inf, -inf), (0.0, inf), (-1.0, nan), (nan, nan)],
        "log2": [(8.0, 3.0), (0.125, -3.0)],
        "exp2": [(3.0, 8.0), (-1.0, 0.5)],
        "sin": [(0.0, 0.0), (-0.0, -0.0), (inf, nan), (-inf, nan), (nan, nan)],
        "negative_sin": [(0.0, -0.0), (-0.0, 0.0)],
        "cos": [(0.0, 1.0), (-0.0, 1.0), (inf, nan), (nan, nan)],
    }
    for name, rows in table.items():
        for dtype in (np.float32, np.float64):
            x, expected = (np.array(column, dtype) for column in zip(*rows, strict=True))
            assert same_bits(run(library, name, x), expected), (name, dtype)


def test_the_coefficients_are_those_of_the_generator() -> None:
    """Every coefficient that the generator prints stands in a header (its run is long: one polynomial is fitted)."""
    fit = next(fit for fit in fit_polynomials.fits() if fit.name.startswith("sin") and fit.bits == 24)
    coefficients, error = fit_polynomials.solve(fit)
    assert error * 2**24 < 0.1
    text = (Path(__file__).parent.parent / "runtime/include/luminal/math_sin.hpp").read_text()
    written = {float.fromhex(word) for word in re.findall(r"-?0x1\.[0-9a-f]+p[+-]\d+", text)}
    assert set(coefficients) <= written
