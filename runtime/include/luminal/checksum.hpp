// The checksum of weights: for accidents, such as a flipped bit or a copy that was cut, not for attackers.
// luminal.codegen.weights computes it too.
//
// Bytes are taken as little-endian words of 64 bits, in rows of 512 words and blocks of 256 rows (1 MiB); the last row and
// block may be shorter. All arithmetic is modulo 2^64. With key(i) the i-th number of SplitMix64 from 0, made odd:
//
//   row     sum over its words w(i) of (w(i) ^ w(i) >> 32) * key(i)
//   block   chained from 0 over its rows
//   all     chained from the number of bytes over the blocks
//   chain   h, x -> rotate left by 29 of ((h ^ x) * 0x9e3779b97f4a7c15)
//
// Every step can be undone, so no change of a single word goes unnoticed; others do once in 2^64. Blocks do not depend on
// each other, so that threads share them, and a row is one multiplication a word: it keeps up with memory.
// (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.)
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

class Checksum {
  public:
    static constexpr size_t ROW_BYTES = 4096;
    static constexpr size_t BLOCK_BYTES = 256 * ROW_BYTES;

    static constexpr size_t blocks(size_t bytes) { return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES; }

    /// The checksum of a block: `bytes` of them, a multiple of 8, at an aligned address.
    static uint64_t of_block(const unsigned char* data, size_t bytes) {
        uint64_t sum = 0;
        while (bytes > 0) {
            const size_t taken = bytes < ROW_BYTES ? bytes : ROW_BYTES;
            sum = chained(sum, of_row(data, taken / sizeof(uint64_t)));
            data += taken;
            bytes -= taken;
        }
        return sum;
    }

    explicit Checksum(size_t bytes) : value_(bytes) {}
    void add(uint64_t block) { value_ = chained(value_, block); }
    uint64_t value() const { return value_; }

  private:
    static constexpr size_t WORDS = ROW_BYTES / sizeof(uint64_t);

    struct Keys {
        uint64_t of[WORDS] = {};

        constexpr Keys() {
            uint64_t state = 0;
            for (uint64_t& key : of) {
                state += 0x9e3779b97f4a7c15;
                uint64_t mixed = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
                mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
                key = (mixed ^ mixed >> 31) | 1;
            }
        }
    };

    static uint64_t chained(uint64_t sum, uint64_t next) {
        const uint64_t product = (sum ^ next) * 0x9e3779b97f4a7c15;
        return product << 29 | product >> 35;
    }

    static uint64_t term(const unsigned char* data, size_t i) {
        static constexpr Keys KEYS;
        uint64_t word;
        memcpy(&word, data + i * sizeof(word), sizeof(word));
        return (word ^ word >> 32) * KEYS.of[i];
    }

    static uint64_t of_row(const unsigned char* data, size_t words) {
        uint64_t a = 0, b = 0, c = 0, d = 0;  // four chains of additions at once
        size_t i = 0;
        for (; i + 4 <= words; i += 4) {
            a += term(data, i);
            b += term(data, i + 1);
            c += term(data, i + 2);
            d += term(data, i + 3);
        }
        for (; i < words; ++i) a += term(data, i);
        return a + b + c + d;
    }

    uint64_t value_;
};

}  // namespace LM_RUNTIME
}  // namespace lm
