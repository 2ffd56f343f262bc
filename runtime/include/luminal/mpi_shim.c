/* The functions of MPI that libraries of luminal need, by the types of the MPI 5 ABI, over an older MPI. Build it with
 * that MPI's own compiler, and name the library when models are opened:
 *
 *   mpicc -shared -fPIC -O2 luminal_mpi_shim.c -o libluminal_mpi_shim.so
 *   LUMINAL_MPI=$PWD/libluminal_mpi_shim.so mpirun -n 2 ...
 */
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#define WORLD 0x101
#define SELF 0x102

/* Handles are pointers in the ABI; here they are pointers or integers. Predefined ones have numbers there. */
static MPI_Comm comm_of(void* handle) {
    const intptr_t number = (intptr_t)handle;
    return number == WORLD ? MPI_COMM_WORLD : number == SELF ? MPI_COMM_SELF : (MPI_Comm)number;
}

const int luminal_mpi_shim = 1;

int luminal_MPI_Initialized(int* flag) { return MPI_Initialized(flag); }
int luminal_MPI_Finalized(int* flag) { return MPI_Finalized(flag); }
int luminal_MPI_Finalize(void) { return MPI_Finalize(); }

int luminal_MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
    (void)required; /* MPI_THREAD_SERIALIZED, which has another number in each MPI */
    return MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, provided);
}

/* MPI writes the copy when the request has ended: into the first bytes of a pointer, where it is as large or less. */
int luminal_MPI_Comm_idup(void* comm, void** copy, void** request) {
    MPI_Request made = MPI_REQUEST_NULL;
    int code = 0;
    *copy = NULL;
    code = MPI_Comm_idup(comm_of(comm), (MPI_Comm*)copy, &made);
    *request = (void*)(intptr_t)made;
    return code;
}

int luminal_MPI_Comm_rank(void* comm, int* rank) { return MPI_Comm_rank(comm_of(comm), rank); }
int luminal_MPI_Comm_size(void* comm, int* size) { return MPI_Comm_size(comm_of(comm), size); }

int luminal_MPI_Comm_set_errhandler(void* comm, void* handler) {
    (void)handler; /* errors are returned: no other one is asked for */
    return MPI_Comm_set_errhandler(comm_of(comm), MPI_ERRORS_RETURN);
}

int luminal_MPI_Isend(const void* data, int count, void* type, int to, int tag, void* comm, void** request) {
    MPI_Request made = MPI_REQUEST_NULL;
    const int code = MPI_Isend(data, count, MPI_BYTE, to, tag, comm_of(comm), &made);
    (void)type; /* BYTE */
    *request = (void*)(intptr_t)made;
    return code;
}

int luminal_MPI_Irecv(void* data, int count, void* type, int from, int tag, void* comm, void** request) {
    MPI_Request made = MPI_REQUEST_NULL;
    const int code = MPI_Irecv(data, count, MPI_BYTE, from, tag, comm_of(comm), &made);
    (void)type;
    *request = (void*)(intptr_t)made;
    return code;
}

int luminal_MPI_Test(void** request, int* flag, void* status) {
    MPI_Request open = (MPI_Request)(intptr_t)*request;
    const int code = MPI_Test(&open, flag, MPI_STATUS_IGNORE);
    (void)status; /* it is ignored */
    *request = (void*)(intptr_t)open;
    return code;
}

int luminal_MPI_Error_string(int code, char* text, int* length) {
    char own[MPI_MAX_ERROR_STRING + 1] = "";
    int size = 0, i = 0;
    const int failed = MPI_Error_string(code, own, &size);
    for (; i < size && i < 511; ++i) text[i] = own[i];
    text[i] = '\0';
    *length = i;
    return failed;
}
