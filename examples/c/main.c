/* Similarities of sentences, by a compiled all-MiniLM-L6-v2 and nothing else.
 *
 *     cc main.c -I FOLDER -L FOLDER -lminilm -Wl,-rpath,FOLDER -o similarities
 *     ./similarities < TOKENS
 *
 * FOLDER is where the model was exported to. TOKENS are numbers: the count of sentences, the length of the longest, the
 * token ids of every sentence, padded to that length, and as many mask entries, 1 for a token and 0 for padding. The
 * output is the matrix of cosine similarities.
 */
#include "similarities.h"

int main(void) {
    const int64_t batch = number(), length = number();
    const int64_t tokens[2] = {batch, length};
    int64_t *ids = array(batch * length, sizeof *ids), *mask = array(batch * length, sizeof *mask);
    int64_t* types = array(batch * length, sizeof *types); /* all zero: one kind of text */
    for (int64_t i = 0; i < batch * length; i++) ids[i] = number();
    for (int64_t i = 0; i < batch * length; i++) mask[i] = number();

    check(minilm_open(NULL, &library), "minilm_open");
    check(minilm_context_create(library, &context), "minilm_context_create");

    const lm_value in[3] = {
        {.data = ids, .dtype = LM_INT64, .rank = 2, .shape = tokens},
        {.data = mask, .dtype = LM_INT64, .rank = 2, .shape = tokens},
        {.data = types, .dtype = LM_INT64, .rank = 2, .shape = tokens},
    };
    int64_t every[3], pooled[2];
    check(minilm_output_shape(context, MINILM_ENTRY_MAIN, in, 0, every), "minilm_output_shape");
    check(minilm_output_shape(context, MINILM_ENTRY_MAIN, in, 1, pooled), "minilm_output_shape");
    const int64_t width = pooled[1];
    float* states = array(every[0] * every[1] * every[2], sizeof *states);
    float* embeddings = array(batch * width, sizeof *embeddings);
    lm_value out[2] = {
        {.data = states, .dtype = LM_FLOAT32, .rank = 3, .shape = every},
        {.data = embeddings, .dtype = LM_FLOAT32, .rank = 2, .shape = pooled},
    };
    check(minilm_run(context, MINILM_ENTRY_MAIN, in, out, NULL), "minilm_run");

    print_similarities(embeddings, batch, width);

    minilm_context_destroy(context);
    check(minilm_close(library), "minilm_close");
    free(embeddings), free(states), free(types), free(mask), free(ids);
    return 0;
}
