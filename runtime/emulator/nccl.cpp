// A stand-in for NCCL among processes of one machine whose GPUs are emulated: the functions that luminal/cuda/nccl.hpp
// finds, a part of the emulated driver. Messages are files in a folder that the id names.
//
// It is stricter than the real thing. A call of a communicator that does not block is carried out when somebody asks for
// the communicator's state, so that whoever goes on before that finds nothing done. What is sent has ended once it was
// received, so that a group that lacks one of the two hangs. Messages say of what call they are, and how long: where those
// of two ranks do not fit, it is an error of the communicator. So is a rank that ends while others are in it.
//
// Calls are counted, with the bytes sent: where LUMINAL_NCCL_COUNTED names a file, what each communicator did is written
// to it when it ends, a line for each, "messages bytes".
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda_work.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Result : int32_t {
    SUCCESS = 0,
    SYSTEM_ERROR = 2,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6,
    IN_PROGRESS = 7,
};

enum Kind : int32_t { PAIR, GATHER, BROADCAST };

constexpr int32_t BYTES = 1;  // ncclUint8

struct Id {
    char internal[128];
};

struct Config {
    size_t size;
    uint32_t magic;
    uint32_t version;
    int32_t blocking;
};

/// What ranks say when they join: how many they are, which process this is, and its GPU.
struct Hello {
    int32_t ranks;
    int32_t process;
    char gpu[16];
};

/// What stands before the bytes of a message.
struct Head {
    int64_t kind;
    uint64_t bytes;
};

struct Communicator {
    std::string folder;
    int32_t rank = 0;
    int32_t ranks = 0;
    bool blocking = true;
    bool joined = false;
    bool aborted = false;
    int32_t error = SUCCESS;
    std::vector<Hello> others;                // once it has joined
    std::vector<uint64_t> sent, received;     // messages to and from each rank
    std::vector<std::function<bool()>> asked;  // calls that are not carried out yet
    uint64_t messages = 0;
    uint64_t bytes = 0;
};

/// One message of a group: the memory, and the file.
struct Part {
    unsigned char* memory;
    size_t bytes;
    std::string file;
};

/// The messages of a call, or of a group of calls.
struct Group {
    std::shared_ptr<Communicator> comm;
    void* stream = nullptr;
    Kind kind = PAIR;
    std::vector<Part> sends, receives;
    bool posted = false;
};

std::map<Communicator*, std::shared_ptr<Communicator>>& communicators() {
    static auto* const made = new std::map<Communicator*, std::shared_ptr<Communicator>>;
    return *made;
}

thread_local int32_t depth = 0;
thread_local std::vector<Group> opened;  // groups of calls between ncclGroupStart and ncclGroupEnd
std::string last_error;

int32_t fail(int32_t result, const std::string& why) {
    last_error = why;
    return result;
}

std::shared_ptr<Communicator> find(Communicator* handle, const char* function) {
    const auto found = communicators().find(handle);
    if (found != communicators().end()) return found->second;
    lm_emulated::record_fault(std::string(function) + " is given a communicator that does not exist");
    return nullptr;
}

bool write_file(const std::string& path, const void* head, size_t head_bytes, const void* data, size_t bytes) {
    const std::string temporary = path + ".part";
    FILE* const file = fopen(temporary.c_str(), "wb");
    if (file == nullptr) return false;
    const bool written = fwrite(head, 1, head_bytes, file) == head_bytes && fwrite(data, 1, bytes, file) == bytes;
    return (fclose(file) == 0) && written && rename(temporary.c_str(), path.c_str()) == 0;
}

std::string message_file(const Communicator& comm, int32_t from, int32_t to, uint64_t number) {
    return comm.folder + "/" + std::to_string(from) + "." + std::to_string(to) + "." + std::to_string(number);
}

std::string hello_file(const Communicator& comm, int32_t rank) {
    return comm.folder + "/hello." + std::to_string(rank);
}

