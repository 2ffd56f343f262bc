// The CPUs that this process may use: its cpuset, those of a thread, and the share of time that control groups grant it.
#pragma once

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "luminal/control_groups.hpp"
#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

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

/// The CPU time that control groups grant this process, in CPUs, rounded up; INT_MAX where there is no limit.
inline int quota_cpus(const ControlGroups& groups = {}) {
    long long least = INT_MAX;
    groups.each("cpu", [&least](const ControlGroup& group) {
        long long quota = 0;  // microseconds in every period; the word "max" or -1 where there is no limit
        long long period = 0;
        const bool known = group.read("cpu.max", quota, period) ||
                           (group.read("cpu.cfs_quota_us", quota) && group.read("cpu.cfs_period_us", period));
        if (!known || quota <= 0 || period <= 0) return;
        const long long cpus = (quota - 1) / period + 1;
        if (cpus < least) least = cpus;
    });
    return static_cast<int>(least);
}

/// CPUs that this process may keep busy, at least 1.
inline int available_cpus() {
    const int cpuset = cpuset_cpus();
    const int quota = quota_cpus();
    return quota < cpuset ? quota : cpuset;
}

}  // namespace LM_RUNTIME
}  // namespace lm
