// Eight contexts of the exported model "layers" at once, on the library's own threads and on the caller's: every run
// gives the bits of a run alone. argv[1]: the weights file. Meant to run under the thread sanitizer.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "layers.hpp"

namespace {

constexpr std::int64_t ROWS = 168;
constexpr std::int64_t COLUMNS = 16;
constexpr int CONTEXTS = 8;

struct Inputs {
    std::vector<float> x;
    std::vector<std::int64_t> ids;
};

Inputs inputs(int number) {
    Inputs made;
    for (std::int64_t i = 0; i < ROWS * COLUMNS; ++i) made.x.push_back(static_cast<float>((i * 37 + number) % 101) / 50);
    for (std::int64_t i = 0; i < ROWS; ++i) made.ids.push_back((i + number) % 9);
    return made;
}

std::vector<float> run(layers::Context& context, const Inputs& in) {
    const auto result = context.main({in.x.data(), {ROWS, COLUMNS}}, {in.ids.data(), {ROWS}});
    return std::vector<float>(result.output.data(), result.output.data() + result.output.size());
}

/// Uneven ranges, the last first, each on a thread of its own.
void in_pieces(void*, std::int64_t tasks, lm_task_range body, void* argument) {
    std::vector<std::thread> threads;
    for (std::int64_t end = tasks; end > 0;) {
        const std::int64_t begin = end > 5 ? end * 2 / 3 : 0;
        threads.emplace_back(body, argument, begin, end);
        end = begin;
    }
    for (std::thread& thread : threads) thread.join();
}

int differences(const lm_options& options, const std::vector<std::vector<float>>& expected, int rounds) {
    layers::Library library(options);
    std::vector<int> wrong(CONTEXTS);
    std::vector<std::thread> threads;
    for (int number = 0; number < CONTEXTS; ++number) {
        threads.emplace_back([&, number] {
            layers::Context context(library);
            const Inputs in = inputs(number);
            const std::vector<float>& wanted = expected[static_cast<std::size_t>(number)];
            for (int round = 0; round < rounds; ++round) {
                const std::vector<float> found = run(context, in);
                const bool same = std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(float)) == 0;
                wrong[static_cast<std::size_t>(number)] += !same;
            }
        });
    }
    int total = 0;
    for (std::thread& thread : threads) thread.join();
    for (const int count : wrong) total += count;
    return total;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    lm_options options{};
    options.weights_path = argv[1];
    options.threads = 1;
    std::vector<std::vector<float>> expected;
    {
        layers::Library library(options);
        layers::Context context(library);
        for (int number = 0; number < CONTEXTS; ++number) expected.push_back(run(context, inputs(number)));
    }
    for (const int threads : {2, 3, 8}) {
        options.threads = threads;
        layers::Library library(options);
        layers::Context context(library);
        for (int number = 0; number < CONTEXTS; ++number) {
            if (run(context, inputs(number)) != expected[static_cast<std::size_t>(number)]) return 3;
        }
        if (differences(options, expected, 10) != 0) return 4;
    }
    options.parallel_for = in_pieces;
    if (differences(options, expected, 2) != 0) return 5;

    // The failure of a step that runs together with others names that step.
    options.parallel_for = nullptr;
    layers::Library library(options);
    layers::Context context(library);
    Inputs in = inputs(0);
    in.ids[100] = 9;
    try {
        run(context, in);
        return 6;
    } catch (const layers::Error& error) {
        if (error.status() != LM_INDEX_OUT_OF_RANGE || std::strstr(error.what(), "embedding") == nullptr) return 7;
    }
    in.ids[100] = 8;
    if (run(context, in).size() != expected[0].size()) return 8;
    return 0;
}
