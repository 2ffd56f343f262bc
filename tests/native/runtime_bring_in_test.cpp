// Weights that are opened: read into memory of our own where that is wanted and there is room, otherwise still the file;
// small ones are read always, and first values of states are forgotten once they are copied: program FILE, which is
// written.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "luminal/weights.hpp"

namespace {

constexpr size_t PAYLOAD = size_t{8} << 20;
constexpr size_t SMALL = 4032;

unsigned char number(size_t place) { return static_cast<unsigned char>(place * 7 + place / 4096); }

bool write(const char* path, size_t bytes) {
    unsigned char head[4096] = {};
    lm::WeightsHeader header{};
    memcpy(header.magic, "LUMINALW", sizeof(header.magic));
    header.version = 2;
    header.payload_offset = sizeof(head);
    header.payload_bytes = bytes;
    header.file_bytes = sizeof(head) + bytes;
    auto* const payload = static_cast<unsigned char*>(malloc(bytes));
    for (size_t place = 0; place < bytes; ++place) payload[place] = number(place);
    lm::Checksum checksum(bytes);
    for (size_t first = 0; first < bytes; first += lm::Checksum::BLOCK_BYTES) {
        const size_t left = bytes - first;
        checksum.add(lm::Checksum::of_block(payload + first,
                                            left < lm::Checksum::BLOCK_BYTES ? left : lm::Checksum::BLOCK_BYTES));
    }
    header.checksum = checksum.value();
    memcpy(head, &header, sizeof(header));
    FILE* const file = fopen(path, "wb");
    if (file == nullptr) return false;
    bool written = fwrite(head, sizeof(head), 1, file) == 1;
    written = written && fwrite(payload, bytes, 1, file) == 1;
    free(payload);
    return fclose(file) == 0 && written;
}

bool is_mapped(const char* path) {
    FILE* const maps = fopen("/proc/self/maps", "r");
    char line[8192];
    bool found = false;
    while (maps != nullptr && fgets(line, sizeof(line), maps) != nullptr) found = found || strstr(line, path) != nullptr;
    if (maps != nullptr) fclose(maps);
    return found;
}

/// Whether the weights are still the file once they are open; 2 where they are not as they were written.
int stays(const char* path, size_t bytes, bool reads, size_t available) {
    const lm::Model model = {"model", "", nullptr, {}, {}, static_cast<int64_t>(bytes), {}, {}, {}, {}};
    lm::Weights weights;
    lm::Message message;
    lm::WeightsRequest request;
    request.reads = reads;
    if (weights.open(path, model, request, message, lm::OneThread(), available) != LM_OK) return 2;
    for (size_t place = 0; place < bytes; ++place) {
        if (weights.payload()[place] != number(place)) return 2;
    }
    return is_mapped(path) ? 1 : 0;
}

/// Bytes of the file at `path` that are mapped and in memory, as `/proc/self/smaps` has them.
size_t resident(const char* path) {
    FILE* const maps = fopen("/proc/self/smaps", "r");
    char line[8192];
    bool ours = false;
    size_t found = 0;
    while (maps != nullptr && fgets(line, sizeof(line), maps) != nullptr) {
        unsigned long kilobytes = 0;
        if (strchr(line, '-') != nullptr && strchr(line, '/') != nullptr) ours = strstr(line, path) != nullptr;
        else if (strchr(line, '-') != nullptr && strchr(line, ':') != nullptr) ours = false;
        if (ours && sscanf(line, "Rss: %lu kB", &kilobytes) == 1) found += kilobytes << 10;
    }
    if (maps != nullptr) fclose(maps);
    return found;
}

/// Whether weights that are for the most part the first value of a state stay in the file, before they are read and once
/// they are forgotten, and are what was written each time that they are read.
bool forgets(const char* path, size_t bytes) {
    static const lm::State states[] = {{{}, 0, static_cast<int64_t>(PAYLOAD), 0}};
    lm::Model model = {"model", "", nullptr, {}, {}, static_cast<int64_t>(bytes), {}, {}, {}, {}};
    model.states = states;
    lm::Weights weights;
    lm::Message message;
    lm::WeightsRequest request;
    request.reads = true;
    if (weights.open(path, model, request, message, lm::OneThread(), 4 * bytes) != LM_OK) return false;
    if (!is_mapped(path) || resident(path) > bytes / 8) return false;
    for (int round = 0; round < 2; ++round) {
        for (size_t place = 0; place < bytes; ++place) {
            if (weights.payload()[place] != number(place)) return false;
        }
        if (resident(path) < bytes / 2) return false;
        weights.forget_first_values();
        if (resident(path) > bytes / 8) return false;
    }
    return true;
}

/// The bytes of addresses that this process has.
size_t addresses() {
    unsigned long pages = 0;
    FILE* const file = fopen("/proc/self/statm", "r");
    if (file == nullptr || fscanf(file, "%lu", &pages) != 1) return 0;
    fclose(file);
    return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

int main(int, char** arguments) {
    const char* const path = arguments[1];
    if (!write(path, PAYLOAD)) return 1;
    const int wanted = stays(path, PAYLOAD, true, 4 * PAYLOAD);
    const int refused = stays(path, PAYLOAD, false, 4 * PAYLOAD);
    const int much = stays(path, PAYLOAD, true, PAYLOAD);
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    // Room for the mapped file, but not for memory that begins at a huge page.
    const rlimit least{addresses() + PAYLOAD + (size_t{1} << 20), before.rlim_max};
    setrlimit(RLIMIT_AS, &least);
    const int none = stays(path, PAYLOAD, true, 4 * PAYLOAD);
    setrlimit(RLIMIT_AS, &before);
    const bool forgotten = forgets(path, PAYLOAD);
    if (!write(path, SMALL)) return 1;
    const int small = stays(path, SMALL, false, 0);
    printf("wanted %d, refused %d, much of the memory %d, no memory %d, small %d, forgotten %d\n", wanted, refused, much,
           none, small, forgotten);
    const bool huge = lm::huge_page() != 0;
    return !(wanted == 0 && refused == 1 && much == 1 && none == (huge ? 1 : 0) && small == 0 && forgotten);
}
