/* What main.c and on_gpu.c share: tokens from standard input, errors, and the output. */
#ifndef SIMILARITIES_H
#define SIMILARITIES_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "minilm.h"

static lm_library* library;
static lm_context* context;

/* Ends the program if a call of the library did not succeed, with its message. */
static void check(int32_t status, const char* call) {
    char message[512];
    if (status == LM_OK) return;
    minilm_last_error(library, context, message, sizeof message);
    fprintf(stderr, "%s: %s\n", call, message);
    exit(1);
}

static int64_t number(void) {
    int64_t value;
    if (scanf("%" SCNd64, &value) != 1) {
        fprintf(stderr, "expected a number\n");
        exit(1);
    }
    return value;
}

static void* array(int64_t count, size_t size) {
    void* memory = count > 0 ? calloc((size_t)count, size) : NULL;
    if (memory == NULL) {
        fprintf(stderr, "no memory for %" PRId64 " elements\n", count);
        exit(1);
    }
    return memory;
}

/* The products of embeddings with each other: their lengths are one. */
static void print_similarities(const float* embeddings, int64_t batch, int64_t width) {
    for (int64_t a = 0; a < batch; a++) {
        for (int64_t b = 0; b < batch; b++) {
            double product = 0;
            for (int64_t k = 0; k < width; k++) product += (double)embeddings[a * width + k] * embeddings[b * width + k];
            printf("%s%.7f", b ? " " : "", product);
        }
        printf("\n");
    }
}

#endif
