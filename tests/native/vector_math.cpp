// The vector math library behind a C interface: one function of arrays per function, type and lane count.
//
// Compiled by tests/test_vector_math.py with -DLANES=N, once per instruction set, and by tests/test_device_math.py with
// -DDEVICE for the same functions of GPU kernels.
#define LM_NAMESPACE vector_math_test
#if defined(DEVICE)
#include "device_emulated.hpp"
#include "device_math.hpp"
#else
#include "luminal/math.hpp"
#endif

namespace {

template <int N, class T, class F> void over_array(const T* in, T* out, int64_t count, F f) {
    for (int64_t i = 0; i < count; i += N) {
        lm::store_partial(out + i, f(lm::load_partial<N>(in + i, count - i)), count - i);
    }
}

constexpr double log2_e = 1.4426950408889634, log2_10 = 3.3219280948873622;
constexpr double ln_2 = 0.69314718055994529, log10_2 = 0.30102999566398120;

}  // namespace

#define FUNCTION(NAME, CALL)                                                                  \
    extern "C" void NAME##_f32(const float* in, float* out, int64_t count) {                  \
        over_array<LANES>(in, out, count, [](auto x) { return CALL; });                       \
    }                                                                                         \
    extern "C" void NAME##_f64(const double* in, double* out, int64_t count) {                \
        over_array<LANES / 2>(in, out, count, [](auto x) { return CALL; });                   \
    }                                                                                         \
    extern "C" void NAME##_f32_scalar(const float* in, float* out, int64_t count) {           \
        over_array<1>(in, out, count, [](auto x) { return CALL; });                           \
    }                                                                                         \
    extern "C" void NAME##_f64_scalar(const double* in, double* out, int64_t count) {         \
        over_array<1>(in, out, count, [](auto x) { return CALL; });                           \
    }

FUNCTION(exp, lm::exp2_scaled(x, log2_e))
FUNCTION(exp2, lm::exp2_scaled(x, 1))
FUNCTION(exp10, lm::exp2_scaled(x, log2_10))
FUNCTION(exp_negative_eighth, lm::exp2_scaled(x, -log2_e / 8))
FUNCTION(exp_three_tenths, lm::exp2_scaled(x, 0.3 * log2_e))
FUNCTION(exp_short, lm::exp2_scaled<16>(x, log2_e))
FUNCTION(exp_short_tenth, lm::exp2_scaled<16>(x, log2_e / 10))
FUNCTION(exp2_third, lm::exp2_scaled(x, 1.0 / 3))
FUNCTION(log, lm::log2_scaled(x, ln_2))
FUNCTION(log2, lm::log2_scaled(x, 1))
FUNCTION(log10, lm::log2_scaled(x, log10_2))
FUNCTION(log2_negative_third, lm::log2_scaled(x, -1.0 / 3))
FUNCTION(sin, lm::sin_quadrant(x, 0))
FUNCTION(cos, lm::sin_quadrant(x, 1))
FUNCTION(negative_sin, lm::sin_quadrant(x, 2))
FUNCTION(negative_cos, lm::sin_quadrant(x, 3))
