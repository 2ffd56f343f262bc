// Ranks of a mesh of GPUs: exchanges of data by NCCL that begin and are waited for apart, with a limit to each wait.
//
// Bytes are moved and nothing is computed, as among CPUs (luminal/collectives.hpp). Ranks find each other by MPI, or by
// what the caller gives: an id of NCCL with a number for each, or a communicator.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/collectives.hpp"
#include "luminal/cuda/device.hpp"
#include "luminal/cuda/nccl.hpp"
#include "luminal/deadline.hpp"
#include "luminal/exchange.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace cuda {

/// This process among the ranks of a mesh, with a GPU of its own. Runs take turns (`begin`, `end`): all ranks have to
/// make the same ones in the same order. Once an exchange has failed, all later ones do.
///
/// Exchanges have a stream of their own, beside that of the kernels.
class Ranks {
  public:
    Ranks() = default;
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;
    ~Ranks() { free(numbers_); }

    int32_t rank() const { return rank_; }

    /// Opens NCCL and, where the caller has said neither an id nor a communicator, MPI; says which rank this is.
    int32_t open(const Model& model, const lm_options& options, Message& message) {
        name_ = model.name;
        size_ = model.ranks;
        ticket_ = model.tickets;
        limit_ = limit_of_waits(options.limit_seconds);
        overlaps_ = exchanges_overlap();
        by_mpi_ = options.nccl_communicator == nullptr && options.nccl_id == nullptr;
        if (by_mpi_) {
            const int32_t status = mpi_.open(model, options, message);
            rank_ = mpi_.rank();
            if (status != LM_OK) return status;
        }
        numbers_ = static_cast<int64_t*>(calloc(static_cast<size_t>(ticket_) + 1, sizeof(int64_t)));
        if (numbers_ == nullptr) {
            message.set("no memory for the exchanges of ranks");
            return LM_OUT_OF_MEMORY;
        }
        if (!nccl_.open(options.nccl_library, message)) return LM_SYSTEM_ERROR;
        if (by_mpi_) return LM_OK;
        if (options.nccl_communicator != nullptr) return enter(options.nccl_communicator, message);
        memcpy(&id_, options.nccl_id, sizeof(id_));
        rank_ = options.rank;
        if (rank_ >= 0 && rank_ < size_) return LM_OK;
        message.set("lm_options.rank is %d, but the library of \"%s\" is for ranks 0 .. %d", rank_, name_, size_ - 1);
        return LM_INVALID_ARGUMENT;
    }

    /// Under MPI, the ranks that see the same GPUs of one machine take one each, from GPU `number` on: it becomes that of
    /// this one. `status` is what this rank has met so far; all have to come.
    int32_t choose(const Device& device, int32_t status, int32_t& number, Message& message) {
        if (!by_mpi_ || numbers_ == nullptr) return status;
        Seen own{};
        if (status == LM_OK) status = look(device, own, message);
        own.known = status == LM_OK;
        Seen* const all = static_cast<Seen*>(calloc(static_cast<size_t>(size_), sizeof(Seen)));
        if (all == nullptr) return LM_OUT_OF_MEMORY;
        const bool fine = told(own, all, message);
        int32_t here = 0;
        int32_t before = 0;
        for (int32_t k = 0; fine && k < size_; ++k) {
            const bool same = all[k].known != 0 && memcmp(all[k].boot, own.boot, sizeof(own.boot)) == 0 &&
                              memcmp(all[k].first, own.first, sizeof(own.first)) == 0;
            here += same;
            before += same && k < rank_;
        }
        free(all);
        if (!fine) return LM_RANK_FAILED;
        if (status != LM_OK) return status;
        if (number + here > own.count) {
            message.set("%d ranks of \"%s\" run on this machine, which has %d GPU%s from lm_options.device_id %d on: "
                        "expected one for each", here, name_, own.count > number ? own.count - number : 0,
                        own.count - number == 1 ? "" : "s", number);
            return LM_UNSUPPORTED;
        }
        number += before;
        return LM_OK;
    }

