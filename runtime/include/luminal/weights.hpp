// The weights file: a header page, then the payload, in which every constant is aligned to 64 bytes.
// luminal.codegen.weights writes it.
//
//   offset  bytes
//        0      8  "LUMINALW"
//        8      4  format version, 2
//       12      4  where the payload begins, 4096
//       16     32  source hash of the library that it belongs to
//       48      8  payload bytes
//       56      8  file bytes
//       64      8  checksum of the payload (checksum.hpp)
//       72     16  content id: which weights these are, the same in the library that was compiled with them
//       88         zero up to the payload
//
// Numbers are little-endian.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/atomic.hpp"
#include "luminal/checksum.hpp"
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
    uint64_t checksum;
    uint8_t content_id[16];
};
static_assert(sizeof(WeightsHeader) == 88, "the header has no padding");

/// What is asked of weights that are opened.
struct WeightsRequest {
    bool reads = false;   // files of any size become memory of our own, where there is room; else small ones alone
    bool verifies = false;  // all bytes of large ones too
    bool others = false;  // weights with another content id than the library's are taken
    int32_t rank = 0;     // in a mesh, whose ranks have weights of their own
};

/// Does work on the calling thread; as Pool::parallel does it on many.
struct OneThread {
    void operator()(int64_t tasks, lm_task_range body, void* argument) const { body(argument, 0, tasks); }
};

/// The image of a weights file: read or mapped by us, or lent by the caller.
class Weights {
  public:
    Weights() = default;
    Weights(const Weights&) = delete;
    Weights& operator=(const Weights&) = delete;
    ~Weights() { release(); }

    /// Where the constants begin, or null: there are no weights yet.
    const unsigned char* payload() const { return payload_; }

    /// Opens a file. It is read, by `parallel(tasks, body, argument)`, into memory that is no other process's and in huge
    /// pages where there are such, since looking up the addresses of small ones takes a part of the time that a run reads
    /// weights (TinyLlama, one token: 4 to 8 %); whoever writes to the file then changes nothing here. It is mapped where
    /// it would fill much of the memory that is `available`, is large while no memory of ours is wanted, or has for the
    /// most part first values of states, which no kernel reads. (A device copies weights once, front to back.) On failure
    /// what was there before stays.
    template <class Parallel = OneThread>
    int32_t open(const char* path, const Model& model, const WeightsRequest& request, Message& message,
                 const Parallel& parallel = {}, size_t available = available_memory()) {
        const File file(path);
        if (!file.is_open()) {
            message.set("cannot open the weights file \"%s\": %s", path, SystemError().text());
            return LM_BAD_WEIGHTS;
        }
        Weights opened;
        int32_t status = opened.bring_in(file, path, model, request, message, parallel, available);
        if (status == LM_OK) status = check_finite(opened.payload_, path, model, request, message);
        if (status == LM_OK) take(opened);
        return status;
    }

    /// Uses an image that the caller keeps alive. On failure what was there before stays.
    int32_t borrow(const void* image, size_t bytes, const Model& model, const WeightsRequest& request,
                   Message& message) {
        static const char* const path = "(in memory)";
        if (image == nullptr || reinterpret_cast<uintptr_t>(image) % ALIGNMENT != 0) {
            message.set("the weights image at %p must be aligned to %zu bytes and not be NULL", image, ALIGNMENT);
            return LM_INVALID_ARGUMENT;
        }
        unsigned char page[PAYLOAD_OFFSET] = {};
        memcpy(page, image, bytes < sizeof(page) ? bytes : sizeof(page));
        int32_t status = check_header(page, bytes, path, model, request, message);
        if (status != LM_OK) return status;
        Weights lent;
        lent.payload_ = static_cast<const unsigned char*>(image) + PAYLOAD_OFFSET;
        Job job{nullptr, lent.payload_, nullptr, payload_of(bytes)};
        status = job.run(verifies(request, bytes), header_of(page).checksum, path, message, OneThread());
        if (status == LM_OK) status = check_finite(lent.payload_, path, model, request, message);
        if (status == LM_OK) take(lent);
        return status;
    }

    /// Contexts have copied the first values of their states: what is mapped for these alone stays in the file until a
    /// context is reset, or another begins.
    void forget_first_values() const {
        if (begins_states_) File::forget(mapping_, mapped_bytes_);
    }

    /// Lets go of the image, as a device does once it has a copy.
    void release() {
        if (mapping_ != nullptr && from_file_) File::unmap(mapping_, mapped_bytes_);
        if (mapping_ != nullptr && !from_file_) Allocator::unmap(mapping_, mapped_bytes_);
        mapping_ = nullptr;
        payload_ = nullptr;
        begins_states_ = false;
    }

