// The CPUs that this process may use: its cpuset, those of a thread, and the share of time that control groups grant it.
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

/// CPUs of the cpuset of this process, at least 1.
inline int cpuset_cpus() {
    // The kernel refuses a set that is too small for its CPUs: try larger ones.
    for (int cpus = 1024; cpus <= 1 << 17; cpus *= 2) {
        cpu_set_t* set = CPU_ALLOC(cpus);
        if (set == nullptr) return 1;
        const size_t bytes = CPU_ALLOC_SIZE(cpus);
        const bool known = sched_getaffinity(0, bytes, set) == 0;
        const int count = known ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (known) return count > 0 ? count : 1;
    }
    return 1;
}

/// CPUs that a thread may run on. Empty, which no thread's are, where the system has more than a cpu_set_t can say.
class CpuSet {
  public:
    CpuSet() { CPU_ZERO(&set_); }

    static CpuSet of(pthread_t thread) {
        CpuSet result;
        if (pthread_getaffinity_np(thread, sizeof(result.set_), &result.set_) != 0) CPU_ZERO(&result.set_);
        return result;
    }

    CpuSet without(int cpu) const {
        CpuSet result = *this;
        if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(cpu, &result.set_);
        return result;
    }

    bool operator==(const CpuSet& other) const { return CPU_EQUAL(&set_, &other.set_); }

    /// Lets the thread run on these alone; nothing changes if there is none.
    void give(pthread_t thread) const {
        if (CPU_COUNT(&set_) > 0) pthread_setaffinity_np(thread, sizeof(set_), &set_);
    }

  private:
    cpu_set_t set_;
};

/// The beginning of a small file as text; empty if it cannot be read.
template <size_t SIZE>
void read_text(const char* path, char (&text)[SIZE]) {
    text[0] = '\0';
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const ssize_t length = read(file, text, SIZE - 1);
    text[length > 0 ? length : 0] = '\0';
    close(file);
}

/// The CPU time that control groups (version 2) grant this process, in CPUs, rounded up: the least quota of its group
/// and of those around it; INT_MAX where there is none. `membership` names the group in the tree of files at `root`.
inline int quota_cpus(const char* membership = "/proc/self/cgroup", const char* root = "/sys/fs/cgroup") {
    char lines[4096];
    read_text(membership, lines);
    char* group = strncmp(lines, "0::", 3) == 0 ? lines : strstr(lines, "\n0::");
    if (group == nullptr) return INT_MAX;
    group = strchr(group, '/');
    if (group == nullptr) return INT_MAX;
    group[strcspn(group, "\n")] = '\0';
    long long least = INT_MAX;
    while (true) {
        char path[PATH_MAX];
        char limit[64];
        snprintf(path, sizeof(path), "%s%s/cpu.max", root, group);
        read_text(path, limit);
        long long quota = 0;  // microseconds in every period; the word "max" where there is no limit
        long long period = 0;
        if (sscanf(limit, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0) {
            const long long cpus = (quota - 1) / period + 1;
            if (cpus < least) least = cpus;
        }
        char* const parent = strrchr(group, '/');
        if (parent == nullptr) return static_cast<int>(least);
        *parent = '\0';
    }
}

/// CPUs that this process may keep busy, at least 1.
inline int available_cpus() {
    const int cpuset = cpuset_cpus();
    const int quota = quota_cpus();
    return quota < cpuset ? quota : cpuset;
}

}  // namespace LM_NAMESPACE
}  // namespace lm
