// The vector arithmetic behind a C interface. Types and operators are numbered as in TYPES and OPERATORS of
// tests/test_vector_arithmetic.py.
//
// Compiled with -DLANES=N once per instruction set, and with -DDEVICE for the same functions of GPU kernels. Arrays have
// any length: the last vector is partial.
#include <type_traits>

#define LM_NAMESPACE vector_arithmetic_test
#if defined(DEVICE)
#include "device_emulated.hpp"
#include "luminal/device/functions.hpp"
#else
#include "luminal/lanes.hpp"
#include "luminal/simd.hpp"
#include "luminal/turn.hpp"
#endif

namespace {

constexpr int N = LANES;

#if defined(DEVICE)
constexpr bool rounds_once = true;
#else
constexpr bool rounds_once = lm::fused;
#endif

template <class T, class V> void store_tail(T* out, int64_t i, int64_t count, V v) {
    lm::store_partial(out + i, v, count - i);
}

// ---- Operators of one type ----------------------------------------------------------------------------------------

template <class T, class F> void unary(const T* a, T* out, int64_t count, F f) {
    for (int64_t i = 0; i < count; i += N) store_tail(out, i, count, f(lm::load_partial<N>(a + i, count - i)));
}
template <class T, class R, class F> void binary(const T* a, const T* b, R* out, int64_t count, F f) {
    for (int64_t i = 0; i < count; i += N) {
        store_tail(out, i, count, f(lm::load_partial<N>(a + i, count - i), lm::load_partial<N>(b + i, count - i)));
    }
}

enum Operator {
    ADD, SUB, MUL, DIV, MOD, MAX, LESS, EQUAL, AND, OR, XOR, SHL, SHR,       // two operands
    NEG, ABS, NOT, SQRT, RECIP, ROUND_EVEN, FLOOR, CEIL, TRUNC,              // one operand
    LESSER, GREATER,                                                         // two operands, floats
};

#define BINARY(CODE, CALL) \
    case CODE: return binary(a, b, out, count, [](auto x, auto y) { return CALL; });
#define UNARY(CODE, CALL) \
    case CODE: return unary(a, out, count, [](auto x) { return CALL; });

template <class T> void apply(int code, const T* a, const T* b, T* out, bool* truth, int64_t count) {
    switch (code) {
        BINARY(ADD, lm::add(x, y))
        BINARY(SUB, lm::sub(x, y))
        BINARY(MUL, lm::mul(x, y))
        BINARY(DIV, lm::div(x, y))
        BINARY(MOD, lm::mod(x, y))
        BINARY(MAX, lm::max(x, y))
        UNARY(NEG, lm::neg(x))
        UNARY(ABS, lm::abs(x))
        UNARY(ROUND_EVEN, lm::round_even(x))
        UNARY(FLOOR, lm::floor(x))
        UNARY(CEIL, lm::ceil(x))
        UNARY(TRUNC, lm::trunc(x))
        case LESS: return binary(a, b, truth, count, [](auto x, auto y) { return lm::less(x, y); });
        case EQUAL: return binary(a, b, truth, count, [](auto x, auto y) { return lm::equal(x, y); });
        default: break;
    }
    if constexpr (std::is_integral_v<T>) {
        switch (code) {
            BINARY(AND, lm::bit_and(x, y))
            BINARY(OR, lm::bit_or(x, y))
            BINARY(XOR, lm::bit_xor(x, y))
            BINARY(SHL, lm::shl(x, y))
            BINARY(SHR, lm::shr(x, y))
            UNARY(NOT, lm::bit_not(x))
            default: break;
        }
    } else {
        switch (code) {
            UNARY(SQRT, lm::sqrt(x))
            UNARY(RECIP, lm::recip(x))
            BINARY(LESSER, lm::lesser(x, y))
            BINARY(GREATER, lm::greater(x, y))
            default: break;
        }
    }
}

void apply_bool(int code, const bool* a, const bool* b, bool* out, int64_t count) {
    switch (code) {
        BINARY(MAX, lm::max(x, y))
        BINARY(LESS, lm::less(x, y))
        BINARY(EQUAL, lm::equal(x, y))
        BINARY(AND, lm::bit_and(x, y))
        BINARY(OR, lm::bit_or(x, y))
        BINARY(XOR, lm::bit_xor(x, y))
        UNARY(NOT, lm::bit_not(x))
        default: break;
    }
}

// ---- Casts, lane moves --------------------------------------------------------------------------------------------

template <class From, class To> void cast(const void* in, void* out, int64_t count) {
    const From* a = static_cast<const From*>(in);
    To* to = static_cast<To*>(out);
    for (int64_t i = 0; i < count; i += N) {
        store_tail(to, i, count, lm::convert<To>(lm::load_partial<N>(a + i, count - i)));
    }
}

/// A register, or two, at once.
template <class To, int zero, int Lanes>
void quantise(const float* a, void* whole, float* number, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += Lanes) {
        const auto x = lm::load_partial<Lanes>(a + i, end - i);
        store_tail(static_cast<To*>(whole), i, end, lm::quantise<To, zero>(x));
        store_tail(number, i, end, lm::fake_quantise<To, zero>(x));
    }
}
template <class To, int zero> void quantise(const float* a, void* whole, float* number, int64_t count) {
    quantise<To, zero, N>(a, whole, number, 0, count / 2);
    quantise<To, zero, 2 * N>(a, whole, number, count / 2, count);
}

