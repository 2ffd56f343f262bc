// Ranks of a mesh: exchanges of data over MPI that begin and are waited for apart, with a limit to each wait.
//
// Bytes are moved and nothing is computed: each exchange is a set of messages from rank to rank. Sums are kernels' work,
// so that their bits depend on the number of ranks alone.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/deadline.hpp"
#include "luminal/exchange.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"
#include "luminal/mpi.hpp"
#if defined(__linux__)
#include "luminal/placement.hpp"
#endif

namespace lm {
inline namespace LM_RUNTIME {

/// The messages of one exchange that have not ended.
class Messages {
  public:
    struct One {
        Mpi::Handle request;
        int32_t peer;
        bool received;
    };

    ~Messages() { free(all_); }

    /// Room for one message more; null where there is no memory.
    One* add() {
        if (count_ == capacity_) {
            const size_t capacity = capacity_ == 0 ? 16 : capacity_ * 2;
            void* const memory = realloc(all_, capacity * sizeof(One));
            if (memory == nullptr) return nullptr;
            all_ = static_cast<One*>(memory);
            capacity_ = capacity;
        }
        return &all_[count_++];
    }

    void drop_last() { --count_; }
    size_t count() const { return count_; }
    One& operator[](size_t i) { return all_[i]; }
    void remove(size_t i) { all_[i] = all_[--count_]; }

  private:
    One* all_ = nullptr;
    size_t count_ = 0;
    size_t capacity_ = 0;
};

/// This process among the ranks of a mesh. Runs take turns (`begin`, `end`): all ranks have to make the same ones in the
/// same order. Once an exchange has failed, all later ones do.
class Communicator {
  public:
    Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    ~Communicator() { delete_messages(); }

    int32_t rank() const { return rank_; }

    /// Opens MPI, initialises it unless the process has, and checks that there are as many ranks as the model is for.
    int32_t open(const Model& model, const lm_options& options, Message& message) {
        name_ = model.name;
        limit_ = limit_of_waits(options.limit_seconds);
        overlaps_ = exchanges_overlap();
        if (!mpi_.open(options.mpi_library, message)) return LM_SYSTEM_ERROR;
        int flag = 0;
        mpi_.finalized(&flag);
        if (flag != 0) {
            message.set("the library of \"%s\" is for %d ranks, and MPI has been finalised in this process", model.name,
                        model.ranks);
            return LM_SYSTEM_ERROR;
        }
        mpi_.initialized(&flag);
        if (flag == 0) {
            int provided = 0;
            if (!succeeded(mpi_.init_thread(nullptr, nullptr, Mpi::THREAD_SERIALIZED, &provided), message)) {
                return LM_SYSTEM_ERROR;
            }
            end_with_process();
        }
        Mpi::Handle const given = options.communicator != nullptr ? options.communicator : Mpi::world();
        int size = 0;
        if (!succeeded(mpi_.comm_size(given, &size), message)) return LM_SYSTEM_ERROR;
        if (size != model.ranks) {
            message.set("the library of \"%s\" is for %d ranks, and %d are in the communicator: start the program with "
                        "`mpirun -n %d`", model.name, model.ranks, size, model.ranks);
            return LM_INVALID_ARGUMENT;
        }
        if (const int32_t status = duplicate(given, message); status != LM_OK) return status;
        mpi_.comm_set_errhandler(comm_, Mpi::errors_return());
        int rank = 0;
        if (!succeeded(mpi_.comm_rank(comm_, &rank), message)) return LM_SYSTEM_ERROR;
        rank_ = rank;
        size_ = size;
        tickets_ = model.tickets;
        messages_ = static_cast<Messages*>(calloc(static_cast<size_t>(tickets_) + 1, sizeof(Messages)));
        if (messages_ == nullptr) {
            message.set("no memory for the exchanges of ranks");
            return LM_OUT_OF_MEMORY;
        }
        return LM_OK;
    }

    /// Ranks that may use the same CPUs of one machine divide them: the calling thread, and those that it starts from now
    /// on, keep to this rank's part, whose memory they touch first, until the library is closed. Nothing changes where a
    /// launcher has bound ranks, where there are fewer CPUs than ranks, or fewer in a part than `threads`, and with
    /// LUMINAL_MPI_PIN=0.
    int32_t divide_cpus(int32_t threads, Message& message) {
#if defined(__linux__)
        const Place own = Place::own();
        Place* const all = static_cast<Place*>(calloc(static_cast<size_t>(size_), sizeof(Place)));
        if (all == nullptr) return LM_OUT_OF_MEMORY;
        const Exchange how{Exchange::gather, size_, 1, 0};
        const bool fine = start(tickets_, how, &own, all, sizeof(own), message) && wait(tickets_, message);
        int64_t here = 0;
        int64_t before = 0;
        for (int32_t k = 0; fine && k < size_; ++k) {
            if (!(all[k] == own)) continue;
            ++here;
            before += k < rank_;
        }
        free(all);
        if (!fine) return LM_RANK_FAILED;
        const char* const pin = getenv("LUMINAL_MPI_PIN");
        if (here < 2 || (pin != nullptr && strcmp(pin, "0") == 0)) return LM_OK;
        const NearCpus cpus(own.cpus);
        if (cpus.count() < here || cpus.count() / here < threads) return LM_OK;
        opener_.enter(own.cpus, cpus.part(before, here));
#else
        static_cast<void>(threads);
        static_cast<void>(message);
#endif
        return LM_OK;
    }

    /// Tells all ranks whether this one could open its part, and hears it of them: all go on, or none. Ranks that were
    /// given another library are told apart by the hash of its sources and of all weights.
    int32_t agree(const Model& model, int32_t status, Message& message) {
        if (comm_ == nullptr) return status;  // not even MPI is open: the others reach their limit
        Hello own{};
        own.status = status;
        memcpy(own.source_hash, model.source_hash, sizeof(own.source_hash));
        memcpy(own.content_id, model.content_id, sizeof(own.content_id));
        Hello* const all = static_cast<Hello*>(calloc(static_cast<size_t>(size_), sizeof(Hello)));
        if (all == nullptr) return LM_OUT_OF_MEMORY;
        Message trouble;
        const Exchange how{Exchange::gather, size_, 1, 0};
        bool fine = start(tickets_, how, &own, all, sizeof(own), trouble) && wait(tickets_, trouble);
        if (!fine && status == LM_OK) {
            message.set("%s", trouble.text());
            status = LM_RANK_FAILED;
        }
        for (int32_t k = 0; fine && status == LM_OK && k < size_; ++k) {
            const bool same = memcmp(all[k].source_hash, own.source_hash, sizeof(own.source_hash)) == 0 &&
                              memcmp(all[k].content_id, own.content_id, sizeof(own.content_id)) == 0;
            if (same && all[k].status == LM_OK) continue;
            message.set(same ? "rank %d could not open the library of \"%s\": its own message says why"
                             : "rank %d has another library of \"%s\" than rank %d: give all ranks the same files",
                        k, model.name, rank_);
            status = same ? LM_RANK_FAILED : LM_INVALID_ARGUMENT;
        }
        free(all);
        return status;
    }

    void begin() { pthread_mutex_lock(&turn_); }
    void end() { pthread_mutex_unlock(&turn_); }

    /// Whether an exchange has failed: memory that was being exchanged has to stay, MPI may still write there.
    bool is_broken() const { return broken_; }

    /// A run of this rank has failed in the middle of what others still run: they reach their limit, and it exchanges
    /// nothing any more.
    void part(const Message& message) { break_(message); }

    /// Whether exchanges have begun that have not ended.
    bool is_open() const { return open_ != 0 && !broken_; }

    /// Lets messages that are under way go on, which most MPI libraries do within calls alone. For the thread that runs
    /// the model; where an exchange has failed, the next one that begins or is waited for says so.
    void advance() {
        while (messages_[oldest_].count() == 0) oldest_ = oldest_ == tickets_ ? 0 : oldest_ + 1;
        Message message;
        test(oldest_, 0, message);
    }

    /// Begins the exchange `ticket` of the `bytes` at `operand`; false where it fails.
    bool start(int32_t ticket, const Exchange& how, const void* operand, void* result, int64_t bytes, Message& message) {
        return post_all(ticket, how, operand, result, bytes, message) && (overlaps_ || wait(ticket, message));
    }

    /// Waits until the exchange has ended, while it lets others have the processor; false where it fails, or where a rank
    /// does not answer within the limit. Messages of others advance meanwhile.
    bool wait(int32_t ticket, Message& message) {
        if (broken_) return again(message);
        Messages& open = messages_[ticket];
        const double begun = now();
        for (int64_t round = 0; open.count() > 0; ++round) {
            for (size_t i = open.count(); i-- > 0;) {
                if (!test(ticket, i, message)) return false;
            }
            if (open.count() == 0) break;
            if (round % 64 == 63 && now() - begun > limit_) {
                message.set("rank %d: rank %d did not answer within %g seconds (lm_options.limit_seconds, "
                            "LUMINAL_MPI_LIMIT): it has ended, hangs, or runs something else", rank_, silent(open),
                            limit_);
                return break_(message);
            }
            sched_yield();
        }
        return true;
    }

  private:
    bool post_all(int32_t ticket, const Exchange& how, const void* operand, void* result, int64_t bytes, Message& message) {
        if (broken_) return again(message);
        const int32_t me = rank_ / how.stride % how.size;
        const int32_t first = rank_ - me * how.stride;
        const auto* from = static_cast<const unsigned char*>(operand);
        auto* to = static_cast<unsigned char*>(result);
        const size_t whole = static_cast<size_t>(bytes);
        const size_t each = whole / static_cast<size_t>(how.size);
        switch (how.kind) {
            case Exchange::part:
                memcpy(to, from + each * static_cast<size_t>(me), each);
                return true;
            case Exchange::gather:
                memcpy(to + whole * static_cast<size_t>(me), from, whole);
                break;
            case Exchange::transpose:
                memcpy(to + each * static_cast<size_t>(me), from + each * static_cast<size_t>(me), each);
                break;
            case Exchange::broadcast:
                if (me == how.number) memcpy(to, from, whole);
                break;
            case Exchange::shift:
                if (me - how.number < 0 || me - how.number >= how.size) memset(to, 0, whole);
                break;
            case Exchange::send:
            case Exchange::receive:
                return post(ticket, first + how.number * how.stride, from, to, whole, message);
        }
        // Each rank begins with another one, so that not all send to the same.
        for (int32_t step = 1; step < how.size; ++step) {
            const int32_t source = (me + how.size - step) % how.size;
            const size_t place = static_cast<size_t>(source);
            if (!how.receives(me, source)) continue;
            const size_t size = how.kind == Exchange::transpose ? each : whole;
            const bool apart = how.kind == Exchange::gather || how.kind == Exchange::transpose;
            if (!post(ticket, first + source * how.stride, nullptr, to + (apart ? size * place : 0), size, message)) {
                return false;
            }
        }
        for (int32_t step = 1; step < how.size; ++step) {
            const int32_t target = (me + step) % how.size;
            if (!how.receives(target, me)) continue;
            const bool part = how.kind == Exchange::transpose;
            const unsigned char* const data = part ? from + each * static_cast<size_t>(target) : from;
            if (!post(ticket, first + target * how.stride, data, nullptr, part ? each : whole, message)) return false;
        }
        return true;
    }

    /// Looks whether message `i` of the exchange `ticket` has ended, and forgets it if so; false where it failed.
    bool test(int32_t ticket, size_t i, Message& message) {
        Messages& open = messages_[ticket];
        int flag = 0;
        const int code = mpi_.test(&open[i].request, &flag, nullptr);
        if (code != 0) {
            Message said;
            succeeded(code, said);
            message.set("rank %d: the exchange with rank %d failed: %s", rank_, open[i].peer, said.text());
            return break_(message);
        }
        if (flag != 0) {
            open.remove(i);
            --open_;
        }
        return true;
    }

    /// A communicator of the library's own, for which all ranks have to come.
    int32_t duplicate(Mpi::Handle given, Message& message) {
        Mpi::Handle request = nullptr;
        if (!succeeded(mpi_.comm_idup(given, &comm_, &request), message)) return LM_SYSTEM_ERROR;
        const double begun = now();
        for (int done = 0;;) {
            if (!succeeded(mpi_.test(&request, &done, nullptr), message)) return LM_RANK_FAILED;
            if (done != 0) return LM_OK;
            if (now() - begun > limit_) break;
            sched_yield();
        }
        comm_ = nullptr;
        message.set("not all ranks have opened the library of \"%s\" within %g seconds (lm_options.limit_seconds, "
                    "LUMINAL_MPI_LIMIT): one has ended, hangs, or runs something else", name_, limit_);
        break_(message);
        return LM_RANK_FAILED;
    }

    struct Hello {
        int64_t status;
        uint8_t source_hash[32];
        uint8_t content_id[16];
    };

    static constexpr size_t MOST_BYTES = size_t{1} << 30;  // of one message: MPI counts in 31 bits
    static constexpr int TAGS = 32767;                     // MPI promises so many; this one is the library's own

    /// One message each way has one of `data`, to send, and `memory`, to receive into.
    bool post(int32_t ticket, int32_t peer, const unsigned char* data, unsigned char* memory, size_t bytes,
              Message& message) {
        size_t done = 0;
        while (done < bytes) {
            const int count = static_cast<int>(bytes - done < MOST_BYTES ? bytes - done : MOST_BYTES);
            Messages::One* const one = messages_[ticket].add();
            if (one == nullptr) {
                message.set("no memory for the exchanges of ranks");
                return break_(message);
            }
            *one = {nullptr, peer, memory != nullptr};
            // Other libraries have other numbers of tickets: they have to hear each other say so.
            const int tag = ticket == tickets_ ? TAGS : ticket % TAGS;
            const int code = memory != nullptr
                                 ? mpi_.irecv(memory + done, count, Mpi::byte(), peer, tag, comm_, &one->request)
                                 : mpi_.isend(data + done, count, Mpi::byte(), peer, tag, comm_, &one->request);
            if (code != 0) {
                messages_[ticket].drop_last();
                Message said;
                succeeded(code, said);
                message.set("rank %d: no exchange with rank %d: %s", rank_, peer, said.text());
                return break_(message);
            }
            ++open_;
            done += static_cast<size_t>(count);
        }
        return true;
    }

    /// A rank that nothing has come from; where there is none, one that nothing could be sent to.
    static int32_t silent(Messages& open) {
        for (size_t i = 0; i < open.count(); ++i) {
            if (open[i].received) return open[i].peer;
        }
        return open[0].peer;
    }

    bool succeeded(int code, Message& message) const {
        if (code == 0) return true;
        char text[Mpi::MAX_ERROR_STRING + 1] = "";
        int length = 0;
        if (mpi_.error_string(code, text, &length) != 0) snprintf(text, sizeof(text), "error %d", code);
        message.set("MPI: %s", text);
        return false;
    }

    bool break_(const Message& message) {
        broken_ = true;
        is_any_broken() = true;
        trouble_.set("%s", message.text());
        return false;
    }

    bool again(Message& message) const {
        message.set("the ranks of \"%s\" have parted: %s", name_, trouble_.text());
        return false;
    }

    /// Whether ranks have parted in this process: then MPI is not finalised, which would wait for all.
    static bool& is_any_broken() {
        static bool broken = false;
        return broken;
    }

    static int (*&finalize())() {
        static int (*function)() = nullptr;
        return function;
    }

    static int (*&finalized())(int*) {
        static int (*function)(int*) = nullptr;
        return function;
    }

    /// MPI ends when the process does. This library stays in memory for that.
    void end_with_process() const {
        Dl_info info{};
        finalize() = mpi_.finalize;
        finalized() = mpi_.finalized;
        if (dladdr(reinterpret_cast<const void*>(&Communicator::ended), &info) != 0 && info.dli_fname != nullptr) {
            dlopen(info.dli_fname, RTLD_NOW | RTLD_NODELETE | RTLD_NOLOAD);
        }
        atexit(&Communicator::ended);
    }

    static void ended() {
        int flag = 0;
        if (!is_any_broken() && finalized()(&flag) == 0 && flag == 0) finalize()();
    }

    void delete_messages() {
        for (int32_t i = 0; messages_ != nullptr && i <= tickets_; ++i) messages_[i].~Messages();
        free(messages_);
    }

    Mpi mpi_;
    Mpi::Handle comm_ = nullptr;
    const char* name_ = "";
    double limit_ = DEFAULT_LIMIT;
    int32_t rank_ = 0;
    int32_t size_ = 1;
    int32_t tickets_ = 0;
    int32_t oldest_ = 0;      // a ticket, from which on one is looked for whose messages are under way
    int64_t open_ = 0;        // messages that are under way
    bool overlaps_ = true;    // exchanges with kernels
#if defined(__linux__)
    KeptThread opener_;
#endif
    Messages* messages_ = nullptr;  // of each ticket; the last is for the library itself
    pthread_mutex_t turn_ = PTHREAD_MUTEX_INITIALIZER;
    bool broken_ = false;
    Message trouble_;
};

}  // namespace LM_RUNTIME
}  // namespace lm
