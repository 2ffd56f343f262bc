/* The C types that every library compiled by luminal speaks. Plain C99; also valid C++.
 *
 * A library exports exactly these functions, each prefixed by the model's NAME (the prototypes are in NAME.h):
 *
 *   NAME_abi_version     LM_ABI_VERSION of the library
 *   NAME_metadata_json   inputs, outputs, dims, entry points, constants and origins, as a static JSON text
 *   NAME_open            options -> library: brings the weights in, starts the threads or takes the device
 *   NAME_close           library -> nothing; refused while it still has contexts
 *   NAME_context_create  library -> context: the arena of one caller thread
 *   NAME_context_destroy
 *   NAME_workspace_size  bytes of arena that a context needs
 *   NAME_output_shape    the shape of one output, from the shapes of the inputs, or after a run
 *   NAME_run             inputs -> outputs
 *   NAME_set_weights     replaces the weights of an open library
 *   NAME_reset           context -> nothing: its states are as before the first run
 *   NAME_get_state       copies a state out of a context
 *   NAME_set_state       copies a state into a context
 *   NAME_last_error      the message that belongs to the last status that was not LM_OK
 *
 * Threads: a library may be used by any number of threads at once, a context by one thread at a time. Contexts of one
 * library run concurrently and share its one pool of threads.
 */
#ifndef LM_ABI_H
#define LM_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LM_ABI_VERSION 1

/* Element types. The numbers are part of the ABI and never change.
 *
 * Elements of fewer than 8 bits lie one to a byte, in its lowest bits, as numpy's arrays of ml_dtypes have them, not
 * packed as in ONNX files: bits above are ignored in inputs and 0 in outputs. Weights files hold them the same way. */
enum lm_dtype {
    LM_BOOL = 1, /* one byte, 0 or 1 */
    LM_INT8 = 2,
    LM_INT16 = 3,
    LM_INT32 = 4,
    LM_INT64 = 5,
    LM_UINT8 = 6,
    LM_UINT16 = 7,
    LM_UINT32 = 8,
    LM_UINT64 = 9,
    LM_FLOAT16 = 10, /* IEEE binary16 */
    LM_BFLOAT16 = 11,
    LM_FLOAT32 = 12,
    LM_FLOAT64 = 13,
    LM_COMPLEX64 = 14, /* two float32: real, imaginary */
    LM_COMPLEX128 = 15, /* two float64: real, imaginary */
    LM_INT4 = 16,       /* two's complement */
    LM_UINT4 = 17,
    LM_INT2 = 18, /* two's complement */
    LM_UINT2 = 19,
    /* Floats with a sign and so many bits of exponent (e) and fraction (m). fn: no infinities, one NaN of either sign, all
     * bits set. fnuz: no infinities, no -0, whose bits are the only NaN. */
    LM_FLOAT8E4M3FN = 20,
    LM_FLOAT8E4M3FNUZ = 21,
    LM_FLOAT8E5M2 = 22, /* as IEEE 754 would have it */
    LM_FLOAT8E5M2FNUZ = 23,
    LM_FLOAT8E8M0 = 24, /* a power of two, 2^(bits - 127), without sign or zero; 255 is NaN */
    LM_FLOAT4E2M1 = 25, /* numbers alone, up to 6 */
    LM_TEXT = 26        /* an lm_text */
};

/* A text: `size` bytes of UTF-8, which need not end with 0. Those of inputs are copied; those of outputs belong to the
 * context and stay as they are until it runs again or is destroyed. */
typedef struct lm_text {
    const char* data; /* may be NULL if it has no bytes */
    size_t size;
} lm_text;

/* Where the data of a value lies. Devices but the CPU have the numbers of DLPack. */
enum lm_device {
    LM_CPU = 0,
    LM_CUDA = 2, /* memory of an NVIDIA GPU; only libraries compiled for those take it */
    LM_METAL = 8 /* data is an id<MTLBuffer>, the value begins where it does; only libraries for Metal take it */
};

/* What a call returns. */
enum lm_status {
    LM_OK = 0,
    LM_INVALID_ARGUMENT = 1,    /* an argument, or an input's type, shape, strides or bounds */
    LM_INDEX_OUT_OF_RANGE = 2,  /* raised by a step of the model: an index outside its tensor */
    LM_OPERATOR_FAILED = 3,     /* raised by a step of the model: any other failure of a source operator */
    LM_OUT_OF_MEMORY = 4,       /* an allocation failed */
    LM_BAD_WEIGHTS = 5,         /* the weights are missing, truncated, damaged, or another model's */
    LM_UNSUPPORTED = 6,         /* this machine lacks what the library was compiled for: instructions, a device */
    LM_SYSTEM_ERROR = 7,        /* the operating system or the device's driver refused, e.g. to start a thread */
    LM_SINGULAR_MATRIX = 8,     /* raised by a step of the model: a matrix is singular, or not positive definite */
    LM_OUT_OF_ROOM = 9,         /* raised by a step of the model: a loop or a range is longer than its bound */
    LM_UNFIT_BRANCH = 10,       /* raised by a step of the model: a branch is taken that does not fit what follows */
    LM_RANK_FAILED = 11,        /* another rank of a mesh has ended, hangs, or could not open its library */
    LM_OTHER_STAGE = 12           /* other ranks have this state, those of another stage of a pipeline */
};

