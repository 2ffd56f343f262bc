// MPI, opened by name: the functions that a mesh of ranks needs, by the types of the MPI 5 ABI, or of a shim that
// `luminal mpi-shim` wrote for an older MPI.
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "luminal/message.hpp"
#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// The functions of an MPI library. Handles are pointers, of which the ABI numbers those that are predefined.
struct Mpi {
    using Handle = void*;

    int (*initialized)(int* flag) = nullptr;
    int (*finalized)(int* flag) = nullptr;
    int (*init_thread)(int* argc, char*** argv, int required, int* provided) = nullptr;
    int (*finalize)() = nullptr;
    int (*comm_idup)(Handle comm, Handle* copy, Handle* request) = nullptr;
    int (*comm_rank)(Handle comm, int* rank) = nullptr;
    int (*comm_size)(Handle comm, int* size) = nullptr;
    int (*comm_set_errhandler)(Handle comm, Handle handler) = nullptr;
    int (*isend)(const void* data, int count, Handle type, int to, int tag, Handle comm, Handle* request) = nullptr;
    int (*irecv)(void* data, int count, Handle type, int from, int tag, Handle comm, Handle* request) = nullptr;
    int (*test)(Handle* request, int* flag, void* status) = nullptr;
    int (*error_string)(int code, char* text, int* length) = nullptr;

    static Handle predefined(uintptr_t number) { return reinterpret_cast<Handle>(number); }
    static Handle world() { return predefined(0x101); }
    static Handle errors_return() { return predefined(0x143); }
    static Handle byte() { return predefined(0x247); }
    static constexpr int THREAD_SERIALIZED = 2048;
    static constexpr int MAX_ERROR_STRING = 512;
    static constexpr const char* DEFAULT = "libmpi_abi.so.1";

    /// Opens the library of that name or path; null: what LUMINAL_MPI names, else the one of the ABI. False where it
    /// cannot be, or lacks a function.
    bool open(const char* path, Message& message) {
        if (path == nullptr) path = getenv("LUMINAL_MPI");
        if (path == nullptr || path[0] == '\0') path = DEFAULT;
        // It stays open: MPI is one for the whole process. Its own parts look up each other's functions.
        void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
        if (library == nullptr) {
            message.set("cannot open the MPI library \"%s\": %s; set lm_options.mpi_library or LUMINAL_MPI to a library "
                        "of the MPI 5 ABI, or for an older MPI to what `luminal mpi-shim` makes", path, dlerror());
            return false;
        }
        const Entry entries[] = {
            {"Initialized", &initialized}, {"Finalized", &finalized}, {"Init_thread", &init_thread},
            {"Finalize", &finalize}, {"Comm_idup", &comm_idup}, {"Comm_rank", &comm_rank}, {"Comm_size", &comm_size},
            {"Comm_set_errhandler", &comm_set_errhandler}, {"Isend", &isend}, {"Irecv", &irecv}, {"Test", &test},
            {"Error_string", &error_string},
        };
        const bool shim = dlsym(library, "luminal_mpi_shim") != nullptr;
        if (!shim && dlsym(library, "MPI_Abi_get_version") == nullptr) {
            message.set("\"%s\" is no library of the MPI 5 ABI: it lacks MPI_Abi_get_version; for an older MPI, build "
                        "what `luminal mpi-shim` writes with its mpicc and name that library", path);
            return false;
        }
        for (const Entry& entry : entries) {
            char name[64];
            snprintf(name, sizeof(name), "%s%s", shim ? "luminal_MPI_" : "MPI_", entry.name);
            void* const found = dlsym(library, name);
            if (found == nullptr) {
                message.set("the MPI library \"%s\" lacks the function %s", path, name);
                return false;
            }
            memcpy(entry.pointer, &found, sizeof(found));
        }
        return true;
    }

  private:
    struct Entry {
        const char* name;
        void* pointer;  // to the member
    };
};

}  // namespace LM_RUNTIME
}  // namespace lm