  private:
    static constexpr uint32_t VERSION = 2;
    static constexpr uint32_t PAYLOAD_OFFSET = 4096;
    static constexpr size_t SMALL = size_t{4} << 20;    // files up to this are read, whoever gives memory
    static constexpr size_t LARGE = size_t{1} << 30;    // those above are verified when that is asked for

    /// A block of the payload after the other is read into memory of ours, or is there already, and summed up.
    struct Job {
        const File* file;               // null: nothing is read
        const unsigned char* payload;
        unsigned char* memory;          // the payload, where it is read
        size_t bytes;
        uint64_t* sums = nullptr;       // of each block; null: none are asked for
        Atomic<uint32_t> failed{};

        template <class Parallel>
        int32_t run(bool verifies, uint64_t expected, const char* path, Message& message, const Parallel& parallel) {
            const size_t blocks = Checksum::blocks(bytes);
            if (verifies && blocks > 0) {
                sums = static_cast<uint64_t*>(calloc(blocks, sizeof(uint64_t)));
                if (sums == nullptr) {
                    message.set("no memory to verify the weights file \"%s\"", path);
                    return LM_OUT_OF_MEMORY;
                }
            }
            if (verifies || file != nullptr) parallel(static_cast<int64_t>(blocks), &Job::range, this);
            Checksum found(bytes);
            for (size_t i = 0; sums != nullptr && i < blocks; ++i) found.add(sums[i]);
            free(sums);
            if (failed.load() != 0) {
                message.set("cannot read the weights file \"%s\": it became shorter, or its disk fails", path);
                return LM_BAD_WEIGHTS;
            }
            if (verifies && found.value() != expected) {
                message.set("the weights file \"%s\" is damaged: its bytes are not those that were written; export the "
                            "model again, or copy the file anew", path);
                return LM_BAD_WEIGHTS;
            }
            return LM_OK;
        }

        static void range(void* argument, int64_t begin, int64_t end) {
            Job& job = *static_cast<Job*>(argument);
            for (int64_t i = begin; i < end; ++i) job.block(static_cast<size_t>(i));
        }

        void block(size_t i) {
            const size_t first = i * Checksum::BLOCK_BYTES;
            const size_t count = bytes - first < Checksum::BLOCK_BYTES ? bytes - first : Checksum::BLOCK_BYTES;
            if (file != nullptr && !read_all(*file, memory + first, count, PAYLOAD_OFFSET + first)) {
                failed.store(1);
                return;
            }
            if (sums != nullptr) sums[i] = Checksum::of_block(payload + first, count);
        }
    };

    static size_t payload_of(size_t bytes) { return bytes - PAYLOAD_OFFSET; }
    static bool verifies(const WeightsRequest& request, size_t bytes) { return request.verifies || bytes <= LARGE; }

    static WeightsHeader header_of(const unsigned char* page) {
        WeightsHeader header{};
        memcpy(&header, page, sizeof(header));
        return header;
    }

    static bool read_all(const File& file, unsigned char* memory, size_t bytes, size_t offset) {
        while (bytes > 0) {
            const int64_t got = file.read(memory, bytes, offset);
            if (got <= 0) return false;
            memory += got;
            bytes -= static_cast<size_t>(got);
            offset += static_cast<size_t>(got);
        }
        return true;
    }

    template <class Parallel>
    int32_t bring_in(const File& file, const char* path, const Model& model, const WeightsRequest& request, Message& message,
                     const Parallel& parallel, size_t available) {
        size_t bytes = 0;
        unsigned char page[PAYLOAD_OFFSET] = {};
        if (!file.size(bytes) || file.read(page, sizeof(page), 0) < 0) {
            message.set("cannot read the weights file \"%s\": %s", path, SystemError().text());
            return LM_BAD_WEIGHTS;
        }
        const int32_t status = check_header(page, bytes, path, model, request, message);
        if (status != LM_OK) return status;
        const bool begins = begins_states(model, request.rank, payload_of(bytes));
        const bool wanted = !File::MAPS || bytes <= SMALL || (request.reads && !begins && bytes <= available / 2);
        void* const memory = wanted ? Allocator::map(bytes) : nullptr;
        void* const mapping = memory != nullptr ? memory : file.map(bytes);
        if (mapping == nullptr) {
            message.set("cannot map the weights file \"%s\": %s", path, SystemError().text());
            return LM_BAD_WEIGHTS;
        }
        mapping_ = mapping;
        mapped_bytes_ = bytes;
        from_file_ = memory == nullptr;
        unsigned char* const payload = static_cast<unsigned char*>(mapping) + PAYLOAD_OFFSET;
        payload_ = payload;
        Job job{memory != nullptr ? &file : nullptr, payload, payload, payload_of(bytes)};
        const uint64_t expected = header_of(page).checksum;
        const int32_t found = job.run(verifies(request, bytes), expected, path, message, parallel);
        if (memory != nullptr) protect_pages(memory, bytes);
        begins_states_ = begins && from_file_;
        forget_first_values();
        return found;
    }