    /// All ranks join, with their GPUs open, and hear of each other whether they have the same library and could open
    /// it: `status` says so of this one. The context of the device is that of the thread.
    int32_t join(const Model& model, const Device& device, int32_t status, Message& message) {
        if (by_mpi_) status = mpi_.agree(model, status, message);
        if (status != LM_OK) return status;
        driver_ = &device.driver();
        Outcome outcome = driver_->stream_create(&stream_, 0);
        for (Slot& slot : slots_) {
            if (!outcome.failed()) outcome = driver_->event_create(&slot.ready, EVENT_WITHOUT_TIME);
            if (!outcome.failed()) outcome = driver_->event_create(&slot.done, EVENT_WITHOUT_TIME);
        }
        if (outcome.failed()) return driver_->failed(outcome, message, "make a stream for exchanges of ranks");
        if (by_mpi_ && !share_id(message)) return LM_RANK_FAILED;
        if (comm_ == nullptr) {
            Nccl::Config config;
            if (!settled(nccl_.init(&comm_, size_, id_, rank_, &config), "join the other ranks", message)) {
                return LM_RANK_FAILED;
            }
            owned_ = true;
        }
        return by_mpi_ ? LM_OK : compare(model, message);
    }

    /// Frees what there is. The context of the device is that of the thread.
    void close() {
        if (comm_ != nullptr && owned_) {
            Message message;
            // Where others still read what this rank has sent, it waits for them.
            if (settled(nccl_.finalize(comm_), "part from the other ranks", message)) nccl_.destroy(comm_);
        }
        comm_ = nullptr;
        if (driver_ == nullptr) return;
        for (Slot& slot : slots_) {
            if (slot.ready != nullptr) driver_->event_destroy(slot.ready);
            if (slot.done != nullptr) driver_->event_destroy(slot.done);
        }
        if (stream_ != nullptr) driver_->stream_destroy(stream_);
    }

    void begin() { pthread_mutex_lock(&turn_); }
    void end() { pthread_mutex_unlock(&turn_); }

    /// A run of this rank has failed in the middle of what others still run: they reach their limit, and it exchanges
    /// nothing any more.
    void part(const Message& message) {
        if (!broken_) break_(message);
    }

    /// The step of the oldest exchange under way; `otherwise` where there is none.
    int32_t step(int32_t otherwise) const { return first_ < next_ ? slots_[first_ % SLOTS].step : otherwise; }

    /// Begins the exchange `ticket` of the `bytes` at `operand`, the `step` of a run, once `kernels` have come so far;
    /// false where it fails.
    bool start(int32_t step, int32_t ticket, const Exchange& how, Address operand, Address result, int64_t bytes, Stream kernels,
               Message& message) {
        if (broken_) return again(message);
        while (next_ - first_ == SLOTS) {  // it is seldom that so many are under way
            if (!is_fine(message)) return false;
            sched_yield();
        }
        Slot& slot = slots_[next_ % SLOTS];
        slot.how = how;
        slot.step = step;
        Outcome outcome = driver_->event_record(slot.ready, kernels);
        if (!outcome.failed()) outcome = driver_->stream_wait(stream_, slot.ready, 0);
        if (outcome.failed()) return refused(outcome, message);
        if (bytes > 0 && !move(how, operand, result, static_cast<size_t>(bytes), message)) return false;
        outcome = driver_->event_record(slot.done, stream_);
        if (outcome.failed()) return refused(outcome, message);
        numbers_[ticket] = next_++;
        return overlaps_ || wait(ticket, kernels, message);
    }

    /// Has `kernels` wait until the exchange has ended; false where an exchange has failed.
    bool wait(int32_t ticket, Stream kernels, Message& message) {
        if (broken_) return again(message);
        if (numbers_[ticket] < first_) return true;  // it is known to have
        const Outcome outcome = driver_->stream_wait(kernels, slots_[numbers_[ticket] % SLOTS].done, 0);
        return !outcome.failed() || refused(outcome, message);
    }

    /// Waits for all that was put into a stream, while it lets others have the processor; false where exchanges fail, or
    /// where a rank does not answer within the limit. `outcome` is that of what was waited for.
    bool finish(Stream stream, Outcome& outcome, Message& message) {
        if (broken_) return again(message);
        for (;;) {
            outcome = driver_->stream_state(stream);
            if (outcome.failed() && outcome.result != NOT_READY) return true;  // of a kernel
            if (!is_fine(message)) return false;
            if (!outcome.failed()) return true;
            sched_yield();
        }
    }

  private:
    /// What a rank sees of GPUs: on which machine it runs, how many there are, which is the first.
    struct Seen {
        char boot[40];
        char first[16];
        int32_t count;
        int32_t known;
    };

    /// An exchange under way: the kernels that it waits for have come so far, and it has ended.
    struct Slot {
        Event ready = nullptr;
        Event done = nullptr;
        Exchange how{};
        int32_t step = 0;  // of the run
    };

    struct Same {
        uint8_t source_hash[32];
        uint8_t content_id[16];
    };

    static constexpr int64_t SLOTS = 64;