/// Receives a message that has come; false where it has not.
bool receive(Communicator& comm, Kind kind, const Part& part) {
    FILE* const file = fopen(part.file.c_str(), "rb");
    if (file == nullptr) return false;
    Head head{};
    const bool fits = fread(&head, 1, sizeof(head), file) == sizeof(head) && head.kind == kind &&
                      head.bytes == part.bytes && fread(part.memory, 1, part.bytes, file) == part.bytes;
    fclose(file);
    if (fits) {
        lm_emulated::was_written(part.memory, part.bytes);
        unlink(part.file.c_str());
    } else {
        comm.error = fail(INVALID_USAGE, "ranks make different calls, or exchange different numbers of bytes");
    }
    return true;
}

/// Whether a process has ended, of whose end its parent may not have heard yet.
bool has_ended(int32_t process) {
    if (kill(process, 0) != 0) return true;
    FILE* const file = fopen(("/proc/" + std::to_string(process) + "/stat").c_str(), "r");
    char state = ' ';
    if (file == nullptr) return false;  // this system has none
    const bool known = fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    fclose(file);
    return known && (state == 'Z' || state == 'X');
}

bool has_left(const Communicator& comm, size_t rank) {
    return access((comm.folder + "/gone." + std::to_string(rank)).c_str(), F_OK) == 0;
}

/// Whether a rank of the communicator has ended without leaving it.
bool is_left_alone(const Communicator& comm) {
    for (size_t rank = 0; rank < comm.others.size(); ++rank) {
        if (has_ended(comm.others[rank].process) && !has_left(comm, rank)) return true;
    }
    return false;
}

/// Carries a group on; true once it has ended.
bool carry_on(Group& group) {
    Communicator& comm = *group.comm;
    if (comm.aborted) return true;
    if (comm.error != SUCCESS) return false;  // as a kernel that waits until it is aborted
    if (!group.posted) {
        for (const Part& part : group.sends) {
            const Head head{group.kind, part.bytes};
            if (!write_file(part.file, &head, sizeof(head), part.memory, part.bytes)) {
                comm.error = fail(SYSTEM_ERROR, "a message cannot be written: " + part.file);
                return false;
            }
            ++comm.messages;
            comm.bytes += part.bytes;
        }
        group.posted = true;
    }
    while (!group.receives.empty() && receive(comm, group.kind, group.receives.back())) group.receives.pop_back();
    while (!group.sends.empty() && access(group.sends.back().file.c_str(), F_OK) != 0) group.sends.pop_back();
    if (group.receives.empty() && group.sends.empty() && comm.error == SUCCESS) return true;
    if (is_left_alone(comm)) comm.error = fail(REMOTE_ERROR, "a process of another rank has ended");
    return false;
}

/// Puts a group into its stream.
bool enqueue(Group group) {
    std::vector<const void*> uses;
    for (const Part& part : group.sends) uses.push_back(part.memory);
    for (const Part& part : group.receives) uses.push_back(part.memory);
    const auto shared = std::make_shared<Group>(std::move(group));
    return lm_emulated::put_work(shared->stream, [shared] { return carry_on(*shared); }, uses);
}

/// What a call returns that has `work` to do: it does that at once, or when the state is asked for.
int32_t do_or_defer(Communicator& comm, std::function<bool()> work) {
    if (!comm.blocking) {
        comm.asked.push_back(std::move(work));
        return IN_PROGRESS;
    }
    while (!work()) usleep(100);
    return comm.error;
}

int32_t call(Group group) {
    const auto comm = group.comm;
    return do_or_defer(*comm, [group = std::move(group)] { return enqueue(group); });
}

/// The group that calls on this communicator and stream go to: an open one, or a new one.
Group& joined_to(std::vector<Group>& groups, const std::shared_ptr<Communicator>& comm, void* stream) {
    for (Group& group : groups) {
        if (group.comm == comm && group.stream == stream) return group;
    }
    groups.push_back({comm, stream});
    return groups.back();
}