template <class T, class I>
void gather(const void* base, const void* index, const bool* valid, void* out, int64_t count) {
    for (int64_t i = 0; i < count; i += N) {
        const auto at = lm::load_partial<N>(static_cast<const I*>(index) + i, count - i);
        const auto ok = lm::load_partial<N>(valid + i, count - i);
        store_tail(static_cast<T*>(out), i, count, lm::gather(static_cast<const T*>(base), at, ok));
    }
}
template <class T, class I>
void scatter(void* base, const void* index, const bool* valid, const void* in, int64_t count) {
    for (int64_t i = 0; i < count; i += N) {
        const auto at = lm::load_partial<N>(static_cast<const I*>(index) + i, count - i);
        const auto ok = lm::load_partial<N>(valid + i, count - i);
        lm::scatter(static_cast<T*>(base), at, lm::load_partial<N>(static_cast<const T*>(in) + i, count - i), ok);
    }
}

/// Whole vectors (count is a multiple of N): masked and strided moves, with select between.
template <class T>
void move(const void* in, const bool* valid, void* masked, void* strided, void* chosen, int64_t count) {
    const T* a = static_cast<const T*>(in);
    for (int64_t i = 0; i < count; i += N) {
        const auto ok = lm::load<N>(valid + i);
        lm::store_masked(static_cast<T*>(masked) + i, lm::load<N>(a + i), ok);
        lm::store_strided(static_cast<T*>(strided) + i * 3, 3, lm::load_strided<N>(a + i + N - 1, -1));
        const auto some = lm::load_masked<N>(a + i, ok);
        lm::store(static_cast<T*>(chosen) + i, lm::select(ok, some, lm::load<N>(a)));
    }
}

#if !defined(DEVICE)
/// Whole vectors (count is a multiple of N), apart: in one of four ways.
template <class T> void spread(int way, const void* in, void* out, int64_t count) {
    for (int64_t i = 0; i < count; i += N) {
        const auto v = lm::load<N>(static_cast<const T*>(in) + i);
        T* to = static_cast<T*>(out);
        if (way == 0) lm::store_strided(to + 2 * i, 2, v);
        if (way == 1) lm::store_strided(to + 4 * i, 4, v);
        if constexpr (N % 4 == 0) {
            if (way == 2) lm::store_groups<2>(to + 3 * i, 6, v);
            if (way == 3) lm::store_groups<4>(to + 2 * i, 8, v);
        }
    }
}

/// Whole vectors, one after the other, by each way that a vector is stored; zeros may take the place of subnormals.
template <int Lanes, class T> void store_normal(int way, const float* in, T* out, int64_t count) {
    for (int64_t i = 0; i < count; i += Lanes) {
        const auto v = lm::normal_or_zero(lm::load<Lanes>(in + i));
        if (way == 0) lm::store(out + i, v);
        if (way == 1) lm::store_partial(out + i, v, Lanes);
        if (way == 2) lm::store_masked(out + i, v, lm::broadcast<Lanes>(true));
        if (way == 3) lm::store_strided(out + i, 1, v);
        if (way == 4) lm::store_groups<1>(out + i, 1, v);
        if (way == 5) lm::scatter(out + i, lm::multiples<Lanes>(1), v);
    }
}
#endif

