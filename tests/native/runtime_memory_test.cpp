// Where arenas come from: small blocks, mapped blocks, blocks aligned for huge pages. Run with little address space, so
// that what is not given back is missed.
#include <stdio.h>

#include "luminal/memory.hpp"

int main() {
    const lm::Allocator allocator;
    const size_t sizes[] = {1,       64,          65535,       65536,       65537,      1 << 20,
                            2 << 20, (2 << 20) + 1, (3 << 20) - 1, 64 << 20, (64 << 20) + 4097};
    for (int round = 0; round < 100; ++round) {
        for (const size_t bytes : sizes) {
            char* memory = static_cast<char*>(allocator.allocate(bytes));
            if (memory == nullptr || reinterpret_cast<uintptr_t>(memory) % lm::ALIGNMENT != 0) {
                printf("round %d: no aligned block of %zu bytes\n", round, bytes);
                return 1;
            }
            if (round == 0) allocator.touch(memory, bytes);
            memory[0] = 1;
            memory[bytes - 1] = 2;
            allocator.deallocate(memory, bytes);
        }
    }
    allocator.deallocate(nullptr, 5);
    if (allocator.allocate(size_t{1} << 46) != nullptr || allocator.allocate(SIZE_MAX) != nullptr) {
        printf("memory that nobody has was handed out\n");
        return 1;
    }
    return 0;
}
