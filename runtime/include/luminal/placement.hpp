// The CPUs of a machine, divided among the ranks that run there.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Where a rank runs: the boot of a machine, which containers there have in common, and the CPUs that it may use.
struct Place {
    char boot[40];
    cpu_set_t cpus;

    /// Of the calling thread. Without CPUs where the system does not say, or has more than a cpu_set_t can.
    static Place own() {
        Place place;
        memset(static_cast<void*>(&place), 0, sizeof(place));
        FILE* const file = fopen("/proc/sys/kernel/random/boot_id", "r");
        const bool known = file != nullptr && fgets(place.boot, sizeof(place.boot), file) != nullptr;
        if (file != nullptr) fclose(file);
        if (!known || sched_getaffinity(0, sizeof(place.cpus), &place.cpus) != 0) CPU_ZERO(&place.cpus);
        return place;
    }

    bool operator==(const Place& other) const {
        return memcmp(boot, other.boot, sizeof(boot)) == 0 && CPU_EQUAL(&cpus, &other.cpus);
    }
};

/// A thread that keeps to some of the CPUs that it may use, as long as this lives.
class KeptThread {
  public:
    KeptThread() = default;
    KeptThread(const KeptThread&) = delete;
    KeptThread& operator=(const KeptThread&) = delete;

    /// It may use all of them again, if it is the calling thread and nobody has moved it elsewhere meanwhile.
    ~KeptThread() {
        cpu_set_t now;
        if (!is_kept_ || pthread_equal(thread_, pthread_self()) == 0) return;
        if (sched_getaffinity(0, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &part_)) {
            sched_setaffinity(0, sizeof(all_), &all_);
        }
    }

    /// The calling thread, which may use the CPUs `all`, keeps to `part`.
    void enter(const cpu_set_t& all, const cpu_set_t& part) {
        if (sched_setaffinity(0, sizeof(part), &part) != 0) return;
        thread_ = pthread_self();
        all_ = all;
        part_ = part;
        is_kept_ = true;
    }

  private:
    pthread_t thread_{};
    cpu_set_t all_{};
    cpu_set_t part_{};
    bool is_kept_ = false;
};

/// CPUs in an order in which those of one NUMA node stand together, and in it those of one core.
class NearCpus {
  public:
    explicit NearCpus(const cpu_set_t& cpus, const char* root = "/sys/devices/system") {
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (!CPU_ISSET(cpu, &cpus)) continue;
            all_[count_++] = Cpu{node_of(root, cpu), number(root, cpu, "physical_package_id"),
                                 number(root, cpu, "core_id"), cpu};
        }
        qsort(all_, static_cast<size_t>(count_), sizeof(Cpu), &compare);
    }

    int count() const { return count_; }

    /// Part `number` of `parts` of them.
    cpu_set_t part(int64_t number, int64_t parts) const {
        cpu_set_t result;
        CPU_ZERO(&result);
        for (int64_t i = count_ * number / parts; i < count_ * (number + 1) / parts; ++i) CPU_SET(all_[i].cpu, &result);
        return result;
    }

  private:
    struct Cpu {
        int node;
        int package;
        int core;
        int cpu;
    };

    static constexpr int NODES = 1024;  // Linux has no more

    static int compare(const void* a, const void* b) {
        const Cpu& left = *static_cast<const Cpu*>(a);
        const Cpu& right = *static_cast<const Cpu*>(b);
        if (left.node != right.node) return left.node - right.node;
        if (left.package != right.package) return left.package - right.package;
        if (left.core != right.core) return left.core - right.core;
        return left.cpu - right.cpu;
    }

    static int node_of(const char* root, int cpu) {
        char path[512];
        for (int node = 0; node < NODES; ++node) {
            snprintf(path, sizeof(path), "%s/node/node%d", root, node);
            if (access(path, F_OK) != 0) {
                if (node == 0) break;  // the kernel knows of none
                continue;
            }
            snprintf(path, sizeof(path), "%s/node/node%d/cpu%d", root, node, cpu);
            if (access(path, F_OK) == 0) return node;
        }
        return 0;
    }

    static int number(const char* root, int cpu, const char* name) {
        char path[512];
        snprintf(path, sizeof(path), "%s/cpu/cpu%d/topology/%s", root, cpu, name);
        int found = 0;
        FILE* const file = fopen(path, "r");
        if (file == nullptr) return 0;
        if (fscanf(file, "%d", &found) != 1) found = 0;
        fclose(file);
        return found;
    }

    Cpu all_[CPU_SETSIZE];
    int count_ = 0;
};

}  // namespace LM_RUNTIME
}  // namespace lm
