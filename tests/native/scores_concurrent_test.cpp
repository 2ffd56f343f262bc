// Eight contexts of the exported model "scores" at once: chains of contractions in one pass. argv[1]: the weights file.
// Meant to run under the thread sanitizer.
#include "scores.hpp"

#include "concurrent_test.hpp"

namespace {

constexpr std::int64_t HEADS = 2;
constexpr std::int64_t SEQUENCE = 70;
constexpr std::int64_t WIDTH = 12;

Values input(int number) {
    Values made;
    for (std::int64_t i = 0; i < HEADS * SEQUENCE * WIDTH; ++i) {
        made.push_back(static_cast<float>((i * 73 + number * 19) % 211) / 50 - 2);
    }
    return made;
}

Values run(scores::Context& context, int number) {
    const Values q = input(number), k = input(number + 50), v = input(number + 100);
    const auto result = context.main({q.data(), {HEADS, SEQUENCE, WIDTH}}, {k.data(), {HEADS, SEQUENCE, WIDTH}},
                                     {v.data(), {HEADS, SEQUENCE, WIDTH}});
    Values all(result.output_0.data(), result.output_0.data() + result.output_0.size());
    all.insert(all.end(), result.output_1.data(), result.output_1.data() + result.output_1.size());
    return all;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    Concurrent<scores::Library, scores::Context, decltype(&run)> concurrent(argv[1], run);
    return concurrent.differences() == 0 ? 0 : 3;
}
