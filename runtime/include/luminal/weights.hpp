// The weights file: a header page, then the payload, in which every constant is aligned to 64 bytes.
// luminal.codegen.weights writes it.
//
//   offset  bytes
//        0      8  "LUMINALW"
//        8      4  format version, 1
//       12      4  where the payload begins, 4096
//       16     32  source hash of the library that it belongs to
//       48      8  payload bytes
//       56      8  file bytes
//       64         zero up to the payload
//
// Numbers are little-endian.
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "luminal/memory.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {

struct WeightsHeader {
    char magic[8];
    uint32_t version;
    uint32_t payload_offset;
    uint8_t source_hash[32];
    uint64_t payload_bytes;
    uint64_t file_bytes;
};
static_assert(sizeof(WeightsHeader) == 64, "the header has no padding");

/// The image of a weights file, mapped or copied by us or lent by the caller.
class Weights {
  public:
    Weights() = default;
    Weights(const Weights&) = delete;
    Weights& operator=(const Weights&) = delete;
    ~Weights() { release(); }

    /// Where the constants begin, or null: there are no weights yet.
    const unsigned char* payload() const { return payload_; }

    /// Maps a file. On failure what was there before stays.
    int32_t map(const char* path, const Model& model, Message& message) {
        const int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) {
            message.set("cannot open the weights file \"%s\": %s", path, SystemError().text());
            return LM_BAD_WEIGHTS;
        }
        struct stat info {};
        void* mapping = MAP_FAILED;
        size_t bytes = 0;
        if (fstat(file, &info) == 0) {
            bytes = static_cast<size_t>(info.st_size);
            if (bytes < sizeof(WeightsHeader)) {
                message.set("the weights file \"%s\" is truncated: it has %zu bytes", path, bytes);
                close(file);
                return LM_BAD_WEIGHTS;
            }
            mapping = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
        }
        if (mapping == MAP_FAILED) {
            message.set("cannot map the weights file \"%s\": %s", path, SystemError().text());
            close(file);
            return LM_BAD_WEIGHTS;
        }
        close(file);
        const int32_t status = check(mapping, bytes, path, model, message);
        if (status != LM_OK) {
            munmap(mapping, bytes);
            return status;
        }
        release();
        mapping_ = mapping;
        mapped_bytes_ = bytes;
        payload_ = static_cast<const unsigned char*>(mapping) + PAYLOAD_OFFSET;
        return LM_OK;
    }

    /// Uses an image that the caller keeps alive. On failure what was there before stays.
    int32_t borrow(const void* image, size_t bytes, const Model& model, Message& message) {
        if (image == nullptr || reinterpret_cast<uintptr_t>(image) % ALIGNMENT != 0) {
            message.set("the weights image at %p must be aligned to %zu bytes and not be NULL", image, ALIGNMENT);
            return LM_INVALID_ARGUMENT;
        }
        const int32_t status = check(image, bytes, "(in memory)", model, message);
        if (status != LM_OK) return status;
        release();
        payload_ = static_cast<const unsigned char*>(image) + PAYLOAD_OFFSET;
        return LM_OK;
    }

    /// Has what is mapped in memory now, so that the first run does not fault for each page; in huge pages where there are
    /// such, since looking up the addresses of small ones takes a part of the time that a run reads weights (TinyLlama,
    /// one token: 4 to 8 %). Few file systems keep files in huge pages: it takes a copy, which is no other process's, and
    /// which the caller `allows`. A file that would fill much of the memory that is `available` stays one, and comes in as
    /// it is read. All of it are wishes. (A device copies weights once, front to back, which the system reads ahead for.)
    void bring_in(bool allows, size_t available = available_memory()) {
        if (mapping_ == nullptr || mapped_bytes_ > available / 2) return;
        const size_t huge = huge_page();
        if (allows && huge != 0 && mapped_bytes_ >= huge && copy()) return;
#ifdef MADV_POPULATE_READ
        madvise(mapping_, mapped_bytes_, MADV_POPULATE_READ);
#endif
    }

    /// Lets go of the image, as a device does once it has a copy.
    void release() {
        if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
        mapping_ = nullptr;
        payload_ = nullptr;
    }

  private:
    /// Takes memory of our own in the place of the mapped file. False, and nothing changes, if there is none.
    bool copy() {
        void* const memory = Allocator::map(mapped_bytes_);
        if (memory == nullptr) return false;
        memcpy(memory, mapping_, mapped_bytes_);
        mprotect(memory, mapped_bytes_, PROT_READ);
        const size_t bytes = mapped_bytes_;
        release();
        mapping_ = memory;
        mapped_bytes_ = bytes;
        payload_ = static_cast<const unsigned char*>(memory) + PAYLOAD_OFFSET;
        return true;
    }

    static constexpr uint32_t VERSION = 1;
    static constexpr uint32_t PAYLOAD_OFFSET = 4096;

    static int32_t check(const void* image, size_t bytes, const char* path, const Model& model, Message& message) {
        const int32_t status = check_header(image, bytes, path, model, message);
        if (status != LM_OK) return status;
        const unsigned char* payload = static_cast<const unsigned char*>(image) + PAYLOAD_OFFSET;
        for (const Finite& constant : model.finite) {
            const int64_t element = first_not_finite(payload + constant.offset, constant);
            if (element == constant.count) continue;
            message.set("the weights file \"%s\" has an infinity or NaN in the constant \"%s\", element %lld, but the "
                        "library of \"%s\" was compiled for finite numbers there: compile the model with these weights",
                        path, constant.name, static_cast<long long>(element), model.name);
            return LM_BAD_WEIGHTS;
        }
        return LM_OK;
    }

    static int64_t first_not_finite(const void* data, const Finite& constant) {
        switch (constant.dtype) {
            case LM_FLOAT16: return first_not_finite<uint16_t>(data, constant.count, 0x7c00);
            case LM_BFLOAT16: return first_not_finite<uint16_t>(data, constant.count, 0x7f80);
            case LM_FLOAT32: return first_not_finite<uint32_t>(data, constant.count, 0x7f800000);
            case LM_FLOAT64: return first_not_finite<uint64_t>(data, constant.count, 0x7ff0000000000000);
            default: return constant.count;
        }
    }

    /// The place of the first number whose bits of the exponent are all set, or `count`.
    template <class Bits>
    static int64_t first_not_finite(const void* data, int64_t count, Bits exponent) {
        const Bits* bits = static_cast<const Bits*>(data);
        int64_t element = 0;
        while (element < count && (bits[element] & exponent) != exponent) ++element;
        return element;
    }

    static int32_t check_header(const void* image, size_t bytes, const char* path, const Model& model,
                                Message& message) {
        WeightsHeader header{};
        if (bytes >= sizeof(header)) memcpy(&header, image, sizeof(header));
        if (memcmp(header.magic, "LUMINALW", sizeof(header.magic)) != 0) {
            message.set("the weights file \"%s\" is not a weights file of luminal", path);
        } else if (header.version != VERSION || header.payload_offset != PAYLOAD_OFFSET) {
            message.set("the weights file \"%s\" has format version %u, this library reads %u", path, header.version,
                        VERSION);
        } else if (memcmp(header.source_hash, model.source_hash, sizeof(header.source_hash)) != 0 ||
                   header.payload_bytes != static_cast<uint64_t>(model.weights_bytes) ||
                   header.file_bytes != PAYLOAD_OFFSET + header.payload_bytes) {
            message.set("the weights file \"%s\" belongs to another build than this library of \"%s\"", path,
                        model.name);
        } else if (bytes != header.file_bytes) {
            message.set("the weights file \"%s\" is truncated: it has %zu of %llu bytes", path, bytes,
                        static_cast<unsigned long long>(header.file_bytes));
        } else {
            return LM_OK;
        }
        return LM_BAD_WEIGHTS;
    }

    void* mapping_ = nullptr;
    size_t mapped_bytes_ = 0;
    const unsigned char* payload_ = nullptr;
};

}  // namespace LM_RUNTIME
}  // namespace lm
