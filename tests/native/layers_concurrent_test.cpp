// Eight contexts of the exported model "layers" at once. argv[1]: the weights file. Meant to run under the thread
// sanitizer.
#include "layers.hpp"

#include "concurrent_test.hpp"

namespace {

constexpr std::int64_t ROWS = 168;
constexpr std::int64_t COLUMNS = 16;

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

Values run(layers::Context& context, const Inputs& in) {
    const auto result = context.main({in.x.data(), {ROWS, COLUMNS}}, {in.ids.data(), {ROWS}});
    return Values(result.output.data(), result.output.data() + result.output.size());
}

Values run_number(layers::Context& context, int number) { return run(context, inputs(number)); }

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    Concurrent<layers::Library, layers::Context, decltype(&run_number)> concurrent(argv[1], run_number);
    if (concurrent.differences() != 0) return 3;

    // The failure of a step that runs together with others names that step.
    layers::Library library(concurrent.options());
    layers::Context context(library);
    Inputs in = inputs(0);
    in.ids[100] = 9;
    try {
        run(context, in);
        return 4;
    } catch (const layers::Error& error) {
        if (error.status() != LM_INDEX_OUT_OF_RANGE || std::strstr(error.what(), "embedding") == nullptr) return 5;
    }
    in.ids[100] = 8;
    if (run(context, in).size() != concurrent.expected()[0].size()) return 6;
    return 0;
}