template <class T> void reduce(const void* in, void* sum, void* maximum, int64_t count) {
    for (int64_t i = 0; i < count; i += N) {
        const auto v = lm::load<N>(static_cast<const T*>(in) + i);
        static_cast<T*>(sum)[i / N] = lm::reduce_add(v);
        static_cast<T*>(maximum)[i / N] = lm::reduce_max(v);
    }
}

}  // namespace

// ---- Dispatch by type number --------------------------------------------------------------------------------------

#define NUMERIC_TYPES(X)                                                                                       \
    X(0, int8_t) X(1, int16_t) X(2, int32_t) X(3, int64_t) X(4, uint8_t) X(5, uint16_t) X(6, uint32_t)         \
    X(7, uint64_t) X(8, float) X(9, double)
#define STORED_TYPES(X) NUMERIC_TYPES(X) X(10, bool) X(11, lm::float16) X(12, lm::bfloat16)

extern "C" void apply_operator(int type, int code, const void* a, const void* b, void* out, int64_t count) {
    if (type == 10) {
        const bool* left = static_cast<const bool*>(a);
        return apply_bool(code, left, static_cast<const bool*>(b), static_cast<bool*>(out), count);
    }
#define CASE(TYPE, T)                                                                                                 \
    if (type == TYPE)                                                                                                 \
        apply(code, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), static_cast<bool*>(out), \
              count);
    NUMERIC_TYPES(CASE)
#undef CASE
}

template <class From> void cast_from(int to, const void* in, void* out, int64_t count) {
#define CASE(TYPE, T) \
    if (to == TYPE) cast<From, T>(in, out, count);
    STORED_TYPES(CASE)
#undef CASE
}

extern "C" void cast_array(int from, int to, const void* in, void* out, int64_t count) {
#define CASE(TYPE, T) \
    if (from == TYPE) cast_from<T>(to, in, out, count);
    STORED_TYPES(CASE)
#undef CASE
}

/// Types and zero points as in QUANTISED.
extern "C" void quantise_array(int code, const float* in, void* whole, float* number, int64_t count) {
    switch (code) {
        case 0: return quantise<uint8_t, 0>(in, whole, number, count);
        case 1: return quantise<uint8_t, 131>(in, whole, number, count);
        case 2: return quantise<uint8_t, 255>(in, whole, number, count);
        case 3: return quantise<int8_t, 0>(in, whole, number, count);
        case 4: return quantise<int8_t, -128>(in, whole, number, count);
        case 5: return quantise<int8_t, 127>(in, whole, number, count);
        case 6: return quantise<uint16_t, 0>(in, whole, number, count);
        case 7: return quantise<uint16_t, 65535>(in, whole, number, count);
        case 8: return quantise<int16_t, -3>(in, whole, number, count);
        default: break;
    }
}

extern "C" void gather_array(int type, int wide_index, const void* base, const void* index, const bool* valid,
                             void* out, int64_t count) {
#define CASE(TYPE, T)                                                                \
    if (type == TYPE) {                                                              \
        if (wide_index) gather<T, int64_t>(base, index, valid, out, count);          \
        else gather<T, int32_t>(base, index, valid, out, count);                     \
    }
    STORED_TYPES(CASE)
#undef CASE
}

extern "C" void scatter_array(int type, void* base, const void* index, const bool* valid, const void* in,
                              int64_t count) {
#define CASE(TYPE, T) \
    if (type == TYPE) scatter<T, int64_t>(base, index, valid, in, count);
    STORED_TYPES(CASE)
#undef CASE
}

#if !defined(DEVICE)
extern "C" void spread_array(int type, int way, const void* in, void* out, int64_t count) {
#define CASE(TYPE, T) \
    if (type == TYPE) spread<T>(way, in, out, count);
    STORED_TYPES(CASE)
#undef CASE
}

/// Of as many lanes as others have, or twice as many.
template <class T> void store_normal_lanes(bool twice, int way, const float* in, T* out, int64_t count) {
    twice ? store_normal<2 * N>(way, in, out, count) : store_normal<N>(way, in, out, count);
}
extern "C" void store_normal_array(int type, bool twice, int way, const float* in, void* out, int64_t count) {
    if (type == 11) store_normal_lanes(twice, way, in, static_cast<lm::float16*>(out), count);
    if (type == 12) store_normal_lanes(twice, way, in, static_cast<lm::bfloat16*>(out), count);
}
#endif