int32_t check(const std::shared_ptr<Communicator>& comm, const void* memory, size_t bytes, int32_t type) {
    if (comm == nullptr) return INVALID_ARGUMENT;
    if (type != BYTES) return fail(INVALID_ARGUMENT, "the stand-in moves bytes alone");
    if (!comm->asked.empty() && depth == 0) {
        lm_emulated::record_fault("NCCL is called before its last call has been carried out");
        return INVALID_USAGE;
    }
    if (!comm->joined) return fail(INVALID_USAGE, "the communicator is not complete");
    if (lm_emulated::is_on_device(memory, bytes)) return SUCCESS;
    return fail(INVALID_ARGUMENT, "memory that is not on the device");
}

int32_t put_message(const void* memory, size_t bytes, int32_t type, int32_t peer, Communicator* handle, void* stream,
                    bool sends, const char* function) {
    const auto comm = find(handle, function);
    const int32_t result = check(comm, memory, bytes, type);
    if (result != SUCCESS) return result;
    if (peer < 0 || peer >= comm->ranks || peer == comm->rank) return fail(INVALID_ARGUMENT, "there is no such rank");
    std::vector<Group> alone;
    Group& group = joined_to(depth > 0 ? opened : alone, comm, stream);
    auto* const place = static_cast<unsigned char*>(const_cast<void*>(memory));
    if (sends) {
        group.sends.push_back({place, bytes, message_file(*comm, comm->rank, peer, comm->sent[peer]++)});
    } else {
        group.receives.push_back({place, bytes, message_file(*comm, peer, comm->rank, comm->received[peer]++)});
    }
    return depth > 0 ? SUCCESS : call(group);
}

/// A call of all ranks: this one sends `sent` to the others, and receives into `places(rank)` from those where there is one.
int32_t collective(Kind kind, const std::shared_ptr<Communicator>& comm, void* stream, const void* sent, size_t bytes,
                   const std::function<unsigned char*(int32_t)>& place) {
    if (depth > 0) return fail(INVALID_USAGE, "the stand-in has no groups of collectives");
    Group group{comm, stream, kind};
    for (int32_t k = 0; k < comm->ranks; ++k) {
        if (k == comm->rank) continue;
        auto* const memory = static_cast<unsigned char*>(const_cast<void*>(sent));
        if (memory != nullptr) group.sends.push_back({memory, bytes, message_file(*comm, comm->rank, k, comm->sent[k]++)});
        unsigned char* const into = place(k);
        if (into == nullptr) continue;
        group.receives.push_back({into, bytes, message_file(*comm, k, comm->rank, comm->received[k]++)});
    }
    return call(group);
}

/// Whether all ranks have come.
bool join(Communicator& comm) {
    std::vector<Hello> all;
    for (int32_t k = 0; k < comm.ranks; ++k) {
        Hello hello{};
        FILE* const file = fopen(hello_file(comm, k).c_str(), "rb");
        if (file == nullptr) return false;
        const bool whole = fread(&hello, 1, sizeof(hello), file) == sizeof(hello);
        fclose(file);
        if (!whole || hello.ranks != comm.ranks) comm.error = fail(INVALID_USAGE, "ranks expect different numbers of them");
        for (const Hello& other : all) {
            if (memcmp(other.gpu, hello.gpu, sizeof(hello.gpu)) != 0) continue;
            comm.error = fail(INVALID_USAGE, "two ranks use one GPU");
        }
        all.push_back(hello);
    }
    comm.others = all;
    comm.joined = true;
    return true;
}

void remove_folder(const std::string& folder) {
    DIR* const entries = opendir(folder.c_str());
    if (entries == nullptr) return;
    while (const dirent* const entry = readdir(entries)) unlink((folder + "/" + entry->d_name).c_str());
    closedir(entries);
    rmdir(folder.c_str());
}

