// Linux.
#pragma once

#include <dlfcn.h>

#include "luminal/cpus.hpp"
#include "luminal/futex.hpp"
#include "luminal/system/posix.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// The CPU that the calling thread is on; -1: not known.
inline int current_cpu() { return sched_getcpu(); }

/// Bytes of memory that this process can take before others must give some back: what the machine has left, or what
/// control groups leave of what they grant, where caches of files count as used.
inline size_t available_memory(const ControlGroups& groups = {}, const char* machine = "/proc/meminfo") {
    char text[256];
    read_text(machine, text);
    const char* const line = strstr(text, "MemAvailable:");
    long long kilobytes = 0;
    if (line == nullptr || sscanf(line, "MemAvailable: %lld", &kilobytes) != 1) return 0;
    long long least = kilobytes * 1024;
    groups.each("memory", [&least](const ControlGroup& group) {
        long long limit = 0;  // the word "max" where there is none, or a number that no machine has
        long long used = 0;
        const bool known = (group.read("memory.max", limit) && group.read("memory.current", used)) ||
                           (group.read("memory.limit_in_bytes", limit) && group.read("memory.usage_in_bytes", used));
        if (known && limit - used < least) least = limit - used;
    });
    return least > 0 ? static_cast<size_t>(least) : 0;
}

/// Bytes of a huge page, where a program may ask for such; 0 where there are none.
inline size_t huge_page() {
    char modes[64];  // the chosen one in brackets
    read_text("/sys/kernel/mm/transparent_hugepage/enabled", modes);
    if (modes[0] == '\0' || strstr(modes, "[never]") != nullptr) return 0;
    char size[32];
    read_text("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", size);
    return static_cast<size_t>(atoll(size));
}

/// The file of the library, or of the program that it is linked into, that `inside` is an address of; false where it
/// cannot be told.
inline bool own_path(const void* inside, char (&path)[PATH_MAX]) {
    Dl_info info{};
    if (dladdr(inside, &info) != 0 && info.dli_fname != nullptr && strchr(info.dli_fname, '/') != nullptr) {
        return snprintf(path, sizeof(path), "%s", info.dli_fname) < static_cast<int>(sizeof(path));
    }
    const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

}  // namespace LM_RUNTIME
}  // namespace lm
