// Prints the CPUs that a tree of control groups grants: program MEMBERSHIP ROOT.
#include <stdio.h>

#include "luminal/cpus.hpp"

int main(int, char** arguments) {
    const int quota = lm::quota_cpus(arguments[1], arguments[2]);
    printf("%d\n", quota == INT_MAX ? 0 : quota);
    return lm::available_cpus() < 1 || lm::available_cpus() > lm::cpuset_cpus();
}