    /// Takes a communicator of the caller.
    int32_t enter(void* given, Message& message) {
        auto* const comm = static_cast<Nccl::Communicator>(given);
        int32_t count = 0;
        int32_t result = nccl_.count(comm, &count);
        if (result == Nccl::SUCCESS) result = nccl_.rank(comm, &rank_);
        if (result != Nccl::SUCCESS) {
            message.set("lm_options.nccl_communicator cannot be used: NCCL says %s", nccl_.error_text(result));
            return LM_INVALID_ARGUMENT;
        }
        if (count != size_) {
            message.set("the library of \"%s\" is for %d ranks, and %d are in lm_options.nccl_communicator", name_, size_,
                        count);
            return LM_INVALID_ARGUMENT;
        }
        comm_ = comm;
        return LM_OK;
    }

    static int32_t look(const Device& device, Seen& own, Message& message) {
        const Driver& driver = device.driver();
        Ordinal first = 0;
        FILE* const file = fopen("/proc/sys/kernel/random/boot_id", "r");
        if (file != nullptr) {
            if (fgets(own.boot, sizeof(own.boot), file) == nullptr) own.boot[0] = '\0';
            fclose(file);
        }
        Outcome outcome = driver.device_count(&own.count);
        if (!outcome.failed() && own.count > 0) outcome = driver.device_get(&first, 0);
        if (!outcome.failed() && own.count > 0) outcome = driver.device_uuid(own.first, first);
        return outcome.failed() ? driver.failed(outcome, message, "tell GPUs apart") : LM_OK;
    }

    /// What all ranks say, in their order, by MPI.
    template <class T>
    bool told(const T& own, T* all, Message& message) {
        const Exchange how{Exchange::gather, size_, 1, 0};
        return mpi_.start(ticket_, how, &own, all, sizeof(T), message) && mpi_.wait(ticket_, message);
    }

    /// The first rank makes an id, and MPI hands it round.
    bool share_id(Message& message) {
        struct {
            Nccl::Id id;
            int32_t result;
        } made{}, got{};
        if (rank_ == 0) made.result = nccl_.make_id(&made.id);
        const Exchange how{Exchange::broadcast, size_, 1, 0};
        if (!mpi_.start(ticket_, how, &made, &got, sizeof(made), message) || !mpi_.wait(ticket_, message)) return false;
        id_ = got.id;
        if (got.result == Nccl::SUCCESS) return true;
        message.set("rank %d: NCCL gives rank 0 no id: %s", rank_, nccl_.error_text(got.result));
        return break_(message);
    }

    /// Whether all ranks have the same library, asked over NCCL itself.
    int32_t compare(const Model& model, Message& message) {
        Same own{};
        memcpy(own.source_hash, model.source_hash, sizeof(own.source_hash));
        memcpy(own.content_id, model.content_id, sizeof(own.content_id));
        const size_t bytes = sizeof(Same) * (static_cast<size_t>(size_) + 1);
        Memory memory;
        PinnedMemory host;
        int32_t status = memory.allocate(*driver_, bytes, "what ranks tell each other", message);
        if (status == LM_OK) status = host.allocate(*driver_, bytes, "what ranks tell each other", message);
        if (status == LM_OK) status = compare(own, memory, host, message);
        memory.free(*driver_);
        host.free(*driver_);
        return status;
    }

    int32_t compare(const Same& own, const Memory& memory, const PinnedMemory& host, Message& message) {
        memcpy(host.data(), &own, sizeof(own));
        unsigned char* const all = host.data() + sizeof(own);
        const Address results = memory.address() + sizeof(own);
        const size_t bytes = sizeof(own) * static_cast<size_t>(size_);
        Outcome outcome = driver_->to_device(memory.address(), host.data(), sizeof(own), stream_);
        if (outcome.failed()) return driver_->failed(outcome, message, "tell other ranks of the library");
        const Exchange how{Exchange::gather, size_, 1, 0};
        const bool fine = start(0, ticket_, how, memory.address(), results, sizeof(own), stream_, message);
        if (fine) outcome = driver_->to_host(all, results, bytes, stream_);
        Outcome ended;
        const bool came = fine && finish(stream_, ended, message);
        driver_->stream_synchronize(stream_);  // what has failed ends before its memory is freed
        if (!came) return LM_RANK_FAILED;
        if (outcome.failed() || ended.failed()) {
            return driver_->failed(outcome.failed() ? outcome : ended, message, "hear of other ranks' libraries");
        }
        for (int32_t k = 0; k < size_; ++k) {
            if (memcmp(all + sizeof(own) * static_cast<size_t>(k), &own, sizeof(own)) == 0) continue;
            message.set("rank %d has another library of \"%s\" than rank %d: give all ranks the same files", k, name_,
                        rank_);
            return LM_INVALID_ARGUMENT;
        }
        return LM_OK;
    }

