/* A stand-in for MPI that counts what goes through it: messages that are sent and their bytes, written to the file that
 * COUNTED names when MPI ends. Everything else is the real library's, which REAL_MPI names. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static long long messages, bytes;

static void* real(const char* name) {
    static void* library;
    if (library == NULL) library = dlopen(getenv("REAL_MPI"), RTLD_NOW | RTLD_GLOBAL);
    return dlsym(library, name);
}

int MPI_Abi_get_version(int* major, int* minor) {
    return ((int (*)(int*, int*))real("MPI_Abi_get_version"))(major, minor);
}
int MPI_Initialized(int* flag) { return ((int (*)(int*))real("MPI_Initialized"))(flag); }
int MPI_Finalized(int* flag) { return ((int (*)(int*))real("MPI_Finalized"))(flag); }
int MPI_Init_thread(int* a, char*** b, int c, int* d) {
    return ((int (*)(int*, char***, int, int*))real("MPI_Init_thread"))(a, b, c, d);
}
int MPI_Comm_idup(void* a, void** b, void** c) {
    return ((int (*)(void*, void**, void**))real("MPI_Comm_idup"))(a, b, c);
}
int MPI_Comm_rank(void* a, int* b) { return ((int (*)(void*, int*))real("MPI_Comm_rank"))(a, b); }
int MPI_Comm_size(void* a, int* b) { return ((int (*)(void*, int*))real("MPI_Comm_size"))(a, b); }
int MPI_Comm_set_errhandler(void* a, void* b) {
    return ((int (*)(void*, void*))real("MPI_Comm_set_errhandler"))(a, b);
}
int MPI_Irecv(void* data, int count, void* type, int from, int tag, void* comm, void** request) {
    return ((int (*)(void*, int, void*, int, int, void*, void**))real("MPI_Irecv"))(data, count, type, from, tag, comm,
                                                                                    request);
}
int MPI_Isend(const void* data, int count, void* type, int to, int tag, void* comm, void** request) {
    ++messages;
    bytes += count;
    return ((int (*)(const void*, int, void*, int, int, void*, void**))real("MPI_Isend"))(data, count, type, to, tag,
                                                                                          comm, request);
}
int MPI_Test(void** a, int* b, void* c) { return ((int (*)(void**, int*, void*))real("MPI_Test"))(a, b, c); }
int MPI_Error_string(int a, char* b, int* c) { return ((int (*)(int, char*, int*))real("MPI_Error_string"))(a, b, c); }
int MPI_Finalize(void) {
    FILE* const file = fopen(getenv("COUNTED"), "a");
    fprintf(file, "%lld %lld\n", messages, bytes);
    fclose(file);
    return ((int (*)(void))real("MPI_Finalize"))();
}
