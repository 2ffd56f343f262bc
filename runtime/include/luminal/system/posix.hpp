// What the systems that follow POSIX have in common: Linux and macOS.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "luminal/system/locale.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// The text of an errno, as it was when constructed; thread-safe, unlike strerror.
class SystemError {
  public:
    SystemError() : text_(chosen(strerror_r(errno, buffer_, sizeof(buffer_)), buffer_)) {}
    SystemError(const SystemError&) = delete;
    SystemError& operator=(const SystemError&) = delete;
    const char* text() const { return text_; }

  private:
    // The GNU function returns the text, the POSIX function a status.
    static const char* chosen(const char* result, const char*) { return result; }
    static const char* chosen(int, const char* buffer) { return buffer; }

    char buffer_[256] = "";
    const char* text_;
};

// ---- Threads ------------------------------------------------------------------------------------------------------

/// How many threads a library may have.
inline constexpr int SYSTEM_THREADS = INT_MAX;

using Thread = pthread_t;
using ThreadResult = void*;  // of the function that a thread runs, which nobody reads

inline Thread current_thread() { return pthread_self(); }
inline bool same_thread(Thread a, Thread b) { return pthread_equal(a, b) != 0; }

/// Faults are handled where they occur, or nowhere.
inline constexpr int FAULTS[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

/// Starts `body(argument)` on a thread with at least `stack` bytes of stack; false where the system refuses. It blocks
/// all signals: those are for the program's own threads.
inline bool start_thread(Thread& thread, size_t stack, ThreadResult (*body)(void*), void* argument) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    for (const int fault : FAULTS) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    size_t usual = 0;
    if (pthread_attr_getstacksize(&attributes, &usual) == 0 && usual < stack) {
        pthread_attr_setstacksize(&attributes, stack);
    }
    const bool started = pthread_create(&thread, &attributes, body, argument) == 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}
inline void join_thread(Thread thread) { pthread_join(thread, nullptr); }

/// Another process than before: this one was forked, and has none of the threads.
inline int64_t process_id() { return getpid(); }

inline void yield_cpu() { sched_yield(); }
inline int cpus_of_machine() { return static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)); }

class Mutex {
  public:
    void lock() { pthread_mutex_lock(&mutex_); }
    void unlock() { pthread_mutex_unlock(&mutex_); }

  private:
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

/// Held by many who read, or by one who writes.
class SharedMutex {
  public:
    void lock() { pthread_rwlock_wrlock(&lock_); }
    void unlock() { pthread_rwlock_unlock(&lock_); }
    void lock_shared() { pthread_rwlock_rdlock(&lock_); }
    void unlock_shared() { pthread_rwlock_unlock(&lock_); }

  private:
    pthread_rwlock_t lock_ = PTHREAD_RWLOCK_INITIALIZER;
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

inline size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }  // not 4 KiB everywhere

/// Whole pages of zeros, which take memory once they are touched; null if there is none.
inline constexpr bool PAGES_ARE_ZERO = true;
inline void* map_pages(size_t bytes) {
#ifdef MAP_NORESERVE
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#endif
    void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return pages == MAP_FAILED ? nullptr : pages;
}
inline void unmap_pages(void* pages, size_t bytes) { munmap(pages, bytes); }

/// Pages that `map_pages` gave are zeros again, and take no memory; false where the system does not promise that, and
/// they may be anything.
inline bool empty_pages(void* pages, size_t bytes) {
#ifdef __linux__
    return madvise(pages, bytes, MADV_DONTNEED) == 0;
#else
    (void)pages, (void)bytes;
    return false;
#endif
}

/// Nobody writes to the pages any more.
inline void protect_pages(void* pages, size_t bytes) { mprotect(pages, bytes, PROT_READ); }

/// Brings in pages before they are needed. A wish.
inline void touch_pages(void* pages, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    madvise(pages, bytes, MADV_POPULATE_WRITE);
#else
    (void)pages, (void)bytes;
#endif
}

/// Asks for huge pages. A wish.
inline void enlarge_pages(void* pages, size_t bytes) {
#ifdef MADV_HUGEPAGE
    madvise(pages, bytes, MADV_HUGEPAGE);
#else
    (void)pages, (void)bytes;
#endif
}

// ---- Files --------------------------------------------------------------------------------------------------------

/// A file that is read. `SystemError` says what went wrong in the call before.
class File {
  public:
    static constexpr bool MAPS = true;

    explicit File(const char* path) : file_(open(path, O_RDONLY | O_CLOEXEC)) {}
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
        while (true) {
            const ssize_t got = pread(file_, memory, bytes, static_cast<off_t>(offset));
            if (got >= 0 || errno != EINTR) return got;
        }
    }

    /// All of it as pages that cannot be written, or null. They outlive this.
    void* map(size_t bytes) const {
        void* const pages = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file_, 0);
        return pages == MAP_FAILED ? nullptr : pages;
    }
    static void unmap(void* pages, size_t bytes) { munmap(pages, bytes); }

    /// Pages that were mapped are read from the file again when they are needed.
    static void forget(void* pages, size_t bytes) { madvise(pages, bytes, MADV_DONTNEED); }

  private:
    const int file_;
};

}  // namespace LM_RUNTIME
}  // namespace lm
