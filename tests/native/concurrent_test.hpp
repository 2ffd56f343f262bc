// What the tests of one model on many threads share: several contexts at once, on the library's own threads and on the
// caller's, each with inputs of its own. Every run must give the bits of a run alone.
#pragma once

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

constexpr int CONTEXTS = 8;

using Values = std::vector<float>;

/// Uneven ranges, the last first, each on a thread of its own that begins when it likes.
inline void in_pieces(void*, std::int64_t tasks, lm_task_range body, void* argument) {
    std::vector<std::thread> threads;
    for (std::int64_t end = tasks; end > 0;) {
        const std::int64_t begin = end > 5 ? end * 2 / 3 : 0;
        threads.emplace_back([=] {
            std::this_thread::sleep_for(std::chrono::microseconds(end * 7919 % 300));
            body(argument, begin, end);
        });
        end = begin;
    }
    for (std::thread& thread : threads) thread.join();
}

/// `run(context, number)` gives all outputs for the inputs of that number.
template <class Library, class Context, class Run>
class Concurrent {
  public:
    Concurrent(const char* weights, const Run& run) : run_(run) {
        options_.weights_path = weights;
        options_.threads = 1;
        Library library(options_);
        Context context(library);
        for (int number = 0; number < CONTEXTS; ++number) expected_.push_back(run_(context, number));
    }

    const lm_options& options() const { return options_; }
    const std::vector<Values>& expected() const { return expected_; }

    /// The number of runs that gave other bits than the run on one thread.
    int differences() {
        int total = 0;
        for (const int threads : {2, 3, 8}) {
            options_.threads = threads;
            Library library(options_);
            Context context(library);
            for (int number = 0; number < CONTEXTS; ++number) total += differs(context, number);
            total += at_once(library, 10);
        }
        options_.parallel_for = in_pieces;
        Library library(options_);
        total += at_once(library, 2);
        options_.parallel_for = nullptr;
        return total;
    }

  private:
    bool differs(Context& context, int number) const {
        const Values found = run_(context, number);
        const Values& wanted = expected_[static_cast<std::size_t>(number)];
        return found.size() != wanted.size() ||
               std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(float)) != 0;
    }

    int at_once(Library& library, int rounds) const {
        std::vector<int> wrong(CONTEXTS);
        std::vector<std::thread> threads;
        for (int number = 0; number < CONTEXTS; ++number) {
            threads.emplace_back([&, number] {
                Context context(library);
                for (int round = 0; round < rounds; ++round) {
                    wrong[static_cast<std::size_t>(number)] += differs(context, number);
                }
            });
        }
        int total = 0;
        for (std::thread& thread : threads) thread.join();
        for (const int count : wrong) total += count;
        return total;
    }

    Run run_;
    lm_options options_{};
    std::vector<Values> expected_;
};
