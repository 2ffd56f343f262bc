/* Generates text with a language model that luminal exported, and nothing else: always the likeliest token.
 *
 *     python -c "import luminal.llm; luminal.llm.compile('MODEL', name='decoder').export('FOLDER')"
 *     cc -O2 generate.c -I FOLDER -L FOLDER -ldecoder -Wl,-rpath,FOLDER -o generate
 *     ./generate FOLDER/tokenizer.json COUNT [END] < TOKENS
 *
 * TOKENS are the numbers of the prompt's tokens. The output is their text, and that of COUNT tokens more as they come,
 * fewer where the token END comes before. Texts of tokens are those of the table in tokenizer.json, whose pieces are
 * bytes, as of GPT-2, Llama 3 and Qwen, or SentencePiece's, as of Llama 2, Mistral and Gemma. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

enum { BLOCK = 64, INPUTS = 16 }; /* rows of the cache that are read at once; inputs of an entry, at most */

static lm_library* library;
static lm_context* context;

static void fail(const char* what, const char* which) {
    fprintf(stderr, "%s%s\n", what, which);
    exit(1);
}

/* Ends the program if a call of the library did not succeed, with its message. */
static void check(int32_t status, const char* call) {
    char message[512];
    if (status == LM_OK) return;
    decoder_last_error(library, context, message, sizeof message);
    fprintf(stderr, "%s: %s\n", call, message);
    exit(1);
}

static void* grown(void* memory, size_t bytes) {
    memory = realloc(memory, bytes ? bytes : 1);
    if (memory == NULL) fail("no memory", "");
    return memory;
}

/* ---- JSON, read from where `at` points to ------------------------------------------------------------------------ */

static const char* at;

static char next(void) {
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') at++;
    return *at;
}

static void expect(char character) {
    const char which[2] = {character, 0};
    if (next() != character) fail("damaged JSON: expected ", which);
    at++;
}

static unsigned hexadecimal(void) {
    char digits[5] = {0};
    for (int k = 0; k < 4 && at[k]; k++) digits[k] = at[k];
    if (strlen(digits) < 4) fail("damaged JSON: expected four digits", "");
    at += 4;
    return (unsigned)strtoul(digits, NULL, 16);
}

static char* put_character(char* to, unsigned c) {
    if (c < 0x80) {
        *to++ = (char)c;
    } else {
        const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        *to++ = (char)((0xFF00u >> (more + 1) & 0xFF) | c >> 6 * more);
        for (int k = more - 1; k >= 0; k--) *to++ = (char)(0x80 | (c >> 6 * k & 0x3F));
    }
    return to;
}

/* A string, in UTF-8; the caller frees it. */
static char* text(void) {
    static const char letters[] = "bfnrt", meant[] = "\b\f\n\r\t";
    expect('"');
    size_t length = 0;
    while (at[length] && at[length] != '"') length += at[length] == '\\' && at[length + 1] ? 2 : 1;
    char* const found = grown(NULL, length + 1);
    char* to = found;
    while (*at && *at != '"') {
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        const char kind = at[1];
        at += kind ? 2 : 1;
        if (kind == 'u') {
            unsigned c = hexadecimal();
            if (c >> 10 == 0x36 && at[0] == '\\' && at[1] == 'u') { /* the first of two halves */
                at += 2;
                c = 0x10000 + ((c & 0x3FF) << 10 | (hexadecimal() & 0x3FF));
            }
            to = put_character(to, c);
        } else {
            const char* const letter = kind ? strchr(letters, kind) : NULL;
            *to++ = letter ? meant[letter - letters] : kind;
        }
    }
    expect('"');
    *to = 0;
    return found;
}

static double number(void) {
    char* end;
    next();
    const double found = strtod(at, &end);
    if (end == at) fail("damaged JSON: expected a number", "");
    at = end;
    return found;
}

