// Windows 8 and later, of 64 bits.
#pragma once

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luminal/atomic.hpp"
#include "luminal/system/elsewhere.hpp"

#ifndef PATH_MAX
#define PATH_MAX 4096
#endif

namespace lm {
inline namespace LM_RUNTIME {

/// The text of the calling thread's last error, as it was when constructed.
class SystemError {
  public:
    SystemError() {
        const DWORD code = GetLastError();
        constexpr DWORD flags = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS;
        const DWORD length = FormatMessageA(flags, nullptr, code, 0, text_, sizeof(text_), nullptr);
        if (length == 0) snprintf(text_, sizeof(text_), "error %lu", code);
        for (size_t end = strlen(text_); end > 0 && strchr("\r\n .", text_[end - 1]) != nullptr; --end) {
            text_[end - 1] = '\0';
        }
    }
    SystemError(const SystemError&) = delete;
    SystemError& operator=(const SystemError&) = delete;
    const char* text() const { return text_; }

  private:
    char text_[256] = "";
};

// ---- Threads ------------------------------------------------------------------------------------------------------

/// How many threads a library may have.
inline constexpr int SYSTEM_THREADS = INT_MAX;

/// A thread by its number; the handle belongs to who started it.
struct Thread {
    DWORD number;
    HANDLE handle;
};
using ThreadResult = DWORD;  // of the function that a thread runs, which nobody reads

inline Thread current_thread() { return {GetCurrentThreadId(), nullptr}; }
inline bool same_thread(Thread a, Thread b) { return a.number == b.number; }

/// Starts `body(argument)` on a thread with at least `stack` bytes of stack; false where the system refuses.
inline bool start_thread(Thread& thread, size_t stack, ThreadResult (*body)(void*), void* argument) {
    constexpr DWORD reserve = 0x00010000;  // the size is that of the address range, of which pages are taken as needed
    thread.handle = CreateThread(nullptr, stack, body, argument, reserve, &thread.number);
    return thread.handle != nullptr;
}
inline void join_thread(Thread thread) {
    WaitForSingleObject(thread.handle, INFINITE);
    CloseHandle(thread.handle);
}

inline int64_t process_id() { return 0; }  // there is no fork
inline void yield_cpu() { SwitchToThread(); }

/// CPUs that this process may keep busy, at least 1: those of its group.
inline int available_cpus() {
    DWORD_PTR process = 0;
    DWORD_PTR machine = 0;
    GetProcessAffinityMask(GetCurrentProcess(), &process, &machine);
    const int count = __builtin_popcountll(process);
    return count > 0 ? count : 1;
}
inline int cpus_of_machine() {
    SYSTEM_INFO info{};
    GetSystemInfo(&info);
    return static_cast<int>(info.dwNumberOfProcessors);
}

/// Sleeps while `word` holds `expected`. May return early; the caller looks again.
inline void futex_wait(const Atomic<uint32_t>& word, uint32_t expected) {
    WaitOnAddress(const_cast<uint32_t*>(word.address()), &expected, sizeof(expected), INFINITE);
}

/// Wakes one of the threads that sleep on `word`, or all where `count` is more.
inline void futex_wake(const Atomic<uint32_t>& word, int count) {
    void* const address = const_cast<uint32_t*>(word.address());
    if (count > 1) WakeByAddressAll(address);
    else WakeByAddressSingle(address);
}

class Mutex {
  public:
    void lock() { AcquireSRWLockExclusive(&lock_); }
    void unlock() { ReleaseSRWLockExclusive(&lock_); }

  private:
    SRWLOCK lock_ = SRWLOCK_INIT;
};

/// Held by many who read, or by one who writes.
class SharedMutex {
  public:
    void lock() { AcquireSRWLockExclusive(&lock_); }
    void unlock() { ReleaseSRWLockExclusive(&lock_); }
    void lock_shared() { AcquireSRWLockShared(&lock_); }
    void unlock_shared() { ReleaseSRWLockShared(&lock_); }

  private:
    SRWLOCK lock_ = SRWLOCK_INIT;
};

/// Where the clock is set meanwhile, one spin or one time of a trace is wrong.
inline int64_t monotonic_nanoseconds() {
    FILETIME time{};  // in steps of 100 ns
    GetSystemTimePreciseAsFileTime(&time);
    return static_cast<int64_t>(static_cast<uint64_t>(time.dwHighDateTime) << 32 | time.dwLowDateTime) * 100;
}

// ---- Memory -------------------------------------------------------------------------------------------------------

/// Memory of the C library, aligned to a power of two; null if there is none.
inline void* allocate_aligned(size_t alignment, size_t bytes) { return _aligned_malloc(bytes, alignment); }
inline void free_aligned(void* memory) { _aligned_free(memory); }

inline size_t page_bytes() { return 4096; }

/// Whole pages of zeros, which take memory once they are touched; null if there is none.
inline constexpr bool PAGES_ARE_ZERO = true;
inline void* map_pages(size_t bytes) {
    return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}
inline void unmap_pages(void* pages, size_t) { VirtualFree(pages, 0, MEM_RELEASE); }
inline bool empty_pages(void*, size_t) { return false; }

/// Nobody writes to the pages any more.
inline void protect_pages(void* pages, size_t bytes) {
    DWORD before = 0;
    VirtualProtect(pages, bytes, PAGE_READONLY, &before);
}
inline void touch_pages(void*, size_t) {}
inline void enlarge_pages(void*, size_t) {}

// ---- Files --------------------------------------------------------------------------------------------------------

/// `text` of UTF-8 in the characters of Windows; false where it is too long, or none.
inline bool wide_path(const char* text, wchar_t (&path)[PATH_MAX]) {
    return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, path, PATH_MAX) > 0;
}

/// A file that is read. `SystemError` says what went wrong in the call before.
class File {
  public:
    static constexpr bool MAPS = true;

