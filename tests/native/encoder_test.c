/* Runs the exported model encoder_a from C, as a user's program would. argv[1]: the weights file. Reads from standard
 * input the batch, the length, batch*length ids and as many weights; prints every output, one number a line. Blocks are
 * of the exact sizes, so that a sanitizer sees any access beyond them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encoder_a.h"

enum { INPUTS = 2, OUTPUTS = 3, MAX_RANK = 3 };

static lm_library* library;
static lm_context* context;

static void expect(int32_t status, int32_t wanted) {
    char message[512] = "";
    if (status == wanted) return;
    encoder_a_last_error(library, context, message, sizeof(message));
    fprintf(stderr, "status %d, expected %d: %s\n", status, wanted, message);
    exit(1);
}

static size_t count(const int64_t* shape, int32_t rank) {
    size_t elements = 1;
    int32_t axis;
    for (axis = 0; axis < rank; ++axis) elements *= (size_t)shape[axis];
    return elements;
}

int main(int argc, char** argv) {
    static const int32_t dtypes[OUTPUTS] = {LM_FLOAT32, LM_FLOAT32, LM_INT64};
    static const int32_t ranks[OUTPUTS] = {3, 2, 1};
    lm_options options;
    lm_value in[INPUTS], out[OUTPUTS];
    int64_t shape[2], shapes[OUTPUTS][MAX_RANK];
    int64_t* ids;
    float* weight;
    size_t i, elements, bytes;
    int32_t k;
    if (argc != 2 || encoder_a_abi_version() != LM_ABI_VERSION) return 2;
    if (scanf("%" SCNd64 " %" SCNd64, &shape[0], &shape[1]) != 2) return 2;
    elements = count(shape, 2);
    ids = malloc(elements * sizeof(*ids));
    weight = malloc(elements * sizeof(*weight));
    for (i = 0; i < elements; ++i)
        if (scanf("%" SCNd64, &ids[i]) != 1) return 2;
    for (i = 0; i < elements; ++i)
        if (scanf("%f", &weight[i]) != 1) return 2;

    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.weights_path = argv[1];
    options.threads = 2;
    expect(encoder_a_open(&options, &library), LM_OK);
    expect(encoder_a_context_create(library, &context), LM_OK);
    expect(encoder_a_workspace_size(library, ENCODER_A_ENTRY_MAIN, shape, &bytes), LM_OK);

    memset(in, 0, sizeof(in));
    memset(out, 0, sizeof(out));
    in[0].data = ids;
    in[0].dtype = LM_INT64;
    in[1].data = weight;
    in[1].dtype = LM_FLOAT32;
    for (k = 0; k < INPUTS; ++k) {
        in[k].rank = 2;
        in[k].shape = shape;
    }
    for (k = 0; k < OUTPUTS; ++k) {
        expect(encoder_a_output_shape(context, ENCODER_A_ENTRY_MAIN, in, k, shapes[k]), LM_OK);
        out[k].dtype = dtypes[k];
        out[k].rank = ranks[k];
        out[k].shape = shapes[k];
        out[k].data = malloc(count(shapes[k], ranks[k]) * (dtypes[k] == LM_INT64 ? sizeof(int64_t) : sizeof(float)));
    }

    /* A failed run leaves the context as good as new. */
    ids[elements - 1] += 1000000;
    expect(encoder_a_run(context, ENCODER_A_ENTRY_MAIN, in, out, NULL), LM_INDEX_OUT_OF_RANGE);
    ids[elements - 1] -= 1000000;
    in[1].dtype = LM_FLOAT64;
    expect(encoder_a_run(context, ENCODER_A_ENTRY_MAIN, in, out, NULL), LM_INVALID_ARGUMENT);
    in[1].dtype = LM_FLOAT32;
    expect(encoder_a_run(context, ENCODER_A_ENTRY_MAIN, in, out, NULL), LM_OK);

    for (k = 0; k < OUTPUTS; ++k) {
        for (i = 0; i < count(shapes[k], ranks[k]); ++i) {
            if (dtypes[k] == LM_INT64)
                printf("%" PRId64 "\n", ((const int64_t*)out[k].data)[i]);
            else
                printf("%.9g\n", ((const float*)out[k].data)[i]);
        }
        free(out[k].data);
    }
    encoder_a_context_destroy(context);
    expect(encoder_a_close(library), LM_OK);
    free(ids);
    free(weight);
    return 0;
}
