// Sorting where the elements lie: integers, ascending. Equal ones cannot be told apart, so any algorithm gives the same.
#pragma once

#include <stdint.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

template <class T> inline void exchange(T& a, T& b) {
    const T c = a;
    a = b;
    b = c;
}

/// Puts `value` at `place` of a heap, or below it: no element is greater than the one at half its place (from 1 on).
template <class T> static void sift_down(T* heap, int64_t count, int64_t place, T value) {
    for (int64_t child; (child = 2 * place + 1) < count; place = child) {
        if (child + 1 < count) child += heap[child] < heap[child + 1];
        if (!(value < heap[child])) break;
        heap[place] = heap[child];
    }
    heap[place] = value;
}

template <class T> static void heap_sort(T* first, int64_t count) {
    for (int64_t place = count / 2; place-- > 0;) sift_down(first, count, place, first[place]);
    for (int64_t end = count; --end > 0;) {
        const T last = first[end];
        first[end] = first[0];
        sift_down(first, end, 0, last);
    }
}

template <class T> static void insertion_sort(T* first, int64_t count) {
    for (int64_t i = 1; i < count; ++i) {
        const T value = first[i];
        int64_t place = i;
        for (; place > 0 && value < first[place - 1]; --place) first[place] = first[place - 1];
        first[place] = value;
    }
}

template <class T> inline T median(T a, T b, T c) {
    return a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
}

/// Puts what `goes_first` holds for before the rest, and returns how many those are. No branch depends on an element.
template <class T, class Condition> inline int64_t partition(T* first, int64_t count, Condition goes_first) {
    int64_t before = 0;
    for (int64_t i = 0; i < count; ++i) {
        const T value = first[i];
        first[i] = first[before];
        first[before] = value;
        before += goes_first(value);
    }
    return before;
}

constexpr int64_t few = 24;     // elements that are sorted by insertion
constexpr int64_t many = 1024;  // elements whose pivot is the median of three medians

/// Quicksort, and a heap sort of parts for which `uneven` divisions were not enough: n log n in every case
/// (Musser, 1997).
template <class T> static void quick_sort(T* first, int64_t count, int uneven) {
    while (count > few) {
        const T* middle = first + count / 2;
        T pivot = median(first[0], *middle, first[count - 1]);
        if (count > many) {
            const T* early = first + count / 4;
            const T* late = middle + count / 4;
            pivot = median(pivot, median(early[0], early[1], early[-1]), median(late[0], late[1], late[-1]));
        }
        int64_t before = partition(first, count, [=](T value) { return value < pivot; });
        if (before < count / 8 || before > count / 8 * 7) {
            // Few are less, or few are not: maybe because many are equal to the pivot, which are in their place then.
            const int64_t equal = partition(first + before, count - before, [=](T value) { return !(pivot < value); });
            if (uneven-- == 0) return heap_sort(first, count);
            quick_sort(first, before, uneven);
            first += before + equal;
            count -= before + equal;
            continue;
        }
        const int64_t after = count - before;
        if (before < after) {
            quick_sort(first, before, uneven);
            first += before;
            count = after;
        } else {
            quick_sort(first + before, after, uneven);
            count = before;
        }
    }
    insertion_sort(first, count);
}

}  // namespace detail

/// The elements at first[0 .. count-1] in ascending order.
template <class T> static void sort_ascending(T* first, int64_t count) {
    int levels = 0;
    for (int64_t size = count; size > 1; size /= 2) ++levels;
    detail::quick_sort(first, count, levels);
}

/// Puts `value` into a heap in place of its greatest element, heap[0], if it is less.
template <class T> inline void keep_least(T* heap, int64_t count, T value) {
    if (count > 0 && value < heap[0]) detail::sift_down(heap, count, 0, value);
}

}  // namespace LM_RUNTIME
}  // namespace lm
