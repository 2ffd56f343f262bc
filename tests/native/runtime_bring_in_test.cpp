// Weights that are brought in: copied into huge pages where that is allowed and there is memory, otherwise still the
// file: program FILE, which is written.
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "luminal/weights.hpp"

namespace {

constexpr size_t PAYLOAD = size_t{8} << 20;

unsigned char number(size_t place) { return static_cast<unsigned char>(place * 7 + place / 4096); }

bool write(const char* path) {
    unsigned char head[4096] = {};
    lm::WeightsHeader header{};
    memcpy(header.magic, "LUMINALW", sizeof(header.magic));
    header.version = 1;
    header.payload_offset = sizeof(head);
    header.payload_bytes = PAYLOAD;
    header.file_bytes = sizeof(head) + PAYLOAD;
    memcpy(head, &header, sizeof(header));
    FILE* const file = fopen(path, "wb");
    if (file == nullptr) return false;
    bool written = fwrite(head, sizeof(head), 1, file) == 1;
    for (size_t place = 0; place < PAYLOAD; ++place) written = written && fputc(number(place), file) != EOF;
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

/// Whether the weights are still the file after `bring_in`; 2 where they are not as they were written.
template <class BringIn>
int stays(const char* path, const BringIn& bring_in) {
    const lm::Model model = {"model", "", nullptr, {}, PAYLOAD, {}, {}, {}, {}};
    lm::Weights weights;
    lm::Message message;
    if (weights.map(path, model, message) != LM_OK) return 2;
    bring_in(weights);
    for (size_t place = 0; place < PAYLOAD; ++place) {
        if (weights.payload()[place] != number(place)) return 2;
    }
    return is_mapped(path) ? 1 : 0;
}

}  // namespace

int main(int, char** arguments) {
    const char* const path = arguments[1];
    if (!write(path)) return 1;
    const size_t huge = lm::huge_page();
    const bool copies = huge != 0 && huge <= PAYLOAD;
    const int allowed = stays(path, [](lm::Weights& weights) { weights.bring_in(true, 4 * PAYLOAD); });
    const int refused = stays(path, [](lm::Weights& weights) { weights.bring_in(false, 4 * PAYLOAD); });
    const int much = stays(path, [](lm::Weights& weights) { weights.bring_in(true, PAYLOAD); });
    const int none = stays(path, [](lm::Weights& weights) {
        rlimit before{};
        getrlimit(RLIMIT_AS, &before);
        const rlimit least{1, before.rlim_max};
        setrlimit(RLIMIT_AS, &least);
        weights.bring_in(true, 4 * PAYLOAD);
        setrlimit(RLIMIT_AS, &before);
    });
    printf("allowed %d, refused %d, much of the memory %d, no memory %d\n", allowed, refused, much, none);
    return !(allowed == (copies ? 0 : 1) && refused == 1 && much == 1 && none == 1);
}
