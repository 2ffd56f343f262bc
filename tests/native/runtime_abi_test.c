/* Calls every exported function of the example library from C99, with good and with bad arguments. argv[1]: the weights
 * file. Prints what failed; returns 0 if nothing did. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "example_a.h"

static int failures = 0;

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "line %d: %s is false\n", __LINE__, #condition); \
            ++failures;                                                     \
        }                                                                   \
    } while (0)

/* The last message of a context, or of the library if the context is NULL, contains this text. */
static void expect_error(const lm_library* library, const lm_context* context, const char* text, int line) {
    char message[2048];
    const size_t length = example_a_last_error(library, context, message, sizeof(message));
    if (length != strlen(message) || strstr(message, text) == NULL) {
        fprintf(stderr, "line %d: expected \"%s\" in \"%s\"\n", line, text, message);
        ++failures;
    }
}
#define EXPECT_REFUSED(call, text)                     \
    do {                                               \
        CHECK((call) == LM_INVALID_ARGUMENT);          \
        expect_error(library, context, text, __LINE__); \
    } while (0)

static lm_value value(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
    lm_value result;
    memset(&result, 0, sizeof(result));
    result.data = data;
    result.dtype = dtype;
    result.rank = rank;
    result.shape = shape;
    return result;
}

static lm_options defaults(const char* weights) {
    lm_options options;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.weights_path = weights;
    options.threads = 2;
    return options;
}

/* What the callbacks of a test have done. */
typedef struct counters {
    int allocated, deallocated, loops, provided;
    int refuse_memory_after; /* allocations before memory runs out; negative: never */
    void* image;
    size_t image_bytes;
    int step_count;
    int32_t steps[4]; /* what on_step was told first */
} counters;

static void* count_allocate(void* user, size_t bytes, size_t alignment) {
    counters* counts = (counters*)user;
    void* memory = NULL;
    if (counts->refuse_memory_after >= 0 && counts->allocated >= counts->refuse_memory_after) return NULL;
    ++counts->allocated;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void count_deallocate(void* user, void* memory, size_t bytes) {
    (void)bytes;
    ++((counters*)user)->deallocated;
    free(memory);
}

static void backwards_for(void* user, int64_t tasks, lm_task_range body, void* argument) {
    ++((counters*)user)->loops;
    for (int64_t i = tasks - 1; i >= 0; --i) body(argument, i, i + 1);
}

static void note_step(void* user, int32_t step) {
    counters* counts = (counters*)user;
    if (counts->step_count < 4) counts->steps[counts->step_count] = step;
    ++counts->step_count;
}

static int32_t provide(void* user, const void** image, size_t* bytes) {
    counters* counts = (counters*)user;
    ++counts->provided;
    *image = counts->image;
    *bytes = counts->image_bytes;
    return counts->image == NULL ? 7 : 0;
}

static void* read_file(const char* path, size_t* bytes) {
    void* image = NULL;
    FILE* file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) exit(2);
    *bytes = (size_t)ftell(file);
    rewind(file);
    if (posix_memalign(&image, 64, *bytes) != 0 || fread(image, 1, *bytes, file) != *bytes) exit(2);
    fclose(file);
    return image;
}

/* Runs "embed" on three ids; the result. */
static int32_t embed(lm_context* context, int64_t first, float* rows) {
    int64_t ids[3] = {0, 2, 15};
    float scale = 2;
    const int64_t shape[1] = {3};
    const int64_t out_shape[2] = {3, 8};
    const lm_value in[2] = {value(ids, LM_INT64, 1, shape), value(&scale, LM_FLOAT32, 0, NULL)};
    lm_value out[1] = {value(rows, LM_FLOAT32, 2, out_shape)};
    ids[0] = first;
    return example_a_run(context, EXAMPLE_A_ENTRY_EMBED, in, out, NULL);
}

