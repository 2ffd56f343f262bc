// Prints the CPUs and the bytes of memory that a tree of control groups grants: program MEMBERSHIP ROOT.
#include <stdio.h>

#include "luminal/cpus.hpp"
#include "luminal/memory.hpp"

int main(int, char** arguments) {
    const lm::ControlGroups groups{arguments[1], arguments[2]};
    const lm::ControlGroups none{"/nowhere", "/nowhere"};
    const int quota = lm::quota_cpus(groups);
    const size_t memory = lm::available_memory(groups);
    printf("%d %zu\n", quota == INT_MAX ? 0 : quota, memory == lm::available_memory(none) ? 0 : memory);
    return lm::available_cpus() < 1 || lm::available_cpus() > lm::cpuset_cpus();
}
