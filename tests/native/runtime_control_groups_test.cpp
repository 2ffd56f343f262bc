// Prints the CPUs and the bytes of memory that a tree of control groups leaves of a machine: program MEMBERSHIP ROOT MEMINFO.
#include <stdio.h>

#include "luminal/cpus.hpp"
#include "luminal/memory.hpp"

int main(int, char** arguments) {
    const lm::ControlGroups groups{arguments[1], arguments[2]};
    const int quota = lm::quota_cpus(groups);
    printf("%d %zu\n", quota == INT_MAX ? 0 : quota, lm::available_memory(groups, arguments[3]));
    return lm::available_cpus() < 1 || lm::available_cpus() > lm::cpuset_cpus();
}
