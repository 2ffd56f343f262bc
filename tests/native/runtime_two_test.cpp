// Two libraries in one program, shared or static, used from two threads each at once through their typed C++
// interfaces. argv[1], argv[2]: the weights files. Prints one score of each library: their weights differ.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "example_a.hpp"
#include "example_b.hpp"

namespace {

const std::vector<std::int64_t> ids = {3, 1, 15, 7};
const float scale = 1;

template <class Context, class View64, class View32, class Library>
void use(Library& library, std::vector<float>& result) {
    Context context(library);
    for (int round = 0; round < 200; ++round) {
        const auto rows = context.embed(View64{ids.data(), {4}}, View32{&scale, {}});
        const auto scores = context.score(rows.embedding, View32{nullptr, {0}});
        result.assign(scores.scores.data(), scores.scores.data() + scores.scores.size());
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    lm_options options_a{};
    lm_options options_b{};
    options_a.weights_path = argv[1];
    options_b.weights_path = argv[2];
    options_a.threads = options_b.threads = 2;
    example_a::Library library_a(options_a);
    example_b::Library library_b(options_b);
    std::vector<float> results[4];
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] {
            use<example_a::Context, example_a::View<std::int64_t>, example_a::View<float>>(library_a, results[i]);
        });
        threads.emplace_back([&, i] {
            use<example_b::Context, example_b::View<std::int64_t>, example_b::View<float>>(library_b, results[2 + i]);
        });
    }
    for (std::thread& thread : threads) thread.join();
    if (results[0] != results[1] || results[2] != results[3] || results[0] == results[2]) return 1;

    const std::int64_t outside = 16;
    try {
        example_a::Context context(library_a);
        context.embed({&outside, {1}}, {&scale, {}});
        return 3;
    } catch (const example_a::Error& error) {
        if (error.status() != LM_INDEX_OUT_OF_RANGE || std::strstr(error.what(), "Gather") == nullptr) return 4;
    }
    try {
        options_b.weights_path = "/nowhere";
        example_b::Library broken(options_b);
        return 5;
    } catch (const example_b::Error& error) {
        if (error.status() != LM_BAD_WEIGHTS) return 6;
    }
    std::printf("%.9g %.9g\n", static_cast<double>(results[0][5]), static_cast<double>(results[2][5]));
    return 0;
}
