// Functions of vectors of bytes, which are computed four at a time, behind a C interface: tests/test_gpu_lines.py.
#define LM_NAMESPACE device_bytes_test
#include "luminal/device/functions.hpp"

namespace {

using lm::vec;

template <int N, class T> vec<T, N> filled(const T* from) {
    vec<T, N> v;
    for (int i = 0; i < N; ++i) v.lane[i] = from[i];
    return v;
}

/// For N pairs of bytes at a time, each function of vectors beside that of scalars.
template <int N, class T> int differing(const T* a, const T* b, int count) {
    int found = 0;
    for (int first = 0; first < count; first += N) {
        const vec<T, N> x = filled<N>(a + first), y = filled<N>(b + first);
        const vec<T, N> sums = lm::add(x, y), ands = lm::bit_and(x, y), ors = lm::bit_or(x, y), xors = lm::bit_xor(x, y);
        const vec<int8_t, N> as_signed = lm::convert<int8_t>(x);
        const vec<uint8_t, N> as_unsigned = lm::convert<uint8_t>(x);
        for (int i = 0; i < N; ++i) {
            found += sums.lane[i] != lm::add(x.lane[i], y.lane[i]) || ands.lane[i] != lm::bit_and(x.lane[i], y.lane[i]);
            found += ors.lane[i] != lm::bit_or(x.lane[i], y.lane[i]) || xors.lane[i] != lm::bit_xor(x.lane[i], y.lane[i]);
            found += as_signed.lane[i] != lm::convert<int8_t>(x.lane[i]);
            found += as_unsigned.lane[i] != lm::convert<uint8_t>(x.lane[i]);
        }
    }
    return found;
}

template <int N> int shifted(const uint8_t* bytes, int count) {
    int found = 0;
    for (int first = 0; first < count; first += N) {
        const vec<uint8_t, N> x = filled<N>(bytes + first);
        for (int amount = 0; amount < 8; ++amount) {
            const auto moved = lm::shifted_right(x, lm::broadcast<N>(static_cast<uint8_t>(amount)));
            for (int i = 0; i < N; ++i) found += moved.lane[i] != x.lane[i] >> amount;
        }
        const auto digits = lm::digits_in_bytes<lm::int4_t, 0>(x), upper = lm::digits_in_bytes<lm::int4_t, 4>(x);
        for (int i = 0; i < N; ++i) {
            found += digits.lane[i] != lm::digits_in_bytes<lm::int4_t, 0>(x.lane[i]);
            found += upper.lane[i] != lm::digits_in_bytes<lm::int4_t, 4>(x.lane[i]);
        }
    }
    return found;
}

}  // namespace

extern "C" int differing_unsigned(const uint8_t* a, const uint8_t* b, int count) {
    return differing<2>(a, b, count) + differing<4>(a, b, count) + differing<16>(a, b, count);
}
extern "C" int differing_signed(const int8_t* a, const int8_t* b, int count) {
    return differing<2>(a, b, count) + differing<4>(a, b, count) + differing<16>(a, b, count);
}
extern "C" int differing_shifted(const uint8_t* bytes, int count) {
    return shifted<2>(bytes, count) + shifted<16>(bytes, count);
}
