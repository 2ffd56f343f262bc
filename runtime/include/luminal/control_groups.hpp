// What control groups grant this process: the limits of its group, and of each around it. Both versions are read; where
// both are mounted, a controller belongs to one of them.
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

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

/// The folder of a group.
class ControlGroup {
  public:
    ControlGroup(const char* root, const char* controller, const char* path) {
        snprintf(folder_, sizeof(folder_), "%s/%s%s", root, controller, path);
    }

    /// Whether `file` begins with a number, which is then `value`.
    bool read(const char* file, long long& value) const { return scan(file, "%lld", &value) == 1; }

    /// Whether `file` begins with two.
    bool read(const char* file, long long& first, long long& second) const {
        return scan(file, "%lld %lld", &first, &second) == 2;
    }

  private:
    template <class... Values>
    int scan(const char* file, const char* format, Values... values) const {
        char path[PATH_MAX + 64];
        char text[64];
        snprintf(path, sizeof(path), "%s/%s", folder_, file);
        read_text(path, text);
        return sscanf(text, format, values...);
    }

    char folder_[PATH_MAX];
};

/// Where the system says which groups this process is in, and the folder of all groups, those of a controller of version
/// 1 in one of its name.
struct ControlGroups {
    const char* membership = "/proc/self/cgroup";
    const char* root = "/sys/fs/cgroup";

    /// Calls `visit(group)` for the groups of `controller` that this process is in, and those around them.
    template <class Visit>
    void each(const char* controller, const Visit& visit) const {
        char lines[4096];
        read_text(membership, lines);
        for (char* line = lines; *line != '\0';) {  // number:controllers:path, without controllers in version 2
            char* const end = line + strcspn(line, "\n");
            char* const next = *end == '\0' ? end : end + 1;
            *end = '\0';
            char* const names = strchr(line, ':');
            char* const path = names == nullptr ? nullptr : strchr(names + 1, ':');
            line = next;
            if (path == nullptr) continue;
            *path = '\0';
            if (names + 1 == path) each_around(path + 1, "", visit);
            else if (is_among(controller, names + 1)) each_around(path + 1, controller, visit);
        }
    }

  private:
    /// Whether a name is one of those with commas between them.
    static bool is_among(const char* name, const char* names) {
        const size_t length = strlen(name);
        for (const char* found = names;; found += strcspn(found, ",") + 1) {
            if (strncmp(found, name, length) == 0 && (found[length] == ',' || found[length] == '\0')) return true;
            if (strchr(found, ',') == nullptr) return false;
        }
    }

    template <class Visit>
    void each_around(char* path, const char* controller, const Visit& visit) const {
        while (char* const last = strrchr(path, '/')) {
            if (last[1] != '\0') visit(ControlGroup(root, controller, path));
            *last = '\0';
        }
        visit(ControlGroup(root, controller, ""));
    }
};

}  // namespace LM_RUNTIME
}  // namespace lm