    /// Puts an exchange into the stream of exchanges.
    bool move(const Exchange& how, Address operand, Address result, size_t whole, Message& message) {
        const int32_t me = rank_ / how.stride % how.size;
        const int32_t first = rank_ - me * how.stride;
        const size_t each = whole / static_cast<size_t>(how.size);
        const bool everyone = how.size == size_;
        auto* const from = reinterpret_cast<const unsigned char*>(operand);
        auto* const to = reinterpret_cast<unsigned char*>(result);
        if (everyone && how.kind == Exchange::gather) {
            return settled(nccl_.gather(from, to, whole, Nccl::BYTES, comm_, stream_), EXCHANGE, message);
        }
        if (everyone && how.kind == Exchange::broadcast) {
            return settled(nccl_.broadcast(from, to, whole, Nccl::BYTES, how.number, comm_, stream_), EXCHANGE, message);
        }
        if (how.kind == Exchange::send || how.kind == Exchange::receive) {
            const int32_t peer = first + how.number * how.stride;
            const int32_t said = how.kind == Exchange::send
                                     ? nccl_.send(from, whole, Nccl::BYTES, peer, comm_, stream_)
                                     : nccl_.receive(to, whole, Nccl::BYTES, peer, comm_, stream_);
            return settled(said, EXCHANGE, message);
        }
        const uint64_t place = static_cast<uint64_t>(me);
        Outcome outcome;
        switch (how.kind) {
            case Exchange::part: outcome = driver_->copy(result, operand + each * place, each, stream_); break;
            case Exchange::gather: outcome = driver_->copy(result + whole * place, operand, whole, stream_); break;
            case Exchange::transpose:
                outcome = driver_->copy(result + each * place, operand + each * place, each, stream_);
                break;
            case Exchange::broadcast:
                if (me == how.number) outcome = driver_->copy(result, operand, whole, stream_);
                break;
            case Exchange::shift:
                if (me - how.number < 0 || me - how.number >= how.size) outcome = driver_->fill(result, 0, whole, stream_);
                break;
            case Exchange::send:
            case Exchange::receive: break;
        }
        if (outcome.failed()) return refused(outcome, message);
        if (how.kind == Exchange::part) return true;
        int32_t said = nccl_.group_start();
        const bool open = said == Nccl::SUCCESS;
        for (int32_t step = 1; step < how.size && is_accepted(said); ++step) {
            const int32_t source = (me + how.size - step) % how.size;
            const int32_t target = (me + step) % how.size;
            const bool parts = how.kind == Exchange::transpose;
            const size_t size = parts ? each : whole;
            if (how.receives(me, source)) {
                const size_t before = parts || how.kind == Exchange::gather ? size * static_cast<size_t>(source) : 0;
                said = nccl_.receive(to + before, size, Nccl::BYTES, first + source * how.stride, comm_, stream_);
            }
            if (is_accepted(said) && how.receives(target, me)) {
                const size_t before = parts ? size * static_cast<size_t>(target) : 0;
                said = nccl_.send(from + before, size, Nccl::BYTES, first + target * how.stride, comm_, stream_);
            }
        }
        const int32_t ended = open ? nccl_.group_end() : said;
        return settled(is_accepted(said) ? ended : said, EXCHANGE, message);
    }

    static constexpr const char* EXCHANGE = "exchange data with other ranks";

    static bool is_accepted(int32_t result) { return result == Nccl::SUCCESS || result == Nccl::IN_PROGRESS; }

    /// Waits until a call of NCCL that returned `result` has been carried out, of which nothing may follow it before; false
    /// where it fails, or where other ranks do not come within the limit. `wanted` is for the message.
    bool settled(int32_t result, const char* wanted, Message& message) {
        const double begun = now();
        while (result == Nccl::IN_PROGRESS && comm_ != nullptr) {
            int32_t state = Nccl::SUCCESS;
            const int32_t asked = nccl_.state(comm_, &state);
            result = asked == Nccl::SUCCESS ? state : asked;
            if (result != Nccl::IN_PROGRESS) break;
            if (now() - begun > limit_) {
                message.set("rank %d cannot %s: not all have come within %g seconds (lm_options.limit_seconds, "
                            "LUMINAL_MPI_LIMIT): one has ended, hangs, or runs something else", rank_, wanted, limit_);
                return break_(message);
            }
            sched_yield();
        }
        if (result == Nccl::SUCCESS) return true;
        return failed(result, wanted, message);
    }

