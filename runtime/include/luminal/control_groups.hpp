// What control groups (version 2) grant this process: a limit of its group, and of each around it.
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

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

/// Where the system says which group this process is in, and the tree of files that has the limits of all.
struct ControlGroups {
    const char* membership = "/proc/self/cgroup";
    const char* root = "/sys/fs/cgroup";

    /// The least that `limit(text)` makes of the files `name` of the group and those around it; `most` where none says
    /// less.
    template <class Limit>
    long long least(const char* name, long long most, const Limit& limit) const {
        char lines[4096];
        read_text(membership, lines);
        char* group = strncmp(lines, "0::", 3) == 0 ? lines : strstr(lines, "\n0::");
        if (group != nullptr) group = strchr(group, '/');
        if (group == nullptr) return most;
        group[strcspn(group, "\n")] = '\0';
        while (true) {
            char path[PATH_MAX];
            char text[64];
            snprintf(path, sizeof(path), "%s%s/%s", root, group, name);
            read_text(path, text);
            const long long found = limit(text);
            if (found < most) most = found;
            char* const parent = strrchr(group, '/');
            if (parent == nullptr) return most;
            *parent = '\0';
        }
    }
};

}  // namespace LM_NAMESPACE
}  // namespace lm