/* The name of the next member of an object whose "{" was read, or NULL after its "}". */
static char* member(void) {
    if (next() == ',') at++;
    if (next() == '}') return at++, NULL;
    char* const name = text();
    expect(':');
    return name;
}

/* Whether an array whose "[" was read has another element; if not, its "]" is read. */
static bool element(void) {
    if (next() == ',') at++;
    if (next() != ']') return true;
    at++;
    return false;
}

/* Reads any value; whether an object in it has a "type" that is called so. */
static bool has_type(const char* type) {
    bool found = false;
    if (next() == '{') {
        at++;
        for (char* name; (name = member()) != NULL; free(name)) {
            if (strcmp(name, "type") == 0 && next() == '"') {
                char* const value = text();
                found |= strcmp(value, type) == 0;
                free(value);
            } else {
                found |= has_type(type);
            }
        }
    } else if (*at == '[') {
        at++;
        while (element()) found |= has_type(type);
    } else if (*at == '"') {
        free(text());
    } else {
        const size_t length = strcspn(at, ",]} \t\r\n");
        if (length == 0) fail("damaged JSON: expected a value", "");
        at += length;
    }
    return found;
}

static void skip(void) { has_type(""); }

/* ---- the table of a tokenizer ------------------------------------------------------------------------------------ */

typedef struct Piece {
    char* text; /* NULL: none is shown */
    bool known, plain;
} Piece;

static Piece* pieces;
static int64_t count_of_pieces;
static bool in_bytes;

/* Takes `text`. What is known of a token stays: tokens that were added are in the table, too. */
static void put_piece(int64_t id, char* text, bool plain) {
    if (id < 0 || id > 1 << 24) fail("damaged table: a token's number is out of range", "");
    if (id >= count_of_pieces) {
        pieces = grown(pieces, (size_t)(2 * id + 2) * sizeof *pieces);
        memset(pieces + count_of_pieces, 0, (size_t)(2 * id + 2 - count_of_pieces) * sizeof *pieces);
        count_of_pieces = 2 * id + 2;
    }
    if (pieces[id].known) {
        free(text);
        return;
    }
    pieces[id] = (Piece){text, true, plain};
}

static void read_added(void) {
    expect('[');
    while (element()) {
        int64_t id = -1;
        bool special = false;
        char* content = NULL;
        expect('{');
        for (char* name; (name = member()) != NULL; free(name)) {
            if (strcmp(name, "id") == 0) {
                id = (int64_t)number();
            } else if (strcmp(name, "content") == 0) {
                free(content);
                content = text();
            } else {
                special |= strcmp(name, "special") == 0 && next() == 't';
                skip();
            }
        }
        if (special) free(content), content = NULL;
        put_piece(id, content, true);
    }
}

/* Of a BPE, numbers by texts; of a unigram model, texts with their scores in the order of numbers. */
static void read_vocabulary(void) {
    if (next() == '{') {
        at++;
        for (char* name; (name = member()) != NULL;) put_piece((int64_t)number(), name, false);
        return;
    }
    expect('[');
    for (int64_t id = 0; element(); id++) {
        expect('[');
        put_piece(id, element() ? text() : NULL, false);
        while (element()) skip();
    }
}

static void read_tokenizer(const char* path) {
    FILE* const file = fopen(path, "rb");
    if (file == NULL) fail("cannot read ", path);
    char* content = NULL;
    size_t size = 0, more;
    do {
        content = grown(content, size + (1 << 20) + 1);
        more = fread(content + size, 1, 1 << 20, file);
        size += more;
    } while (more > 0);
    if (ferror(file)) fail("cannot read ", path);
    fclose(file);
    content[size] = 0;
    at = content;
    expect('{');
    for (char* name; (name = member()) != NULL; free(name)) {
        if (strcmp(name, "added_tokens") == 0) {
            read_added();
        } else if (strcmp(name, "decoder") == 0) {
            in_bytes = has_type("ByteLevel");
        } else if (strcmp(name, "model") == 0) {
            expect('{');
            for (char* part; (part = member()) != NULL; free(part)) {
                if (strcmp(part, "vocab") == 0) read_vocabulary();
                else skip();
            }
        } else {
            skip();
        }
    }
    free(content);
    if (count_of_pieces == 0) fail("no table of tokens in ", path);
}

