// Calls of every function that kernels may call, for every type: included by device_every.cu and device_every.metal,
// where they only have to compile.
#pragma once

#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

/// What every number has; V is a scalar or a vector.
template <class V> LM_DEVICE V every_number(V a, V b) {
    a = add(sub(a, b), mul(neg(a), abs(b)));
    a = max(lesser(div(a, b), b), greater(mod(a, b), b));
    a = add(round_even(a), add(floor(a), add(ceil(a), trunc(a))));
    return select(bit_and(less(a, b), bit_not(equal(a, b))), a, b);
}
template <class V> LM_DEVICE V every_integer(V a, V b) {
    a = every_number(a, b);
    return shl(bit_and(bit_or(a, b), bit_xor(a, bit_not(b))), shr(a, b));
}
template <class T, class V> LM_DEVICE V every_float(V a, V b) {
    a = copy_sign(fma(sqrt(a), recip(b), multiply_add(a, b, a)), every_number(a, b));
    a = exp2_scaled(log2_scaled(a, T(0.69314718f), T(-1e-9f)), T(1.442695f), T(1e-8f));
    return add(a, sin_quadrant(b, 1));
}

/// v as every type.
template <class V> LM_DEVICE float every_cast(V v) {
    return static_cast<float>(convert<int8_t>(v)) + static_cast<float>(convert<int16_t>(v)) +
           static_cast<float>(convert<int32_t>(v)) + static_cast<float>(convert<int64_t>(v)) +
           static_cast<float>(convert<uint8_t>(v)) + static_cast<float>(convert<uint16_t>(v)) +
           static_cast<float>(convert<uint32_t>(v)) + static_cast<float>(convert<uint64_t>(v)) + convert<float>(v) +
           convert<float16>(v) + convert<bfloat16>(v) + static_cast<float>(convert<bool>(v)) +
           convert<float8e4m3fn>(v) + convert<float8e4m3fnuz>(v) + convert<float8e5m2>(v) +
           convert<float8e5m2fnuz>(v) + convert<float8e8m0>(v) + convert<float4e2m1>(v) +
           static_cast<float>(convert<int4_t>(v)) + static_cast<float>(convert<int2_t>(v)) +
           static_cast<float>(convert<uint4_t>(v)) + static_cast<float>(convert<uint2_t>(v));
}

/// v as integers that stand for it.
template <class V> LM_DEVICE V every_quantised(V v) {
    v = fake_quantise<uint8_t, 104>(fake_quantise<int16_t>(v));
    return add(convert<float>(quantise<int8_t, -3>(v)), convert<float>(quantise<uint16_t>(v)));
}

/// Scalars and vectors of a type of integers, in memory at p.
template <class P> LM_DEVICE float every_integer_type(P p) {
    store(p, every_integer(load<1>(p), load<1>(p + 1)));
    store(p, every_integer(load<4>(p), load<4>(p + 4)));
    return every_cast(load<1>(p)) + convert<float>(reduce_max(load<8>(p))) + convert<float>(reduce_add(load<2>(p)));
}
template <class P> LM_DEVICE float every_float_type(P p) {
    using T = pointed_t<P>;
    store(p, every_float<T>(load<1>(p), load<1>(p + 1)));
    store(p, every_float<T>(load<4>(p), load<4>(p + 4)));
    if constexpr (is_same<T, float>()) {
        store(p, every_quantised(load<1>(p)));
        store(p, every_quantised(load<4>(p)));
    }
    return every_cast(load<1>(p)) + convert<float>(reduce_max(load<8>(p))) + convert<float>(reduce_add(load<2>(p)));
}

/// Bytes: numbers of few bits in them, and sums of products.
template <class P> LM_DEVICE int32_t every_byte(P p) {
    const vec<uint8_t, 8> bytes = load<8>(p);
    const vec<uint8_t, 8> moved = shifted_right(shifted_left<3>(shifted_right<1>(bytes)), broadcast<8>(load<1>(p)));
    const uint8_t one = shifted_right(shifted_left<3>(shifted_right<1>(load<1>(p))), load<1>(p + 1));
    const int32_t signed_sum = dot(digits_in_bytes<int4_t, 4>(bytes), moved, int32_t{1});
    return dot(digits_in_bytes<uint2_t, 2>(moved), convert<int8_t>(moved), signed_sum) + digits_in_bytes<int2_t, 0>(one);
}

/// Loads and stores of every kind; I is the type of indices.
template <class I, class P> LM_DEVICE void every_access(P p, int64_t n) {
    const auto below = lanes_below<4>(n), from = lanes_from<4>(n);
    const vec<I, 4> at = convert<I>(iota<4>(int32_t{0}));
    store_strided(p, n, load_strided<4>(p, -n));
    store_masked(p, load_masked<4>(p, below), bit_or(from, below));
    store_partial(p, load_partial<2>(p, n), n);
    scatter(p, at, gather(p, at, below), from);
    scatter(p, at, gather(p, convert<I>(multiples<4>(3))));
    store(p + n, extract(load<8>(p), 3));
    if (any(below) && all(from)) store(p, broadcast<4>(load<1>(p)));
}

template <class T> LM_DEVICE T every_reduction(T x, int mask) {
    return add(warp_reduce_add(shuffle_xor(x, mask)), warp_reduce_max(x));
}

/// Copies in the background, of every size.
template <class Shared, class Global> LM_DEVICE void every_copy(Shared to, Global from, bool valid) {
    copy_async<16>(to, from);
    copy_async<8>(to, from, valid);
    copy_async<4>(to, from, valid);
    copy_commit();
    copy_wait<1>();
    copy_wait<0>();
    barrier();
    warp_barrier();
}

/// The tile of a warp with operands that lie in each of the two ways.
template <class F, class Sum, class P> LM_DEVICE void every_layout(Sum sum, P a, int lane) {
    warp_tile_step<F, 2, 4>(sum, a, 40, 1, a, 1, 40, lane);
    warp_tile_step<F, 2, 4>(sum, a, 1, 40, a, 40, 1, lane);
}

#if LM_WARP > 1 && !defined(LM_METAL)
/// The tile of a warp of bytes, in the same ways, with scales of two types.
template <class F, class P, class L, class R> LM_DEVICE void every_scaled(float* sum, P a, L left, R right, int lane) {
    scaled_tile_step<F, 2, 4, 64>(sum, a, 80, 1, a, 1, 80, left, 2, right, 2, lane);
    scaled_tile_step<F, 2, 3, 64>(sum, a, 1, 80, a, 80, 1, left, 2, right, 2, lane);
}
#endif

LM_DEVICE int64_t every_index(int64_t a, int64_t b) {
    return minimum(floor_div(a, b), maximum(floor_mod(a, b), b));
}

}  // namespace LM_NAMESPACE
}  // namespace lm