    /// Whether most of a payload are first values of states.
    static bool begins_states(const Model& model, int32_t rank, size_t bytes) {
        size_t found = 0;
        for (const State& state : model.states) {
            if (state.initial >= 0 && model.has(state, rank)) found += static_cast<size_t>(state.bytes);
        }
        return found > bytes / 2;
    }

    /// Becomes what `other` is, which becomes empty.
    void take(Weights& other) {
        release();
        mapping_ = other.mapping_;
        mapped_bytes_ = other.mapped_bytes_;
        from_file_ = other.from_file_;
        payload_ = other.payload_;
        begins_states_ = other.begins_states_;
        other.mapping_ = nullptr;
        other.payload_ = nullptr;
    }

    static int32_t check_finite(const unsigned char* payload, const char* path, const Model& model,
                                const WeightsRequest& request, Message& message) {
        for (const Finite& constant : model.finite) {
            if (model.stages > 1 && constant.stage != model.stage_of(request.rank)) continue;
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

    /// `page` is what the file begins with, zero behind its end.
    static int32_t check_header(const unsigned char* page, size_t bytes, const char* path, const Model& model,
                                const WeightsRequest& request, Message& message) {
        const WeightsHeader header = header_of(page);
        const int32_t whose = rank_of(header, model);
        const int32_t rank = whose < model.ranks ? whose : request.rank;
        size_t zeros = sizeof(header);
        while (zeros < PAYLOAD_OFFSET && page[zeros] == 0) ++zeros;
        if (bytes < sizeof(header)) {
            message.set("the weights file \"%s\" is truncated: it has %zu bytes", path, bytes);
        } else if (memcmp(header.magic, "LUMINALW", sizeof(header.magic)) != 0) {
            message.set("the weights file \"%s\" is not a weights file of luminal", path);
        } else if (header.version != VERSION || header.payload_offset != PAYLOAD_OFFSET) {
            message.set("the weights file \"%s\" has format version %u, this library reads %u", path, header.version,
                        VERSION);
        } else if (memcmp(header.source_hash, model.source_hash, sizeof(header.source_hash)) != 0 ||
                   header.payload_bytes != static_cast<uint64_t>(model.weights_of(rank)) ||
                   header.file_bytes != PAYLOAD_OFFSET + header.payload_bytes) {
            message.set("the weights file \"%s\" belongs to another build than this library of \"%s\"", path,
                        model.name);
        } else if (bytes != header.file_bytes) {
            message.set("the weights file \"%s\" is truncated: it has %zu of %llu bytes", path, bytes,
                        static_cast<unsigned long long>(header.file_bytes));
        } else if (zeros != PAYLOAD_OFFSET) {
            message.set("the weights file \"%s\" is damaged: byte %zu of its header is not zero", path, zeros);
        } else if (whose != request.rank && whose < model.ranks) {
            message.set("the weights file \"%s\" is that of rank %d, expected that of rank %d", path,
                        whose, request.rank);
        } else if (!request.others && whose != request.rank) {
            message.set("the weights file \"%s\" holds other weights than this library of \"%s\" was compiled with; "
                        "lm_options.other_weights allows them", path, model.name);
        } else {
            return LM_OK;
        }
        return LM_BAD_WEIGHTS;
    }

    /// The rank whose weights these are: the last four bytes of the content id are those of the library's, with the bits
    /// of the rank turned around. MAX where they are of no rank.
    static int32_t rank_of(const WeightsHeader& header, const Model& model) {
        constexpr size_t common = sizeof(header.content_id) - sizeof(uint32_t);
        if (memcmp(header.content_id, model.content_id, common) != 0) return INT32_MAX;
        uint32_t here = 0;
        uint32_t there = 0;
        memcpy(&here, header.content_id + common, sizeof(here));
        memcpy(&there, model.content_id + common, sizeof(there));
        const uint32_t rank = here ^ there;
        return rank < static_cast<uint32_t>(model.ranks) ? static_cast<int32_t>(rank) : INT32_MAX;
    }

    void* mapping_ = nullptr;
    size_t mapped_bytes_ = 0;
    bool from_file_ = false;  // the file's own pages, which nobody copied
    bool begins_states_ = false;  // and most of them are first values of states
    const unsigned char* payload_ = nullptr;
};

}  // namespace LM_RUNTIME
}  // namespace lm
