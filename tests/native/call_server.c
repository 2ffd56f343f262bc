/* Calls the functions of a library, for a process of another architecture: tests/emulation.py runs this under an
 * emulator. argv[1]: the library. On standard input come requests, each answered on standard output:
 *
 *     request:  the length of a function's name and the name; the number of arguments and the arguments
 *     argument: a kind, a number, and what follows
 *                   0  an integer: the number itself
 *                   1  the address of the first of `number` bytes: a place within a page, an offset, then the bytes
 *                   2  the address of an array of `number` addresses, each followed by what it points to as under 1
 *     answer:   the integer that the function returns, then all bytes again, in the same order
 *
 * Every number has eight bytes. Bytes lie at their place within a page, between pages that may not be touched. */
#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_ARGUMENTS = 8, MAX_BLOCKS = 64, PAGE = 4096 };

typedef struct {
    uint8_t* mapping;
    size_t mapped;
    uint8_t* data;
    size_t bytes;
} Block;

static Block blocks[MAX_BLOCKS];
static int block_count;

static void give_up(const char* why) {
    fprintf(stderr, "call_server: %s\n", why);
    exit(1);
}

static void read_all(void* data, size_t bytes) {
    if (fread(data, 1, bytes, stdin) != bytes) give_up("the request ends too early");
}

static int64_t read_number(void) {
    int64_t number;
    read_all(&number, sizeof(number));
    return number;
}

/* The address of `bytes` bytes that are read from the request. */
static uint64_t read_block(size_t bytes) {
    const size_t place = (size_t)read_number(), offset = (size_t)read_number();
    const size_t inner = (place + bytes + PAGE - 1) / PAGE * PAGE;
    Block* block = &blocks[block_count];
    if (block_count++ == MAX_BLOCKS) give_up("too many blocks");
    block->mapped = inner + 2 * PAGE;
    block->mapping = mmap(NULL, block->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block->mapping == MAP_FAILED) give_up("no memory");
    if (inner > 0 && mprotect(block->mapping + PAGE, inner, PROT_READ | PROT_WRITE) != 0) give_up("no access");
    block->data = block->mapping + PAGE + place;
    block->bytes = bytes;
    read_all(block->data, bytes);
    return (uint64_t)(uintptr_t)(block->data + offset);
}

static uint64_t read_argument(uint64_t* addresses) {
    const int64_t kind = read_number(), number = read_number();
    int64_t k;
    if (kind == 0) return (uint64_t)number;
    if (kind == 1) return read_block((size_t)number);
    if (number > MAX_BLOCKS) give_up("too many addresses");
    for (k = 0; k < number; ++k) addresses[k] = read_block((size_t)read_number());
    return (uint64_t)(uintptr_t)addresses;
}

/* Integers and addresses all travel in registers of eight bytes; a function ignores those that it has no parameter for.
 */
typedef int32_t Function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

int main(int argc, char** argv) {
    void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int64_t length;
    if (library == NULL) give_up(argc == 2 ? dlerror() : "expected a library");
    while (fread(&length, sizeof(length), 1, stdin) == 1) {
        static uint64_t addresses[MAX_ARGUMENTS][MAX_BLOCKS];
        uint64_t a[MAX_ARGUMENTS] = {0};
        char name[256] = "";
        Function* function;
        int64_t k, count, result;
        if (length >= (int64_t)sizeof(name)) give_up("the name is too long");
        read_all(name, (size_t)length);
        count = read_number();
        if (count > MAX_ARGUMENTS) give_up("too many arguments");
        for (k = 0; k < count; ++k) a[k] = read_argument(addresses[k]);
        function = (Function*)(uintptr_t)dlsym(library, name);
        if (function == NULL) give_up(dlerror());
        result = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
        fwrite(&result, sizeof(result), 1, stdout);
        for (k = 0; k < block_count; ++k) {
            fwrite(blocks[k].data, 1, blocks[k].bytes, stdout);
            munmap(blocks[k].mapping, blocks[k].mapped);
        }
        block_count = 0;
        fflush(stdout);
    }
    return 0;
}