/* The byte that a character of a table of bytes stands for: printable ones stand for themselves, those from 256 on for
 * the others in their order. */
static int byte_of(unsigned character) {
    unsigned other = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        if (character == (printable ? byte : other)) return (int)byte;
        other += !printable;
    }
    return -1;
}

static void show(int64_t token) {
    static bool begun;
    const Piece piece = token < count_of_pieces ? pieces[token] : (Piece){0};
    const char* from = piece.text;
    if (from == NULL) return;
    unsigned byte;
    if (piece.plain) {
        fputs(from, stdout);
    } else if (in_bytes) {
        while (*from) { /* characters of one or two bytes of UTF-8 */
            const unsigned first = (unsigned char)*from++;
            const unsigned character = first < 0xC0 || !*from ? first : (first & 0x1F) << 6 | ((unsigned)*from++ & 0x3F);
            byte = (unsigned)byte_of(character);
            if (byte < 256) putchar((int)byte);
        }
    } else if (strlen(from) == 6 && sscanf(from, "<0x%2X>", &byte) == 1) {
        putchar((int)byte);
    } else {
        while (*from) {
            const bool space = strncmp(from, "\xE2\x96\x81", 3) == 0; /* SentencePiece's mark of one */
            if (!space) putchar(*from);
            else if (begun) putchar(' '); /* a text has none before it */
            begun = true;
            from += space ? 3 : 1;
        }
    }
    begun = true;
    fflush(stdout);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static char* inputs[DECODER_ENTRIES][INPUTS]; /* the names of the inputs of each entry, in order */
static int64_t most = 1;                      /* tokens of a prompt that are computed at once */

static void read_input(int entry) {
    int number_of = 0;
    expect('[');
    while (element()) {
        expect('{');
        for (char* name; (name = member()) != NULL; free(name)) {
            if (strcmp(name, "name") != 0) skip();
            else if (number_of == INPUTS) skip(); /* of an entry that is not called here */
            else inputs[entry][number_of++] = text();
        }
    }
}

static void read_dim(void) {
    bool is_length = false;
    int64_t upper = 1;
    expect('{');
    for (char* name; (name = member()) != NULL; free(name)) {
        if (strcmp(name, "name") == 0) {
            char* const value = text();
            is_length = strcmp(value, "length") == 0;
            free(value);
        } else if (strcmp(name, "upper") == 0) {
            upper = (int64_t)number();
        } else {
            skip();
        }
    }
    if (is_length) most = upper;
}

static void read_metadata(void) {
    at = decoder_metadata_json();
    expect('{');
    for (char* name; (name = member()) != NULL; free(name)) {
        if (strcmp(name, "dims") == 0) {
            expect('[');
            while (element()) read_dim();
        } else if (strcmp(name, "entries") == 0) {
            expect('[');
            for (int entry = 0; element(); entry++) {
                expect('{');
                for (char* part; (part = member()) != NULL; free(part)) {
                    if (strcmp(part, "inputs") == 0) read_input(entry);
                    else skip();
                }
            }
        } else {
            skip();
        }
    }
}

/* Runs an entry on the sequence in slot 0, which holds `length` tokens, and to which it may add `count`. */
static void run(int entry, int64_t* tokens, int64_t count, int64_t length, lm_value* out, const char* call) {
    static uint8_t carrier[1 << 16]; /* of inputs whose shape alone is read */
    int64_t rows[2] = {1, count}, one = 1, none = 0, no_adapter = -1, blocks[INPUTS];
    float strength = 0.0f;
    lm_value in[INPUTS];
    memset(in, 0, sizeof in);
    for (int k = 0; k < INPUTS && inputs[entry][k]; k++) {
        const char* const name = inputs[entry][k];
        if (strcmp(name, "tokens") == 0) {
            in[k] = (lm_value){.data = tokens, .dtype = LM_INT64, .rank = 2, .shape = rows};
        } else if (strcmp(name, "positions") == 0) {
            in[k] = (lm_value){.data = &length, .dtype = LM_INT64, .rank = 1, .shape = &one};
        } else if (strcmp(name, "adapters") == 0) {
            in[k] = (lm_value){.data = &no_adapter, .dtype = LM_INT64, .rank = 1, .shape = &one};
        } else if (strcmp(name, "strengths") == 0) {
            in[k] = (lm_value){.data = &strength, .dtype = LM_FLOAT32, .rank = 1, .shape = &one};
        } else if (strcmp(name, "slot") == 0) { /* as long as its number */
            in[k] = (lm_value){.data = carrier, .dtype = LM_UINT8, .rank = 1, .shape = &none};
        } else if (strncmp(name, "span_", 5) == 0) { /* as long as the number of blocks that are filled */
            const int64_t all = strtoll(name + 5, NULL, 10), filled = length + count < all ? length + count : all;
            blocks[k] = (filled + BLOCK - 1) / BLOCK;
            in[k] = (lm_value){.data = carrier, .dtype = LM_UINT8, .rank = 1, .shape = &blocks[k]};
        } else {
            fail("the library has an input that this program does not know: ", name);
        }
    }
    const lm_value* const given = in;
    int64_t vocabulary;
    if (out != NULL && out->data == NULL) {
        check(decoder_output_shape(context, entry, given, 0, &vocabulary), "decoder_output_shape");
        out->data = grown(NULL, (size_t)vocabulary * sizeof(float));
        *(int64_t*)out->shape = vocabulary;
    }
    check(decoder_run(context, entry, given, out, NULL), call);
}

/* The likeliest token after those that the sequence holds. */
static int64_t likeliest(int64_t length) {
    static int64_t vocabulary;
    static lm_value logits = {.dtype = LM_FLOAT32, .rank = 1, .shape = &vocabulary};
    run(DECODER_ENTRY_LOGITS, NULL, 0, length, &logits, "logits");
    const float* const each = logits.data;
    int64_t best = 0;
    for (int64_t k = 1; k < vocabulary; k++) {
        if (each[k] > each[best]) best = k;
    }
    return best;
}

int main(int argc, char** argv) {
    if (argc < 3) fail("usage: generate TOKENIZER COUNT [END] < TOKENS", "");
    const int64_t wanted = strtoll(argv[2], NULL, 10), end = argc > 3 ? strtoll(argv[3], NULL, 10) : -1;
    read_tokenizer(argv[1]);
    check(decoder_open(NULL, &library), "decoder_open");
    check(decoder_context_create(library, &context), "decoder_context_create");
    read_metadata();

    int64_t *prompt = NULL, size = 0, length = 0, token;
    while (scanf("%" SCNd64, &token) == 1) {
        prompt = grown(prompt, (size_t)(size + 1) * sizeof *prompt);
        prompt[size++] = token;
        show(token);
    }
    if (size == 0) fail("expected the numbers of a prompt's tokens", "");
    while (length < size) {
        const int64_t part = size - length < most ? size - length : most;
        run(DECODER_ENTRY_PREFILL, prompt + length, part, length, NULL, "prefill");
        length += part;
    }
    for (int64_t made = 0; made < wanted && (token = likeliest(length)) != end; made++) {
        show(token);
        if (made + 1 < wanted) run(DECODER_ENTRY_DECODE, &token, 1, length++, NULL, "decode");
    }
    putchar('\n');

    decoder_context_destroy(context);
    check(decoder_close(library), "decoder_close");
    free(prompt);
    return 0;
}
