/* Runs the exported model "images" from C, on any system. argv: the file of one batch of images, the file that the
 * output is written to, the batch. The weights lie beside the library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "images.h"

enum { CHANNELS = 3, SIDE = 16, CLASSES = 10 };

int main(int argc, char** argv) {
    lm_library* library = NULL;
    lm_context* context = NULL;
    char message[1024] = "";
    const int64_t batch = argc == 4 ? atoll(argv[3]) : 0;
    const int64_t in_shape[4] = {batch, CHANNELS, SIDE, SIDE};
    const int64_t out_shape[2] = {batch, CLASSES};
    const size_t in_count = (size_t)batch * CHANNELS * SIDE * SIDE, out_count = (size_t)batch * CLASSES;
    float* const x = malloc(in_count * sizeof(float));
    float* const y = malloc(out_count * sizeof(float));
    lm_value in, out;
    lm_options options;
    FILE* file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL || fread(x, sizeof(float), in_count, file) != in_count) return 2;
    fclose(file);
    memset(&in, 0, sizeof(in));
    memset(&out, 0, sizeof(out));
    memset(&options, 0, sizeof(options));
    in.data = x, in.dtype = LM_FLOAT32, in.rank = 4, in.shape = in_shape;
    out.data = y, out.dtype = LM_FLOAT32, out.rank = 2, out.shape = out_shape;
    options.size = sizeof(options);
    options.threads = 2;
    if (images_open(&options, &library) != LM_OK || images_context_create(library, &context) != LM_OK ||
        images_run(context, IMAGES_ENTRY_MAIN, &in, &out, NULL) != LM_OK) {
        images_last_error(library, context, message, sizeof(message));
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    file = fopen(argv[2], "wb");
    if (file == NULL || fwrite(y, sizeof(float), out_count, file) != out_count || fclose(file) != 0) return 2;
    images_context_destroy(context);
    return images_close(library);
}
