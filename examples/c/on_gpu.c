/* Similarities of sentences as in main.c, with tokens and embeddings in the memory of an NVIDIA GPU.
 *
 *     cc -std=c99 on_gpu.c -I FOLDER -L FOLDER -lminilm -I CUDA/include -lcuda -Wl,-rpath,FOLDER -o similarities
 *     ./similarities < TOKENS
 *
 * FOLDER is where the model was exported to, compiled for a target such as cuda:sm_90, CUDA the toolkit's folder. TOKENS
 * and the output are those of main.c, which runs such a library too, with values of the host that the library copies.
 */
#include <cuda.h>

#include "similarities.h"

static CUstream stream;

/* Ends the program if a call of the driver did not succeed, with its message. */
static void cuda(CUresult result, const char* call) {
    const char* text = "an unknown error";
    if (result == CUDA_SUCCESS) return;
    cuGetErrorString(result, &text);
    fprintf(stderr, "%s: %s\n", call, text);
    exit(1);
}

/* A value on the GPU. The driver aligns memory as the library needs it. */
static lm_value on_gpu(int32_t dtype, size_t size, int32_t rank, const int64_t* shape) {
    CUdeviceptr address;
    for (int32_t axis = 0; axis < rank; axis++) size *= (size_t)shape[axis];
    cuda(cuMemAlloc(&address, size), "cuMemAlloc");
    return (lm_value){.data = (void*)address, .dtype = dtype, .rank = rank, .shape = shape, .device = LM_CUDA};
}

static lm_value tokens_on_gpu(const int64_t* tokens, const int64_t shape[2]) {
    const lm_value value = on_gpu(LM_INT64, sizeof *tokens, 2, shape);
    const size_t bytes = (size_t)(shape[0] * shape[1]) * sizeof *tokens;
    cuda(cuMemcpyHtoDAsync((CUdeviceptr)value.data, tokens, bytes, stream), "cuMemcpyHtoDAsync");
    return value;
}

int main(void) {
    const int64_t batch = number(), length = number();
    const int64_t shape[2] = {batch, length};
    int64_t *ids = array(batch * length, sizeof *ids), *mask = array(batch * length, sizeof *mask);
    int64_t* types = array(batch * length, sizeof *types); /* all zero: one kind of text */
    for (int64_t i = 0; i < batch * length; i++) ids[i] = number();
    for (int64_t i = 0; i < batch * length; i++) mask[i] = number();

    /* The library works in the context that all programs of a process share, and on any stream of it. */
    CUdevice device;
    CUcontext shared;
    cuda(cuInit(0), "cuInit");
    cuda(cuDeviceGet(&device, 0), "cuDeviceGet");
    cuda(cuDevicePrimaryCtxRetain(&shared, device), "cuDevicePrimaryCtxRetain");
    cuda(cuCtxPushCurrent(shared), "cuCtxPushCurrent");
    cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(minilm_open(NULL, &library), "minilm_open");
    check(minilm_context_create(library, &context), "minilm_context_create");

    const lm_value in[3] = {tokens_on_gpu(ids, shape), tokens_on_gpu(mask, shape), tokens_on_gpu(types, shape)};
    int64_t every[3], pooled[2];
    check(minilm_output_shape(context, MINILM_ENTRY_MAIN, in, 0, every), "minilm_output_shape");
    check(minilm_output_shape(context, MINILM_ENTRY_MAIN, in, 1, pooled), "minilm_output_shape");
    lm_value out[2] = {
        on_gpu(LM_FLOAT32, sizeof(float), 3, every),
        on_gpu(LM_FLOAT32, sizeof(float), 2, pooled),
    };
    check(minilm_run(context, MINILM_ENTRY_MAIN, in, out, stream), "minilm_run");

    const int64_t width = pooled[1];
    float* embeddings = array(batch * width, sizeof *embeddings);
    const size_t bytes = (size_t)(batch * width) * sizeof *embeddings;
    cuda(cuMemcpyDtoHAsync(embeddings, (CUdeviceptr)out[1].data, bytes, stream), "cuMemcpyDtoHAsync");
    cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");

    print_similarities(embeddings, batch, width);

    for (int i = 0; i < 3; i++) cuda(cuMemFree((CUdeviceptr)in[i].data), "cuMemFree");
    for (int i = 0; i < 2; i++) cuda(cuMemFree((CUdeviceptr)out[i].data), "cuMemFree");
    minilm_context_destroy(context);
    check(minilm_close(library), "minilm_close");
    cuda(cuStreamDestroy(stream), "cuStreamDestroy");
    cuda(cuCtxPopCurrent(&shared), "cuCtxPopCurrent");
    cuda(cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
    free(embeddings), free(types), free(mask), free(ids);
    return 0;
}
