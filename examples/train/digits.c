/* Trains the network that digits.py exported, without Python: on a file of pictures, with checkpoints.
 *
 *     cc -O2 digits.c -I FOLDER -L FOLDER -ldigits -Wl,-rpath,FOLDER -o train
 *     ./train FOLDER/digits.data CHECKPOINT [EPOCHS]
 *
 * After each epoch all states are saved. If the program is stopped, it goes on from the last checkpoint. The file of
 * data has two int64, how many pictures there are and how many of the first are for the test, then the pictures, float32
 * [8, 8] each, and an int64 for the digit of each. */
#include "digits_checkpoint.h"

#include <time.h>

enum { PIXELS = 64, BATCH = 64, CLASSES = 10, AT_ONCE = 360 };

static lm_library* library;
static lm_context* context;

static void check(int32_t status, const char* what) {
    char message[512];
    if (status == LM_OK) return;
    digits_last_error(library, context, message, sizeof message);
    fprintf(stderr, "%s: %s\n", what, message);
    exit(1);
}

static void* array(size_t count, size_t size) {
    void* data = malloc(count * size);
    if (data == NULL) fprintf(stderr, "no memory\n"), exit(1);
    return data;
}

static lm_value value(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
    lm_value made = {.data = data, .dtype = dtype, .rank = rank, .shape = shape};
    return made;
}

static uint64_t random_state = 88172645463325252u; /* of Marsaglia's xorshift */

static uint64_t drawn(uint64_t below) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return random_state % below;
}

static float step(const float* pictures, const int64_t* labels, const int64_t* rows, double rate) {
    static float batch[BATCH * PIXELS];
    static int64_t targets[BATCH];
    for (int k = 0; k < BATCH; k++) {
        memcpy(batch + k * PIXELS, pictures + rows[k] * PIXELS, sizeof(float) * PIXELS);
        targets[k] = labels[rows[k]];
    }
    const int64_t shape[4] = {BATCH, 1, 8, 8}, count = BATCH, groups = 1;
    float loss = 0;
    const lm_value in[3] = {value(batch, LM_FLOAT32, 4, shape), value(targets, LM_INT64, 1, &count),
                            value(&rate, LM_FLOAT64, 1, &groups)};
    lm_value out = value(&loss, LM_FLOAT32, 0, NULL);
    check(digits_run(context, DIGITS_ENTRY_TRAIN, in, &out, NULL), "a step");
    return loss;
}

static double accuracy(float* pictures, const int64_t* labels, int64_t count) {
    static float scores[AT_ONCE * CLASSES];
    int64_t right = 0;
    for (int64_t first = 0; first < count; first += AT_ONCE) {
        const int64_t now = count - first < AT_ONCE ? count - first : AT_ONCE;
        const int64_t shape[4] = {now, 1, 8, 8}, result[2] = {now, CLASSES};
        const lm_value in = value(pictures + first * PIXELS, LM_FLOAT32, 4, shape);
        lm_value out = value(scores, LM_FLOAT32, 2, result);
        check(digits_run(context, DIGITS_ENTRY_EVAL, &in, &out, NULL), "an evaluation");
        for (int64_t k = 0; k < now; k++) {
            int best = 0;
            for (int c = 1; c < CLASSES; c++) best = scores[k * CLASSES + c] > scores[k * CLASSES + best] ? c : best;
            right += best == labels[first + k];
        }
    }
    return (double)right / (double)count;
}

int main(int argc, char** argv) {
    int64_t size[2];
    char message[512];
    if (argc < 3) return fprintf(stderr, "usage: %s DATA CHECKPOINT [EPOCHS]\n", argv[0]), 2;
    const int64_t epochs = argc > 3 ? atoi(argv[3]) : 12;
    FILE* file = fopen(argv[1], "rb");
    if (file == NULL || fread(size, sizeof size, 1, file) != 1) return fprintf(stderr, "cannot read %s\n", argv[1]), 1;
    float* pictures = array((size_t)size[0] * PIXELS, sizeof *pictures);
    int64_t* labels = array((size_t)size[0], sizeof *labels);
    const size_t pixels = (size_t)size[0] * PIXELS, count = (size_t)size[0];
    if (fread(pictures, sizeof *pictures, pixels, file) != pixels || fread(labels, sizeof *labels, count, file) != count) {
        return fprintf(stderr, "%s is cut\n", argv[1]), 1;
    }
    fclose(file);

    check(digits_open(NULL, &library), "digits_open");
    check(digits_context_create(library, &context), "digits_context_create");
    const int64_t tested = size[1], trained = size[0] - tested, batches = trained / BATCH, steps = epochs * batches;
    int64_t done = 0;
    if (access(argv[2], F_OK) == 0) {
        if (digits_load(context, argv[2], message, sizeof message) != LM_OK) return fprintf(stderr, "%s\n", message), 1;
        check(digits_get_named(context, "optimizer.step", &done, sizeof done), "optimizer.step");
        printf("going on from step %lld\n", (long long)done);
    }
    int64_t* rows = array((size_t)trained, sizeof *rows);
    const int64_t began = done;
    const time_t start = time(NULL);
    for (int64_t epoch = done / batches; epoch < epochs; epoch++) {
        for (int64_t k = 0; k < trained; k++) rows[k] = tested + k;
        for (int64_t k = trained - 1; k > 0; k--) {
            const int64_t other = (int64_t)drawn((uint64_t)k + 1), kept = rows[k];
            rows[k] = rows[other], rows[other] = kept;
        }
        const double rate = 3e-3 * (1 - (double)epoch / (double)epochs);
        float loss = 0;
        for (int64_t k = 0; k < batches; k++, done++) loss = step(pictures, labels, rows + k * BATCH, rate);
        const double left = difftime(time(NULL), start) / (double)(done - began) * (double)(steps - done);
        printf("step %lld of %lld   loss %.4f   %.0f s left\n", (long long)done, (long long)steps, loss, left);
        if (digits_save(context, argv[2], message, sizeof message) != LM_OK) return fprintf(stderr, "%s\n", message), 1;
    }
    printf("test accuracy %.1f%%\n", 100 * accuracy(pictures, labels, tested));
    digits_context_destroy(context);
    check(digits_close(library), "digits_close");
    free(rows), free(labels), free(pictures);
    return 0;
}