/* One tensor, owned by the caller. */
typedef struct lm_value {
    void* data;             /* aligned to its element (on a GPU to 16 bytes); may be NULL if it has no elements */
    int32_t dtype;          /* enum lm_dtype */
    int32_t rank;           /* 0: a scalar */
    const int64_t* shape;   /* rank sizes; may be NULL if rank is 0 */
    const int64_t* strides; /* rank strides in elements, or NULL: contiguous, row-major */
    int32_t device;         /* enum lm_device */
    int32_t device_id;      /* which device of that kind, from 0 */
} lm_value;

typedef struct lm_library lm_library;
typedef struct lm_context lm_context;

/* A piece of work: does the tasks begin <= i < end. */
typedef void (*lm_task_range)(void* argument, int64_t begin, int64_t end);

/* How to open a library. Zero means the default everywhere; `size` must be sizeof(lm_options). */
typedef struct lm_options {
    size_t size;

    /* The weights file. NULL: NAME.weights beside the library. "": none yet, NAME_set_weights comes before any run. */
    const char* weights_path;

    /* If set, called once by NAME_open instead of reading a file: hands over the bytes of a weights file, in memory
     * aligned to 64 bytes that stays valid until NAME_close or NAME_set_weights. Returns 0, or any other number to
     * refuse. */
    int32_t (*weights_provider)(void* user, const void** image, size_t* bytes);

    /* Where the memory of contexts comes from, their arenas above all; both or neither. `allocate` returns NULL if
     * there is none. Called by NAME_context_create and NAME_context_destroy, on the calling thread. */
    void* (*allocate)(void* user, size_t bytes, size_t alignment);
    void (*deallocate)(void* user, void* memory, size_t bytes);

    /* If set, replaces the library's own threads: calls `body(argument, begin, end)` on disjoint ranges that cover
     * 0 <= i < tasks, on any threads, and returns when all have returned. Must be callable from several threads. Those
     * that call `body` need as much stack as the thread that runs the model: NAME.h says how much. */
    void (*parallel_for)(void* user, int64_t tasks, lm_task_range body, void* argument);

    void* user; /* handed to all callbacks */

    /* Threads that work on one run, the caller's included. 0: as many as the process may use CPUs. Ignored with
     * parallel_for. Results do not depend on it. */
    int32_t threads;

    /* Which device a library for GPUs runs on, from 0. Ignored on the CPU. */
    int32_t device_id;

    /* If set, called by NAME_run on the calling thread: with the number of each step of the model as it begins (of steps
     * that run together, with the number of one), and with -1 when the last one has ended. For profiling and tracing. */
    void (*on_step)(void* user, int32_t step);

    /* Not 0: all bytes of the weights are verified when they are opened, whatever their size. 0: those of weights up to
     * 1 GB are; of larger ones the header and the size are. */
    int32_t verify;

    /* Not 0: weights_path or weights_provider may give other weights than those that the model was compiled with, for
     * the same build. */
    int32_t other_weights;

    /* If set, the file that NAME_close writes a trace of all runs to, in the JSON that Perfetto and Chrome's
     * about:tracing open: when each step ran, and which thread did which of its tasks. Of very many runs, the first
     * half a million events are kept. NULL: no trace, at no cost. On a GPU, steps wait for each other. */
    const char* trace_path;

    /* The rest is for libraries of a mesh of devices, which every rank opens; others ignore it. The handle of an MPI
     * communicator of as many ranks; NULL: MPI_COMM_WORLD. It is duplicated. MPI is initialised where the process has
     * not, and is then finalised when the process ends. Handles are those of the MPI 5 ABI. */
    void* communicator;

    /* The MPI library, by name or path. NULL: what the variable LUMINAL_MPI names, else libmpi_abi.so.1. */
    const char* mpi_library;

    /* How long a rank waits for another, in seconds, before NAME_open or NAME_run fails. 0: what the variable
     * LUMINAL_MPI_LIMIT says, else 300. */
    double limit_seconds;

    /* The rest is for libraries of a mesh of NVIDIA's GPUs, whose ranks exchange data by NCCL. Without an id and a
     * communicator, they find each other by MPI, as above, and the ranks that see the same GPUs of one machine take one
     * each, from device_id on. An id is the ncclUniqueId that one rank has made, of 128 bytes, the same for all: `rank` is
     * then the number of this one, from 0, and `device_id` its GPU. */
    const void* nccl_id;
    int32_t rank;

    /* An ncclComm_t of as many ranks, on the GPU `device_id`, which the caller frees after NAME_close. After NAME_open or
     * a run that has failed it may have been aborted: then it must be neither used nor destroyed. To meet limit_seconds
     * it has to be non-blocking. */
    void* nccl_communicator;

    /* NCCL, by name or path. NULL: what the variable LUMINAL_NCCL names, else libnccl.so.2. */
    const char* nccl_library;
} lm_options;

#ifdef __cplusplus
}
#endif

#endif /* LM_ABI_H */