void end(Communicator* handle) {
    const auto found = communicators().find(handle);
    if (found == communicators().end()) return;
    const Communicator& comm = *found->second;
    if (const char* const path = getenv("LUMINAL_NCCL_COUNTED")) {
        if (FILE* const file = fopen(path, "a")) {
            fprintf(file, "%llu %llu\n", static_cast<unsigned long long>(comm.messages),
                    static_cast<unsigned long long>(comm.bytes));
            fclose(file);
        }
    }
    write_file(comm.folder + "/gone." + std::to_string(comm.rank), nullptr, 0, nullptr, 0);
    size_t gone = 0;
    for (size_t rank = 0; rank < static_cast<size_t>(comm.ranks); ++rank) gone += has_left(comm, rank);
    if (gone == static_cast<size_t>(comm.ranks)) remove_folder(comm.folder);
    communicators().erase(found);
}

}  // namespace

EXPORT int32_t ncclGetVersion(int32_t* version) {
    const char* const other = getenv("LUMINAL_NCCL_VERSION");
    *version = other != nullptr ? atoi(other) : 21400;
    return SUCCESS;
}

EXPORT const char* ncclGetErrorString(int32_t result) {
    switch (result) {
        case SUCCESS: return "no error";
        case SYSTEM_ERROR: return "unhandled system error";
        case INVALID_ARGUMENT: return "invalid argument";
        case INVALID_USAGE: return "invalid usage";
        case REMOTE_ERROR: return "remote process exited or there was a network error";
        case IN_PROGRESS: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

EXPORT const char* ncclGetLastError(Communicator*) { return last_error.c_str(); }

EXPORT int32_t ncclGetUniqueId(Id* id) {
    const char* const root = getenv("TMPDIR");
    const std::string path = std::string(root != nullptr ? root : "/tmp") + "/luminal-nccl-XXXXXX";
    if (path.size() >= sizeof(id->internal)) return fail(SYSTEM_ERROR, "TMPDIR is too long");
    memset(id->internal, 0, sizeof(id->internal));
    memcpy(id->internal, path.c_str(), path.size());
    return mkdtemp(id->internal) != nullptr ? SUCCESS : fail(SYSTEM_ERROR, "no folder for messages");
}

EXPORT int32_t ncclCommInitRankConfig(Communicator** handle, int32_t ranks, Id id, int32_t rank, Config* config) {
    if (config->magic != 0xcafebeef || config->size < sizeof(Config) || config->version < 21400) {
        return fail(INVALID_ARGUMENT, "the configuration is not initialised");
    }
    if (ranks < 1 || rank < 0 || rank >= ranks) return fail(INVALID_ARGUMENT, "there is no such rank");
    const std::string gpu = lm_emulated::current_gpu();
    if (gpu.empty()) return fail(INVALID_USAGE, "the thread has no context of a GPU");
    const auto comm = std::make_shared<Communicator>();
    comm->folder = std::string(id.internal, strnlen(id.internal, sizeof(id.internal)));
    comm->rank = rank;
    comm->ranks = ranks;
    comm->blocking = config->blocking != 0;
    comm->sent.resize(static_cast<size_t>(ranks));
    comm->received.resize(static_cast<size_t>(ranks));
    Hello hello{ranks, getpid(), {}};
    gpu.copy(hello.gpu, sizeof(hello.gpu));
    if (!write_file(hello_file(*comm, rank), &hello, sizeof(hello), nullptr, 0)) {
        return fail(SYSTEM_ERROR, "the id is not known here");
    }
    communicators()[comm.get()] = comm;
    *handle = comm.get();
    return do_or_defer(*comm, [comm = comm.get()] { return join(*comm); });
}

EXPORT int32_t ncclCommGetAsyncError(Communicator* handle, int32_t* state) {
    const auto comm = find(handle, "ncclCommGetAsyncError");
    if (comm == nullptr) return INVALID_ARGUMENT;
    while (!comm->asked.empty() && comm->error == SUCCESS && comm->asked.front()()) comm->asked.erase(comm->asked.begin());
    *state = comm->error != SUCCESS ? comm->error : comm->asked.empty() ? SUCCESS : IN_PROGRESS;
    return SUCCESS;
}

EXPORT int32_t ncclCommFinalize(Communicator* handle) {
    const auto comm = find(handle, "ncclCommFinalize");
    return comm == nullptr ? static_cast<int32_t>(INVALID_ARGUMENT) : do_or_defer(*comm, [] { return true; });
}

EXPORT int32_t ncclCommDestroy(Communicator* handle) {
    if (find(handle, "ncclCommDestroy") == nullptr) return INVALID_ARGUMENT;
    end(handle);
    return SUCCESS;
}

EXPORT int32_t ncclCommAbort(Communicator* handle) {
    const auto comm = find(handle, "ncclCommAbort");
    if (comm == nullptr) return INVALID_ARGUMENT;
    comm->aborted = true;
    end(handle);
    return SUCCESS;
}

EXPORT int32_t ncclCommCount(Communicator* handle, int32_t* ranks) {
    const auto comm = find(handle, "ncclCommCount");
    if (comm == nullptr) return INVALID_ARGUMENT;
    *ranks = comm->ranks;
    return SUCCESS;
}

EXPORT int32_t ncclCommUserRank(Communicator* handle, int32_t* rank) {
    const auto comm = find(handle, "ncclCommUserRank");
    if (comm == nullptr) return INVALID_ARGUMENT;
    *rank = comm->rank;
    return SUCCESS;
}

EXPORT int32_t ncclGroupStart() {
    ++depth;
    return SUCCESS;
}

EXPORT int32_t ncclGroupEnd() {
    if (depth == 0) return fail(INVALID_USAGE, "no group is open");
    if (--depth > 0) return SUCCESS;
    int32_t result = SUCCESS;
    for (Group& group : opened) {
        const int32_t made = call(std::move(group));
        if (result == SUCCESS) result = made;
    }
    opened.clear();
    return result;
}

EXPORT int32_t ncclSend(const void* data, size_t count, int32_t type, int32_t to, Communicator* comm, void* stream) {
    return put_message(data, count, type, to, comm, stream, true, "ncclSend");
}

EXPORT int32_t ncclRecv(void* data, size_t count, int32_t type, int32_t from, Communicator* comm, void* stream) {
    return put_message(data, count, type, from, comm, stream, false, "ncclRecv");
}

EXPORT int32_t ncclAllGather(const void* own, void* all, size_t count, int32_t type, Communicator* handle, void* stream) {
    const auto comm = find(handle, "ncclAllGather");
    int32_t result = check(comm, own, count, type);
    if (result == SUCCESS) result = check(comm, all, count * static_cast<size_t>(comm->ranks), type);
    if (result != SUCCESS) return result;
    auto* const to = static_cast<unsigned char*>(all);
    unsigned char* const place = to + count * static_cast<size_t>(comm->rank);
    const bool copied = place == own || lm_emulated::put_work(stream, [=] {
        memcpy(place, own, count);
        lm_emulated::was_written(place, count);
        return true;
    }, {own, place});
    if (!copied) return fail(INVALID_ARGUMENT, "there is no such stream");
    return collective(GATHER, comm, stream, own, count,
                      [=](int32_t rank) { return to + count * static_cast<size_t>(rank); });
}

EXPORT int32_t ncclBroadcast(const void* own, void* result, size_t count, int32_t type, int32_t root,
                             Communicator* handle, void* stream) {
    const auto comm = find(handle, "ncclBroadcast");
    int32_t status = check(comm, result, count, type);
    if (status == SUCCESS && comm->rank == root) status = check(comm, own, count, type);
    if (status != SUCCESS) return status;
    const bool sends = comm->rank == root;
    if (sends && own != result) {
        lm_emulated::put_work(stream, [=] {
            memcpy(result, own, count);
            lm_emulated::was_written(result, count);
            return true;
        }, {own, result});
    }
    return collective(BROADCAST, comm, stream, sends ? own : nullptr, count, [=](int32_t rank) {
        return !sends && rank == root ? static_cast<unsigned char*>(result) : nullptr;
    });
}
