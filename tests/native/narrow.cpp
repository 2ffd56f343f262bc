// Types of fewer than 16 bits behind a C interface: casts to and from them, partial, masked and strided moves. They are
// numbered as in NARROW of tests/test_narrow.py, others as in OTHERS.
//
// Compiled with -DLANES=N once per instruction set, and with -DDEVICE for the same functions of GPU kernels.
#define LM_NAMESPACE narrow_test
#if defined(DEVICE)
#include "device_emulated.hpp"
#include "luminal/device/functions.hpp"
#else
#include "luminal/simd.hpp"
#endif

#define NARROW_TYPES(X)                                                                                              \
    X(0, lm::float8e4m3fn) X(1, lm::float8e4m3fnuz) X(2, lm::float8e5m2) X(3, lm::float8e5m2fnuz)                    \
    X(4, lm::float8e8m0) X(5, lm::float4e2m1) X(6, lm::int4_t) X(7, lm::int2_t) X(8, lm::uint4_t) X(9, lm::uint2_t)
#define OTHER_TYPES(X)                                                                                               \
    X(0, float) X(1, double) X(2, lm::float16) X(3, lm::bfloat16) X(4, int8_t) X(5, uint8_t) X(6, int32_t)           \
    X(7, int64_t) X(8, uint64_t) X(9, bool)

namespace {

constexpr int N = LANES;

template <class From, class To> void cast(const void* in, void* out, int64_t count) {
    const From* a = static_cast<const From*>(in);
    for (int64_t i = 0; i < count; i += N) {
        const auto v = lm::convert<To>(lm::load_partial<N>(a + i, count - i));
        lm::store_partial(static_cast<To*>(out) + i, v, count - i);
    }
}

template <class Narrow> void cast_between(int other, bool back, const void* in, void* out, int64_t count) {
#define CASE(TYPE, T) \
    if (other == TYPE) return back ? cast<Narrow, T>(in, out, count) : cast<T, Narrow>(in, out, count);
    OTHER_TYPES(CASE)
#undef CASE
}

/// Whole vectors (count is a multiple of N): as they are, masked, and every third.
template <class T> void move(const void* in, const bool* valid, void* whole, void* masked, void* strided, int64_t count) {
    const T* a = static_cast<const T*>(in);
    for (int64_t i = 0; i < count; i += N) {
        const auto ok = lm::load<N>(valid + i);
        lm::store(static_cast<T*>(whole) + i, lm::load<N>(a + i));
        lm::store_masked(static_cast<T*>(masked) + i, lm::load_masked<N>(a + i, ok), ok);
        lm::store_strided(static_cast<T*>(strided) + i * 3, 3, lm::load_strided<N>(a + i + N - 1, -1));
    }
}

}  // namespace

extern "C" void cast_array(int narrow, int other, int back, const void* in, void* out, int64_t count) {
#define CASE(TYPE, T) \
    if (narrow == TYPE) cast_between<T>(other, back != 0, in, out, count);
    NARROW_TYPES(CASE)
#undef CASE
}

extern "C" void move_array(int type, const void* in, const bool* valid, void* whole, void* masked, void* strided,
                           int64_t count) {
#define CASE(TYPE, T) \
    if (type == TYPE) move<T>(in, valid, whole, masked, strided, count);
    NARROW_TYPES(CASE)
#undef CASE
}
