// WebAssembly of 32 bits, with the C library of WASI: one thread, and memory that only grows.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "luminal/atomic.hpp"
#include "luminal/system/elsewhere.hpp"
#include "luminal/system/locale.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// The text of errno, as it was when constructed.
class SystemError {
  public:
    SystemError() : text_(strerror(errno)) {}
    const char* text() const { return text_; }

  private:
    const char* text_;
};

// ---- Threads: there is one ----------------------------------------------------------------------------------------

/// How many threads a library may have.
inline constexpr int SYSTEM_THREADS = 1;

using Thread = int;
using ThreadResult = void*;

inline Thread current_thread() { return 0; }
inline bool same_thread(Thread a, Thread b) { return a == b; }
inline bool start_thread(Thread&, size_t, ThreadResult (*)(void*), void*) { return false; }
inline void join_thread(Thread) {}
inline int64_t process_id() { return 0; }
inline void yield_cpu() {}
inline int available_cpus() { return 1; }
inline int cpus_of_machine() { return 1; }
inline void futex_wait(const Atomic<uint32_t>&, uint32_t) {}
inline void futex_wake(const Atomic<uint32_t>&, int) {}

class Mutex {
  public:
    void lock() {}
    void unlock() {}
};

class SharedMutex {
  public:
    void lock() {}
    void unlock() {}
    void lock_shared() {}
    void unlock_shared() {}
};

inline int64_t monotonic_nanoseconds() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// ---- Memory -------------------------------------------------------------------------------------------------------

/// Memory of the C library, aligned to a power of two; null if there is none.
inline void* allocate_aligned(size_t alignment, size_t bytes) {
    void* memory = nullptr;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}
inline void free_aligned(void* memory) { free(memory); }

inline size_t page_bytes() { return 4096; }  // of what is allocated; pages of the machine are never given back

/// Memory of the C library, which is not zero; null if there is none.
inline constexpr bool PAGES_ARE_ZERO = false;
inline void* map_pages(size_t bytes) { return allocate_aligned(page_bytes(), bytes); }
inline void unmap_pages(void* pages, size_t) { free(pages); }
inline bool empty_pages(void*, size_t) { return false; }
inline void protect_pages(void*, size_t) {}
inline void touch_pages(void*, size_t) {}
inline void enlarge_pages(void*, size_t) {}

// ---- Files --------------------------------------------------------------------------------------------------------

/// A file that is read, where the host lends a folder. `SystemError` says what went wrong in the call before.
class File {
  public:
    static constexpr bool MAPS = false;

    explicit File(const char* path) : file_(open(path, O_RDONLY)) {}
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File() {
        if (file_ >= 0) close(file_);
    }

    bool is_open() const { return file_ >= 0; }

    bool size(size_t& bytes) const {
        struct stat info {};
        if (fstat(file_, &info) != 0) return false;
        bytes = static_cast<size_t>(info.st_size);
        return true;
    }

    /// Up to `bytes` from `offset` on; how many, or -1.
    int64_t read(void* memory, size_t bytes, size_t offset) const {
        return pread(file_, memory, bytes, static_cast<off_t>(offset));
    }

    /// Null: files cannot be mapped.
    void* map(size_t) const { return nullptr; }
    static void unmap(void*, size_t) {}
    static void forget(void*, size_t) {}

  private:
    const int file_;
};

/// A module does not know where it came from.
inline bool own_path(const void*, char (&)[PATH_MAX]) { return false; }

}  // namespace LM_RUNTIME
}  // namespace lm