    bool failed(int32_t result, const char* wanted, Message& message) {
        const char* const more = nccl_.last_error(comm_);
        message.set("rank %d cannot %s: NCCL says %s%s%s", rank_, wanted, nccl_.error_text(result),
                    more != nullptr && more[0] != '\0' ? ": " : "", more != nullptr ? more : "");
        return break_(message);
    }

    /// Looks how far exchanges have come; false where NCCL has met an error, or one has waited for others for too long.
    bool is_fine(Message& message) {
        int32_t state = Nccl::SUCCESS;
        const int32_t asked = nccl_.state(comm_, &state);
        if (asked != Nccl::SUCCESS || !is_accepted(state)) {
            return failed(asked != Nccl::SUCCESS ? asked : state, EXCHANGE, message);
        }
        bool come = true;
        while (first_ < next_) {
            if (!has_come(slots_[first_ % SLOTS].done, come, message)) return false;
            if (!come) break;
            ++first_;
            waiting_since_ = 0;
        }
        if (first_ == next_) return true;
        const Slot& oldest = slots_[first_ % SLOTS];
        if (waiting_since_ == 0) {
            if (!has_come(oldest.ready, come, message)) return false;
            if (come) waiting_since_ = now();
            return true;
        }
        if (now() - waiting_since_ <= limit_) return true;
        message.set("rank %d: ", rank_);
        name_others(oldest.how, message);
        message.append(" did not answer within %g seconds (lm_options.limit_seconds, LUMINAL_MPI_LIMIT): it has ended, "
                       "hangs, or runs something else", limit_);
        return break_(message);
    }

    /// Sets `come` to whether a stream has come to an event; false where that cannot be told.
    bool has_come(Event event, bool& come, Message& message) {
        const Outcome outcome = driver_->event_state(event);
        come = !outcome.failed();
        return come || outcome.result == NOT_READY || refused(outcome, message);
    }

    /// With whom an exchange is, for a message: "rank 1", "one of ranks 1, 2, 3".
    void name_others(const Exchange& how, Message& message) const {
        const int32_t me = rank_ / how.stride % how.size;
        if (how.kind == Exchange::send || how.kind == Exchange::receive) {
            message.append("rank %d", rank_ + (how.number - me) * how.stride);
            return;
        }
        int32_t named = 0;
        message.append(how.size == 2 ? "rank" : "one of ranks");
        for (int32_t k = 0; k < how.size && named < MOST_NAMED; ++k) {
            if (k == me) continue;
            message.append("%s %d", named > 0 ? "," : "", rank_ + (k - me) * how.stride);
            ++named;
        }
        if (how.size - 1 > named) message.append(", ..");
    }

    static constexpr int32_t MOST_NAMED = 8;

    bool refused(Outcome outcome, Message& message) {
        driver_->failed(outcome, message, "%s", EXCHANGE);
        return break_(message);
    }

    /// Nothing is exchanged any more. What is under way on the GPU ends by that.
    bool break_(const Message& message) {
        broken_ = true;
        trouble_.set("%s", message.text());
        if (comm_ != nullptr) nccl_.abort(comm_);
        comm_ = nullptr;
        if (by_mpi_) mpi_.part(message);
        return false;
    }

    bool again(Message& message) const {
        message.set("the ranks of \"%s\" have parted: %s", name_, trouble_.text());
        return false;
    }

    Communicator mpi_;
    Nccl nccl_;
    Nccl::Communicator comm_ = nullptr;
    Nccl::Id id_{};
    const Driver* driver_ = nullptr;
    const char* name_ = "";
    double limit_ = DEFAULT_LIMIT;
    int32_t rank_ = 0;
    int32_t size_ = 1;
    int32_t ticket_ = 0;    // the library's own, after those of the model
    bool by_mpi_ = false;   // ranks find each other by MPI
    bool owned_ = false;    // the communicator is this library's
    bool overlaps_ = true;  // exchanges with kernels
    Stream stream_ = nullptr;
    Slot slots_[SLOTS];
    int64_t* numbers_ = nullptr;  // of each ticket, that of its last exchange; the last is for the library itself
    int64_t first_ = 0;           // the oldest exchange that is not known to have ended
    int64_t next_ = 0;            // the next to begin
    double waiting_since_ = 0;    // when the oldest was seen to wait for other ranks; 0: it was not
    pthread_mutex_t turn_ = PTHREAD_MUTEX_INITIALIZER;
    bool broken_ = false;
    Message trouble_;
};

}  // namespace cuda
}  // namespace LM_RUNTIME
}  // namespace lm