extern "C" void move_array(int type, const void* in, const bool* valid, void* masked, void* strided, void* chosen,
                           int64_t count) {
#define CASE(TYPE, T) \
    if (type == TYPE) move<T>(in, valid, masked, strided, chosen, count);
    STORED_TYPES(CASE)
#undef CASE
}

extern "C" void reduce_array(int type, const void* in, void* sum, void* maximum, int64_t count) {
#define CASE(TYPE, T) \
    if (type == TYPE) reduce<T>(in, sum, maximum, count);
    NUMERIC_TYPES(CASE)
#undef CASE
}

/// Loads and stores of `count` elements that end where the caller's page ends; touching one more faults.
extern "C" void copy_partial(int type, const void* in, void* out, int64_t count) {
#define CASE(TYPE, T) \
    if (type == TYPE) store_tail(static_cast<T*>(out), 0, count, lm::load_partial<N>(static_cast<const T*>(in), count));
    STORED_TYPES(CASE)
#undef CASE
}

#if !defined(DEVICE)
/// Rows from `in` on, `stride` apart, as columns: out[j * N + i] = in[i * stride + j]. All of them where rows < 0.
template <class T> void turn(const T* in, int64_t stride, int64_t rows, int64_t count, T* out) {
    const auto found = rows < 0 ? lm::load_columns<N>(in, stride) : lm::load_columns<N>(in, stride, rows, count);
    for (int j = 0; j < N; ++j) lm::store(out + j * N, found[j]);
}
extern "C" void turn_rows(int type, const void* in, int64_t stride, int64_t rows, int64_t count, void* out) {
#define CASE(TYPE, T) \
    if (type == TYPE) turn(static_cast<const T*>(in), stride, rows, count, static_cast<T*>(out));
    STORED_TYPES(CASE)
#undef CASE
}
#endif

/// Masks of three lane widths in one expression.
extern "C" void mixed_masks(const float* x, const int64_t* y, const int8_t* z, bool* out, int64_t count) {
    for (int64_t i = 0; i < count; i += N) {
        const auto negative = lm::less(lm::load_partial<N>(x + i, count - i), lm::broadcast<N>(0.0f));
        const auto three = lm::equal(lm::load_partial<N>(y + i, count - i), lm::broadcast<N>(int64_t{3}));
        const auto positive = lm::less(lm::broadcast<N>(int8_t{0}), lm::load_partial<N>(z + i, count - i));
        const auto chosen = lm::select(negative, three, lm::equal(positive, negative));
        const auto both = lm::bit_and(three, lm::less(negative, positive));
        store_tail(out, i, count, lm::max(lm::bit_xor(chosen, positive), both));
    }
}

extern "C" void fma_f32(const float* a, const float* b, const float* c, float* out, int64_t count) {
    for (int64_t i = 0; i < count; i += N) {
        const auto load = [=](const float* p) { return lm::load_partial<N>(p + i, count - i); };
        store_tail(out, i, count, lm::fma(load(a), load(b), load(c)));
    }
}
extern "C" void fma_f64(const double* a, const double* b, const double* c, double* out, int64_t count) {
    for (int64_t i = 0; i < count; i += N) {
        const auto load = [=](const double* p) { return lm::load_partial<N>(p + i, count - i); };
        store_tail(out, i, count, lm::fma(load(a), load(b), load(c)));
    }
}
extern "C" void multiply_add_f32(const float* a, const float* b, const float* c, float* out, int64_t count) {
    for (int64_t i = 0; i < count; i += N) {
        const auto load = [=](const float* p) { return lm::load_partial<N>(p + i, count - i); };
        store_tail(out, i, count, lm::multiply_add(load(a), load(b), load(c)));
    }
}
extern "C" void multiply_add_f64(const double* a, const double* b, const double* c, double* out, int64_t count) {
    for (int64_t i = 0; i < count; i += N) {
        const auto load = [=](const double* p) { return lm::load_partial<N>(p + i, count - i); };
        store_tail(out, i, count, lm::multiply_add(load(a), load(b), load(c)));
    }
}
extern "C" int fused() { return rounds_once; }
