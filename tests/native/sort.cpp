// Sorting behind a C interface: tests/test_sort.py.
#define LM_NAMESPACE sort_test
#include "device_threads.hpp"
#include "luminal/device/functions.hpp"
#include "luminal/sort.hpp"

namespace {

int64_t comparisons;

/// An integer whose comparisons are counted.
struct Counted {
    int64_t value;
    friend bool operator<(Counted a, Counted b) { return ++comparisons, a.value < b.value; }
};

template <int threads> void by_block(int64_t* x, int count) {
    emulated::run_block(threads, [=](int index) { lm::block_sort<threads>(x, count, index); });
}

}  // namespace

extern "C" void sort_i64(int64_t* x, int64_t count) { lm::sort_ascending(x, count); }
extern "C" void sort_u8(uint8_t* x, int64_t count) { lm::sort_ascending(x, count); }

extern "C" int64_t comparisons_of_sort(int64_t* x, int64_t count) {
    comparisons = 0;
    lm::sort_ascending(reinterpret_cast<Counted*>(x), count);
    return comparisons;
}

/// The `kept` least of x in order, into `least`, which holds large numbers; returns the comparisons.
extern "C" int64_t comparisons_of_keep(const int64_t* x, int64_t count, int64_t* least, int64_t kept) {
    comparisons = 0;
    const auto heap = reinterpret_cast<Counted*>(least);
    for (int64_t i = 0; i < count; ++i) lm::keep_least(heap, kept, Counted{x[i]});
    lm::sort_ascending(heap, kept);
    return comparisons;
}

extern "C" void block_sort(int64_t* x, int count, int threads) {
    if (threads == 1) return by_block<1>(x, count);
    return threads == 32 ? by_block<32>(x, count) : by_block<96>(x, count);
}
