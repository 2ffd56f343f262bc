// The part of NCCL that ranks of a mesh of GPUs use, opened by name. Names and numbers are those of nccl.h, version 2.14
// and later, whose communicators return from calls that would wait for other ranks.
#pragma once

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/cuda/driver.hpp"
#include "luminal/message.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace cuda {

/// The functions of NCCL. What it returns are ncclResult_t.
struct Nccl {
    using Communicator = struct OpaqueNcclComm*;

    /// ncclUniqueId.
    struct Id {
        char internal[128];
    };

    /// ncclConfig_t of 2.14; what later versions have added keeps their defaults.
    struct Config {
        size_t size = sizeof(Config);
        uint32_t magic = 0xcafebeef;
        uint32_t version = LEAST_VERSION;
        int32_t blocking = 0;
    };

    static constexpr int32_t SUCCESS = 0;
    static constexpr int32_t IN_PROGRESS = 7;        // ncclInProgress
    static constexpr int32_t BYTES = 1;              // ncclUint8
    static constexpr int32_t LEAST_VERSION = 21400;  // NCCL_VERSION(2, 14, 0)
    static constexpr const char* DEFAULT = "libnccl.so.2";

    int32_t (*version)(int32_t* version) = nullptr;
    const char* (*error_text)(int32_t result) = nullptr;
    const char* (*last_error)(Communicator comm) = nullptr;
    int32_t (*make_id)(Id* id) = nullptr;
    int32_t (*init)(Communicator* comm, int32_t ranks, Id id, int32_t rank, Config* config) = nullptr;
    int32_t (*finalize)(Communicator comm) = nullptr;
    int32_t (*destroy)(Communicator comm) = nullptr;
    int32_t (*abort)(Communicator comm) = nullptr;
    int32_t (*state)(Communicator comm, int32_t* state) = nullptr;
    int32_t (*count)(Communicator comm, int32_t* ranks) = nullptr;
    int32_t (*rank)(Communicator comm, int32_t* rank) = nullptr;
    int32_t (*group_start)() = nullptr;
    int32_t (*group_end)() = nullptr;
    int32_t (*send)(const void* data, size_t count, int32_t type, int32_t to, Communicator comm, Stream) = nullptr;
    int32_t (*receive)(void* data, size_t count, int32_t type, int32_t from, Communicator comm, Stream) = nullptr;
    int32_t (*gather)(const void* own, void* all, size_t count, int32_t type, Communicator comm, Stream) = nullptr;
    int32_t (*broadcast)(const void* own, void* result, size_t count, int32_t type, int32_t root, Communicator comm,
                         Stream) = nullptr;

    /// Opens the library of that name or path; null: what LUMINAL_NCCL names, where the GPU is emulated what emulates it,
    /// else libnccl.so.2. False where it cannot be, is too old, or lacks a function.
    bool open(const char* path, Message& message) {
        char beside[PATH_MAX];
        if (path == nullptr) path = other_driver("LUMINAL_NCCL", beside);
        if (path == nullptr || path[0] == '\0') path = DEFAULT;
        void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library == nullptr) {
            message.set("cannot open NCCL, by which GPUs exchange data, as \"%s\": %s; install it (the package "
                        "nvidia-nccl-cu12 of PyPI has it), or set lm_options.nccl_library or LUMINAL_NCCL to its path",
                        path, dlerror());
            return false;
        }
        const Entry entries[] = {
            {"ncclGetVersion", &version}, {"ncclGetErrorString", &error_text}, {"ncclGetLastError", &last_error},
            {"ncclGetUniqueId", &make_id}, {"ncclCommInitRankConfig", &init}, {"ncclCommFinalize", &finalize},
            {"ncclCommDestroy", &destroy}, {"ncclCommAbort", &abort}, {"ncclCommGetAsyncError", &state},
            {"ncclCommCount", &count}, {"ncclCommUserRank", &rank}, {"ncclGroupStart", &group_start},
            {"ncclGroupEnd", &group_end}, {"ncclSend", &send}, {"ncclRecv", &receive}, {"ncclAllGather", &gather},
            {"ncclBroadcast", &broadcast},
        };
        for (const Entry& entry : entries) {
            void* const found = dlsym(library, entry.name);
            if (found == nullptr) {
                message.set("NCCL, opened as \"%s\", has no %s: install version 2.14 or later", path, entry.name);
                return false;
            }
            memcpy(entry.pointer, &found, sizeof(found));
        }
        int32_t found = 0;
        if (version(&found) == SUCCESS && found >= LEAST_VERSION) return true;
        message.set("NCCL, opened as \"%s\", is of version %d, expected %d or later", path, found, LEAST_VERSION);
        return false;
    }

  private:
    struct Entry {
        const char* name;
        void* pointer;  // to the member
    };
};

}  // namespace cuda
}  // namespace LM_RUNTIME
}  // namespace lm
