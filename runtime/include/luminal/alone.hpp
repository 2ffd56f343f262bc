// The ranks of a model where there is no MPI that could be opened: one alone.
#pragma once

#include <stdint.h>

#include "luminal/abi.h"
#include "luminal/exchange.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"
#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

class Communicator {
  public:
    int32_t rank() const { return 0; }
    int32_t open(const Model& model, const lm_options&, Message& message) {
        message.set("the model is for %d ranks, which need MPI: libraries open it on Linux and macOS alone",
                    static_cast<int>(model.ranks));
        return LM_RANK_FAILED;
    }
    int32_t divide_cpus(int32_t, Message&) { return LM_OK; }
    int32_t agree(const Model&, int32_t status, Message&) { return status; }
    void begin() {}
    void end() {}
    bool is_broken() const { return false; }
    bool is_open() const { return false; }
    void advance() {}
    void part(const Message&) {}
    bool start(int32_t, const Exchange&, const void*, void*, int64_t, Message&) { return false; }
    bool wait(int32_t, Message&) { return false; }
};

}  // namespace LM_RUNTIME
}  // namespace lm