static void test_good_calls(lm_library* library, lm_context* context, const float* table) {
    float rows[24];
    CHECK(example_a_abi_version() == LM_ABI_VERSION);
    CHECK(strstr(example_a_metadata_json(), "\"name\":\"example_a\"") != NULL);
    CHECK(embed(context, 1, rows) == LM_OK);
    for (int i = 0; i < 8; ++i) CHECK(rows[i] == 2 * table[8 + i] && rows[16 + i] == 2 * table[120 + i]);

    /* Strides of axes with one or no elements say nothing, and a tensor without elements needs no data. */
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, scores[16], joined[8];
    const int64_t x_shape[2] = {1, 8}, x_strides[2] = {77, 1}, tail_shape[1] = {0}, tail_strides[1] = {5};
    const int64_t scores_shape[2] = {1, 16}, joined_shape[1] = {8};
    lm_value in[2] = {value(x, LM_FLOAT32, 2, x_shape), value(NULL, LM_FLOAT32, 1, tail_shape)};
    lm_value out[2] = {value(scores, LM_FLOAT32, 2, scores_shape), value(joined, LM_FLOAT32, 1, joined_shape)};
    in[0].strides = x_strides;
    in[1].strides = tail_strides;
    CHECK(example_a_run(context, EXAMPLE_A_ENTRY_SCORE, in, out, NULL) == LM_OK);
    CHECK(memcmp(x, joined, sizeof(x)) == 0);

    int64_t shape[2] = {-1, -1};
    CHECK(example_a_output_shape(context, EXAMPLE_A_ENTRY_SCORE, in, 0, shape) == LM_OK);
    CHECK(shape[0] == 1 && shape[1] == 16);
    CHECK(example_a_output_shape(context, EXAMPLE_A_ENTRY_SCORE, in, 1, shape) == LM_OK && shape[0] == 8);

    const int64_t dims[EXAMPLE_A_DIMS] = {64, 4};
    size_t bytes = 1;
    CHECK(example_a_workspace_size(library, EXAMPLE_A_ENTRY_EMBED, dims, &bytes) == LM_OK && bytes == 0);
    CHECK(example_a_workspace_size(library, EXAMPLE_A_ENTRY_SCORE, dims, &bytes) == LM_OK && bytes == 2048);
}

static void test_bad_values(lm_library* library, lm_context* context) {
    int64_t ids[3] = {0, 1, 2};
    float scale = 1, rows[24];
    int64_t shape[1] = {3}, out_shape[2] = {3, 8}, strides[1] = {2}, out_strides[2] = {1, 3};
    const lm_value good_in[2] = {value(ids, LM_INT64, 1, shape), value(&scale, LM_FLOAT32, 0, NULL)};
    const lm_value good_out[1] = {value(rows, LM_FLOAT32, 2, out_shape)};
    lm_value in[2], out[1];
    const int32_t entry = EXAMPLE_A_ENTRY_EMBED;
    size_t bytes = 0;
    int64_t result[2];

#define WITH(change, text)                                                        \
    do {                                                                          \
        memcpy(in, good_in, sizeof(in));                                          \
        memcpy(out, good_out, sizeof(out));                                       \
        change;                                                                   \
        EXPECT_REFUSED(example_a_run(context, entry, in, out, NULL), text);       \
    } while (0)
    WITH(in[0].dtype = LM_INT32, "input \"ids\" has element type int32, expected int64");
    WITH(in[0].dtype = 99, "input \"ids\" has element type unknown (99), expected int64");
    WITH(in[0].rank = 2, "input \"ids\" has rank 2, expected rank 1: [rows]");
    WITH(in[0].rank = -1, "input \"ids\" has rank -1");
    WITH(in[0].shape = NULL, "input \"ids\" has no shape");
    WITH(in[0].data = NULL, "input \"ids\" has no data");
    WITH(in[0].data = (char*)ids + 1, "input \"ids\" is misaligned");
    WITH(in[0].device = 1, "input \"ids\" lies on device 1");
    WITH(in[0].strides = strides, "input \"ids\" is not contiguous");
    WITH(in[1].data = NULL, "input \"scale\" has no data");
    WITH(out[0].data = NULL, "output \"embedding\" has no data");
    WITH(out[0].dtype = LM_FLOAT64, "output \"embedding\" has element type float64");
    WITH(out[0].rank = 1, "output \"embedding\" has rank 1, expected rank 2: [rows, 8]");
    WITH(out[0].strides = out_strides, "output \"embedding\" is not contiguous");
#undef WITH

    shape[0] = 4;
    EXPECT_REFUSED(example_a_run(context, entry, good_in, (lm_value*)good_out, NULL),
                   "output \"embedding\", axis 0, has size 3, expected 4");
    shape[0] = 65;
    EXPECT_REFUSED(example_a_run(context, entry, good_in, (lm_value*)good_out, NULL),
                   "input \"ids\", axis 0, has size 65, outside the bounds 1..64 of \"rows\"");
    shape[0] = -3;
    EXPECT_REFUSED(example_a_run(context, entry, good_in, (lm_value*)good_out, NULL), "negative size, -3");
    shape[0] = 3;

    memcpy(out, good_out, sizeof(out));
    EXPECT_REFUSED(example_a_run(context, -1, good_in, out, NULL), "entry -1 does not exist: the model has 3");
    EXPECT_REFUSED(example_a_run(context, 3, good_in, out, NULL), "entry 3 does not exist");
    EXPECT_REFUSED(example_a_run(context, entry, NULL, out, NULL), "null pointer");
    EXPECT_REFUSED(example_a_run(context, entry, good_in, NULL, NULL), "null pointer");
    EXPECT_REFUSED(example_a_run(context, entry, good_in, out, &bytes), "a stream was given");
    EXPECT_REFUSED(example_a_output_shape(context, 3, good_in, 0, result), "entry 3 does not exist");
    EXPECT_REFUSED(example_a_output_shape(context, entry, good_in, 1, result), "output 1 does not exist");
    EXPECT_REFUSED(example_a_output_shape(context, entry, NULL, 0, result), "null pointer");
    EXPECT_REFUSED(example_a_output_shape(context, entry, good_in, 0, NULL), "null pointer");
    CHECK(example_a_run(NULL, entry, good_in, out, NULL) == LM_INVALID_ARGUMENT);
    CHECK(example_a_output_shape(NULL, entry, good_in, 0, result) == LM_INVALID_ARGUMENT);

    /* An entry whose inputs share a dim: the second must agree with the first. */
    uint16_t halves[3] = {0}, brains[3] = {0};
    unsigned char chosen[3] = {0};
    const int64_t three[1] = {3}, two[1] = {2};
    const lm_value negate_in[3] = {value(halves, LM_FLOAT16, 1, three), value(brains, LM_BFLOAT16, 1, two),
                                   value(chosen, LM_BOOL, 1, three)};
    lm_value negate_out[2] = {value(halves, LM_FLOAT16, 1, three), value(brains, LM_BFLOAT16, 1, three)};
    EXPECT_REFUSED(example_a_run(context, EXAMPLE_A_ENTRY_NEGATE, negate_in, negate_out, NULL),
                   "input \"brain\", axis 0, has size 2, but \"rows\" is 3 (from input \"half\", axis 0)");

    context = NULL; /* from here on the library has the message */
    const int64_t far[EXAMPLE_A_DIMS] = {64, 5};
    EXPECT_REFUSED(example_a_workspace_size(library, entry, far, &bytes), "\"tail\" is 5, outside its bounds 0..4");
    EXPECT_REFUSED(example_a_workspace_size(library, 9, far, &bytes), "entry 9 does not exist");
    EXPECT_REFUSED(example_a_workspace_size(library, entry, NULL, &bytes), "null pointer");
    EXPECT_REFUSED(example_a_workspace_size(library, entry, far, NULL), "null pointer");
    EXPECT_REFUSED(example_a_context_create(library, NULL), "no place");
    EXPECT_REFUSED(example_a_close(library), "still has contexts");
    CHECK(example_a_workspace_size(NULL, entry, far, &bytes) == LM_INVALID_ARGUMENT);
    CHECK(example_a_context_create(NULL, &context) == LM_INVALID_ARGUMENT && context == NULL);
    CHECK(example_a_set_weights(NULL, NULL, 0) == LM_INVALID_ARGUMENT);
    CHECK(example_a_open(NULL, NULL) == LM_INVALID_ARGUMENT);
    CHECK(example_a_close(NULL) == LM_OK);
    example_a_context_destroy(NULL);
}

