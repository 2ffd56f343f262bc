// Two exported models in one program, each used from two threads at once through its typed C++ interface. argv[1],
// argv[2]: the weights files. Prints the first model's pooled outputs, then the second's, one number a line.
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "encoder_a.hpp"
#include "encoder_b.hpp"

namespace {

constexpr std::int64_t batch = 3;
constexpr std::int64_t length = 7;

template <class Context, class Ids, class Weight, class Library>
void use(Library& library, std::vector<float>& result) {
    std::vector<std::int64_t> ids;
    std::vector<float> weight;
    for (std::int64_t i = 0; i < batch * length; ++i) {
        ids.push_back(i * 7 % 50);
        weight.push_back(0.25f * static_cast<float>(i % 5));
    }
    Context context(library);
    for (int round = 0; round < 100; ++round) {
        const auto outputs = context.main(Ids{ids.data(), {batch, length}}, Weight{weight.data(), {batch, length}});
        const auto& [tokens, pooled, best] = outputs;
        if (tokens.shape() != std::vector<std::int64_t>{batch, length, 24} || best.size() != batch) return;
        result.assign(pooled.data(), pooled.data() + pooled.size());
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
    encoder_a::Library library_a(options_a);
    encoder_b::Library library_b(options_b);
    std::vector<float> results[4];
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] {
            use<encoder_a::Context, encoder_a::View<std::int64_t>, encoder_a::View<float>>(library_a, results[i]);
        });
        threads.emplace_back([&, i] {
            use<encoder_b::Context, encoder_b::View<std::int64_t>, encoder_b::View<float>>(library_b, results[2 + i]);
        });
    }
    for (std::thread& thread : threads) thread.join();
    if (results[0] != results[1] || results[2] != results[3] || results[0] == results[2]) return 1;

    const std::int64_t outside = 50;
    const float one = 1;
    try {
        encoder_a::Context context(library_a);
        context.main({&outside, {1, 1}}, {&one, {1, 1}});
        return 3;
    } catch (const encoder_a::Error& error) {
        if (error.status() != LM_INDEX_OUT_OF_RANGE) return 4;
    }
    for (const int k : {0, 2})
        for (const float value : results[k]) std::printf("%.9g\n", static_cast<double>(value));
    return 0;
}
