/* Runs the exported model "kept" from C, on any system: twice, and once more after its state was reset. argv: the file
 * of its input x, the file that three outputs are written to, one after another, the elements of x. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kept.h"

int main(int argc, char** argv) {
    lm_library* library = NULL;
    lm_context* context = NULL;
    char message[1024] = "";
    const int64_t shape[1] = {argc == 4 ? atoll(argv[3]) : 0};
    const size_t count = (size_t)shape[0];
    float* const x = malloc(count * sizeof(float));
    float* const y = malloc(count * sizeof(float));
    lm_value in, out;
    FILE* file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL || fread(x, sizeof(float), count, file) != count) return 2;
    fclose(file);
    memset(&in, 0, sizeof(in));
    memset(&out, 0, sizeof(out));
    in.data = x, in.dtype = LM_FLOAT32, in.rank = 1, in.shape = shape;
    out.data = y, out.dtype = LM_FLOAT32, out.rank = 1, out.shape = shape;
    file = fopen(argv[2], "wb");
    if (file == NULL) return 2;
    int32_t status = kept_open(NULL, &library);
    if (status == LM_OK) status = kept_context_create(library, &context);
    for (int k = 0; k < 3 && status == LM_OK; ++k) {
        if (k == 2) status = kept_reset(context);
        if (status == LM_OK) status = kept_run(context, KEPT_ENTRY_MAIN, &in, &out, NULL);
        if (status == LM_OK && fwrite(y, sizeof(float), count, file) != count) return 2;
    }
    if (status != LM_OK) {
        kept_last_error(library, context, message, sizeof(message));
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    kept_context_destroy(context);
    return fclose(file) != 0 || kept_close(library) != LM_OK;
}