    explicit File(const char* path) {
        wchar_t name[PATH_MAX];
        if (!wide_path(path, name)) return;
        file_ = CreateFileW(name, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr, OPEN_EXISTING,
                            FILE_ATTRIBUTE_NORMAL, nullptr);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File() {
        if (is_open()) CloseHandle(file_);
    }

    bool is_open() const { return file_ != INVALID_HANDLE_VALUE; }

    bool size(size_t& bytes) const {
        LARGE_INTEGER found{};
        if (GetFileSizeEx(file_, &found) == 0) return false;
        bytes = static_cast<size_t>(found.QuadPart);
        return true;
    }

    /// Up to `bytes` from `offset` on; how many, or -1.
    int64_t read(void* memory, size_t bytes, size_t offset) const {
        constexpr size_t most = size_t{1} << 30;
        OVERLAPPED place{};
        place.Offset = static_cast<DWORD>(offset);
        place.OffsetHigh = static_cast<DWORD>(static_cast<uint64_t>(offset) >> 32);
        DWORD got = 0;
        if (ReadFile(file_, memory, static_cast<DWORD>(bytes < most ? bytes : most), &got, &place) != 0) return got;
        return GetLastError() == ERROR_HANDLE_EOF ? 0 : -1;
    }

    /// All of it as pages that cannot be written, or null. They outlive this.
    void* map(size_t bytes) const {
        const HANDLE mapping = CreateFileMappingW(file_, nullptr, PAGE_READONLY, 0, 0, nullptr);
        if (mapping == nullptr) return nullptr;
        void* const pages = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, bytes);
        CloseHandle(mapping);
        return pages;
    }
    static void unmap(void* pages, size_t) { UnmapViewOfFile(pages); }

    /// Pages that were mapped are read from the file again when they are needed: unlocking pages that are not locked
    /// takes them from the working set.
    static void forget(void* pages, size_t bytes) { VirtualUnlock(pages, bytes); }

  private:
    HANDLE file_ = INVALID_HANDLE_VALUE;
};

/// While it exists, the thread reads and writes numbers as C does, wherever it runs.
class LocaleOfC {
  public:
    LocaleOfC() : mode_(_configthreadlocale(_ENABLE_PER_THREAD_LOCALE)) {
        const char* const before = setlocale(LC_NUMERIC, nullptr);
        snprintf(before_, sizeof(before_), "%s", before != nullptr ? before : "C");
        setlocale(LC_NUMERIC, "C");
    }
    ~LocaleOfC() {
        setlocale(LC_NUMERIC, before_);
        _configthreadlocale(mode_);
    }
    LocaleOfC(const LocaleOfC&) = delete;
    LocaleOfC& operator=(const LocaleOfC&) = delete;

  private:
    const int mode_;
    char before_[256];
};

/// The file of the library, or of the program that it is linked into, that `inside` is an address of, with slashes;
/// false where it cannot be told.
inline bool own_path(const void* inside, char (&path)[PATH_MAX]) {
    HMODULE module = nullptr;
    constexpr DWORD flags =
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    if (GetModuleHandleExW(flags, static_cast<const wchar_t*>(inside), &module) == 0) return false;
    wchar_t name[PATH_MAX];
    const DWORD length = GetModuleFileNameW(module, name, PATH_MAX);
    if (length == 0 || length == PATH_MAX) return false;
    if (WideCharToMultiByte(CP_UTF8, 0, name, -1, path, PATH_MAX, nullptr, nullptr) <= 0) return false;
    for (char* c = path; *c != '\0'; ++c) {
        if (*c == '\\') *c = '/';
    }
    return true;
}

}  // namespace LM_RUNTIME
}  // namespace lm