static void test_index_out_of_range(lm_context* context) {
    float rows[24];
    CHECK(embed(context, 16, rows) == LM_INDEX_OUT_OF_RANGE);
    expect_error(NULL, context,
                 "an index is out of range in step 0 of entry \"embed\": Gather '/embeddings/Gather' (example.py:3)",
                 __LINE__);
    CHECK(embed(context, INT64_MIN, rows) == LM_INDEX_OUT_OF_RANGE);
    CHECK(embed(context, 3, rows) == LM_OK);
    expect_error(NULL, context, "", __LINE__);
}

/* Opening with these options fails with this status and message. */
static void expect_not_opened(const lm_options* options, int32_t status, const char* text, int line) {
    lm_library* library = NULL;
    lm_context* context = NULL;
    if (example_a_open(options, &library) != status) {
        fprintf(stderr, "line %d: expected status %d\n", line, status);
        ++failures;
    }
    expect_error(library, NULL, text, line);
    CHECK(example_a_context_create(library, &context) == LM_INVALID_ARGUMENT && context == NULL);
    expect_error(library, NULL, text, line); /* still why it was not opened */
    CHECK(example_a_close(library) == LM_OK);
}

static void test_options(const char* weights, const float* table) {
    counters counts = {0, 0, 0, 0, -1, NULL, 0, 0, {0, 0, 0, 0}};
    lm_library* library = NULL;
    lm_context* context = NULL;
    float rows[24];

    lm_options options = defaults(weights);
    options.size = 0;
    expect_not_opened(&options, LM_INVALID_ARGUMENT, "lm_options.size is 0", __LINE__);
    options = defaults(weights);
    options.threads = -1;
    expect_not_opened(&options, LM_INVALID_ARGUMENT, "lm_options.threads is -1", __LINE__);
    options = defaults(weights);
    options.allocate = count_allocate;
    expect_not_opened(&options, LM_INVALID_ARGUMENT, "both allocate and deallocate", __LINE__);
    options = defaults("/nowhere/example.weights");
    expect_not_opened(&options, LM_BAD_WEIGHTS, "cannot open the weights file \"/nowhere/example.weights\"", __LINE__);

    /* Options of an older and of a newer program. */
    struct {
        lm_options known;
        int64_t unknown;
    } newer = {defaults(weights), 0};
    newer.known.size = sizeof(newer);
    CHECK(example_a_open(&newer.known, &library) == LM_OK && example_a_close(library) == LM_OK);
    newer.unknown = 1;
    expect_not_opened(&newer.known, LM_INVALID_ARGUMENT, "this older library does not know", __LINE__);
    options = defaults(weights);
    options.size = offsetof(lm_options, weights_provider);
    CHECK(example_a_open(&options, &library) == LM_OK && example_a_close(library) == LM_OK);

    /* The caller's memory, weights and threads. */
    options = defaults(NULL);
    options.allocate = count_allocate;
    options.deallocate = count_deallocate;
    options.weights_provider = provide;
    options.parallel_for = backwards_for;
    options.on_step = note_step;
    options.user = &counts;
    expect_not_opened(&options, LM_BAD_WEIGHTS, "the weights provider returned 7", __LINE__);
    counts.image = read_file(weights, &counts.image_bytes);
    CHECK(example_a_open(&options, &library) == LM_OK);
    CHECK(example_a_context_create(library, &context) == LM_OK);
    CHECK(embed(context, 1, rows) == LM_OK && rows[7] == 2 * table[15]);
    CHECK(embed(context, 16, rows) == LM_INDEX_OUT_OF_RANGE);
    example_a_context_destroy(context);
    CHECK(counts.step_count == 4 && counts.steps[0] == 0 && counts.steps[1] == -1);
    CHECK(counts.steps[2] == 0 && counts.steps[3] == -1); /* a run that fails ends, too */
    CHECK(counts.provided == 2 && counts.loops == 2 && counts.allocated == 3 && counts.deallocated == 3);
    for (int enough = 0; enough < 3; ++enough) {
        counts.allocated = counts.deallocated = 0;
        counts.refuse_memory_after = enough;
        CHECK(example_a_context_create(library, &context) == LM_OUT_OF_MEMORY && context == NULL);
        expect_error(library, NULL, "no memory", __LINE__);
        CHECK(counts.deallocated == enough);
    }
    CHECK(example_a_close(library) == LM_OK);

    /* No weights at first. */
    options = defaults("");
    CHECK(example_a_open(&options, &library) == LM_OK);
    CHECK(example_a_context_create(library, &context) == LM_OK);
    CHECK(embed(context, 1, rows) == LM_BAD_WEIGHTS);
    expect_error(NULL, context, "has no weights yet: call example_a_set_weights first", __LINE__);
    CHECK(example_a_set_weights(library, NULL, 0) == LM_INVALID_ARGUMENT);
    CHECK(example_a_set_weights(library, (char*)counts.image + 8, 64) == LM_INVALID_ARGUMENT);
    CHECK(example_a_set_weights(library, counts.image, counts.image_bytes - 1) == LM_BAD_WEIGHTS);
    expect_error(library, NULL, "is truncated", __LINE__);
    CHECK(example_a_set_weights(library, counts.image, 3) == LM_BAD_WEIGHTS);
    CHECK(example_a_set_weights(library, counts.image, counts.image_bytes) == LM_OK);
    CHECK(embed(context, 1, rows) == LM_OK && rows[7] == 2 * table[15]);
    example_a_context_destroy(context);
    CHECK(example_a_close(library) == LM_OK);
    free(counts.image);
}

int main(int argc, char** argv) {
    lm_library* library = NULL;
    lm_context* context = NULL;
    size_t bytes = 0;
    if (argc != 2) return 2;
    void* image = read_file(argv[1], &bytes);
    const float* table = (const float*)((const char*)image + 4096);
    const lm_options options = defaults(argv[1]);
    CHECK(example_a_open(&options, &library) == LM_OK);
    CHECK(example_a_context_create(library, &context) == LM_OK);
    test_good_calls(library, context, table);
    test_bad_values(library, context);
    test_index_out_of_range(context);
    example_a_context_destroy(context);
    CHECK(example_a_close(library) == LM_OK);
    test_options(argv[1], table);
    free(image);
    return failures == 0 ? 0 : 1;
}
