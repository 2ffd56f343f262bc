// Texts as numbers, and what the host does with them between kernels.
//
// An element of a string tensor is the number of its text: a hash of its bytes, 0 for the empty text. Kernels move and
// compare numbers; the texts themselves are in a table of the context, from the beginning of a run to that of the next.
// A second text of one number makes the run fail, so that comparisons are never wrong.
#pragma once

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/model.hpp"
#include "luminal/status.hpp"
#include "luminal/system.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// FNV-1a (RFC 9923) and the last step of MurmurHash3, as the compiler computes them for constants; 0 of nothing.
inline uint64_t text_number(const char* data, size_t size) {
    if (size == 0) return 0;
    uint64_t value = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; ++i) value = (value ^ static_cast<unsigned char>(data[i])) * 0x100000001b3u;
    value = (value ^ value >> 33) * 0xff51afd7ed558ccdu;
    value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53u;
    return value ^ value >> 33;
}

/// Bytes of the character of UTF-8 that begins at `data`, whose code `code` becomes; 0 where none does.
inline size_t read_character(const char* data, size_t size, uint32_t& code) {
    if (size == 0) return 0;
    const auto at = [data](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(data[i])); };
    code = at(0);
    if (code < 0x80) return 1;
    const size_t bytes = code >= 0xf0 ? 4 : code >= 0xe0 ? 3 : 2;
    if (code < 0xc2 || code > 0xf4 || size < bytes) return 0;
    code &= 0x7fu >> bytes;
    for (size_t i = 1; i < bytes; ++i) {
        if (at(i) >> 6 != 2) return 0;
        code = code << 6 | (at(i) & 0x3f);
    }
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    const bool longer = code < (bytes == 4 ? 0x10000u : bytes == 3 ? 0x800u : 0x80u);
    return surrogate || longer || code > 0x10ffff ? 0 : bytes;
}

/// Writes a character in UTF-8, up to 4 bytes; how many.
inline size_t write_character(uint32_t code, char* data) {
    const size_t bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (bytes == 1) {
        *data = static_cast<char>(code);
        return 1;
    }
    for (size_t i = bytes - 1; i > 0; --i, code >>= 6) data[i] = static_cast<char>(0x80 | (code & 0x3f));
    data[0] = static_cast<char>((0xf00u >> bytes & 0xffu) | code);
    return bytes;
}

inline bool is_utf8(const char* data, size_t size) {
    uint32_t code = 0;
    for (size_t i = 0; i < size;) {
        const size_t bytes = read_character(data + i, size - i, code);
        if (bytes == 0) return false;
        i += bytes;
    }
    return true;
}

/// Texts by their numbers. The bytes of the texts are elsewhere.
class TextTable {
  public:
    TextTable() = default;
    TextTable(const TextTable&) = delete;
    TextTable& operator=(const TextTable&) = delete;
    ~TextTable() { free(rows_); }

    int32_t size() const { return count_; }

    void clear() {
        if (count_ > 0) memset(rows_, 0, capacity_ * sizeof(Row));
        count_ = 0;
    }

    /// The text of a number, or null.
    const lm_text* find(uint64_t number) const {
        const Row* row = capacity_ == 0 ? nullptr : &rows_[place(number)];
        return row != nullptr && row->text.data != nullptr ? &row->text : nullptr;
    }

    /// Puts a text in that is not there yet; false if there is no memory.
    bool keep(uint64_t number, const lm_text& text) {
        if (static_cast<size_t>(count_ + 1) * 2 > capacity_ && !grow()) return false;
        rows_[place(number)] = {number, text};
        ++count_;
        return true;
    }

  private:
    struct Row {
        uint64_t number;
        lm_text text;  // no data: the row is free
    };

    /// The row of a number, or the free one where it would be. There is always a free one.
    size_t place(uint64_t number) const {
        size_t row = number & (capacity_ - 1);
        while (rows_[row].text.data != nullptr && rows_[row].number != number) row = (row + 1) & (capacity_ - 1);
        return row;
    }

    bool grow() {
        const size_t before = capacity_;
        const size_t after = before > 0 ? before * 2 : 64;
        Row* rows = static_cast<Row*>(calloc(after, sizeof(Row)));
        if (rows == nullptr) return false;
        Row* old = rows_;
        rows_ = rows;
        capacity_ = after;
        for (size_t i = 0; i < before; ++i) {
            if (old[i].text.data != nullptr) rows_[place(old[i].number)] = old[i];
        }
        free(old);
        return true;
    }

    Row* rows_ = nullptr;
    size_t capacity_ = 0;  // a power of two
    int32_t count_ = 0;
};

/// The texts that a run meets: the model's own, and those that it is given or makes.
class Texts {
  public:
    Texts() = default;
    Texts(const Texts&) = delete;
    Texts& operator=(const Texts&) = delete;
    ~Texts() {
        for (Block* block = first_; block != nullptr;) {
            Block* next = block->next;
            free(block);
            block = next;
        }
    }

    /// Forgets all texts but the model's own.
    void begin(const Span<lm_text>& own, Status& status) {
        met_.clear();
        for (Block* block = first_; block != nullptr; block = block->next) block->used = 0;
        filling_ = first_;
        while (own_.size() < own.size) {
            const lm_text& text = own[own_.size()];
            if (!own_.keep(text_number(text.data, text.size), text)) return status.raise(LM_OUT_OF_MEMORY);
        }
    }

    /// The number of a text, whose bytes are copied.
    uint64_t number(const char* data, size_t size, Status& status) {
        const uint64_t number = text_number(data, size);
        if (size == 0 || is_known(number, data, size, status)) return number;
        char* copy = reserve(size, status);
        if (copy == nullptr) return 0;
        memcpy(copy, data, size);
        return keep(number, size, status);
    }

    /// Room for the bytes of a text that is being made; null, and a status, where there is none.
    char* reserve(size_t size, Status& status) {
        while (filling_ != nullptr && filling_->size - filling_->used < size) filling_ = filling_->next;
        if (filling_ == nullptr && !add_block(size)) {
            status.raise(LM_OUT_OF_MEMORY);
            return nullptr;
        }
        return filling_->bytes() + filling_->used;
    }

    /// The number of the text that was made in the first bytes of what `reserve` gave last.
    uint64_t commit(const char* data, size_t size, Status& status) {
        const uint64_t number = text_number(data, size);
        return size == 0 || is_known(number, data, size, status) ? number : keep(number, size, status);
    }

    /// The text of a number; false, and a status, where the run has met none.
    bool find(uint64_t number, lm_text& text, Status& status) const {
        const lm_text* found = look_up(number);
        text = found != nullptr ? *found : lm_text{"", 0};
        if (found == nullptr && number != 0) status.raise(LM_OPERATOR_FAILED);
        return found != nullptr || number == 0;
    }

  private:
    static constexpr size_t BLOCK = 1 << 16;

    struct Block {
        Block* next;
        size_t size;
        size_t used;
        char* bytes() { return reinterpret_cast<char*>(this + 1); }
    };

    const lm_text* look_up(uint64_t number) const {
        const lm_text* found = own_.find(number);
        return found != nullptr ? found : met_.find(number);
    }

    /// Whether the text has been met; a status where another one has its number, as the empty one has 0.
    bool is_known(uint64_t number, const char* data, size_t size, Status& status) const {
        const lm_text* found = look_up(number);
        const bool same = found != nullptr && found->size == size && memcmp(found->data, data, size) == 0;
        if ((found != nullptr && !same) || number == 0) status.raise(LM_OPERATOR_FAILED);
        return found != nullptr || number == 0;
    }

    /// Keeps the text whose bytes are the next of the block that is being filled.
    uint64_t keep(uint64_t number, size_t size, Status& status) {
        if (!met_.keep(number, {filling_->bytes() + filling_->used, size})) status.raise(LM_OUT_OF_MEMORY);
        filling_->used += size;
        return number;
    }

    bool add_block(size_t size) {
        const size_t bytes = size > BLOCK ? size : BLOCK;
        Block* block = static_cast<Block*>(malloc(sizeof(Block) + bytes));
        if (block == nullptr) return false;
        *block = {nullptr, bytes, 0};
        (last_ != nullptr ? last_->next : first_) = block;
        filling_ = last_ = block;
        return true;
    }

    TextTable own_;
    TextTable met_;
    Block* first_ = nullptr;
    Block* last_ = nullptr;
    Block* filling_ = nullptr;  // earlier ones are full, or nearly
};

/// The elements of a tensor, row-major.
template <class T>
struct Elements {
    T* data;
    int64_t size;
};

/// The functions of the host (luminal/core/host.py says what each gives). They raise what they refuse, and go on.
namespace host {

using Numbers = Elements<const uint64_t>;

constexpr int64_t MOST_PARTS = 1024;  // of a text that is split

/// Numbers of a caller's texts.
inline void take(Texts& texts, Status* status, Elements<const lm_text> in, Elements<uint64_t> out) {
    for (int64_t i = 0; i < out.size; ++i) {
        const lm_text& text = in.data[i];
        const bool missing = text.data == nullptr && text.size > 0;
        if (missing || !is_utf8(text.data, text.size)) return status->raise(LM_INVALID_ARGUMENT);
        out.data[i] = texts.number(text.data, text.size, *status);
    }
}

/// Texts for a caller, who may read them until the context runs again.
inline void give(Texts& texts, Status* status, Numbers in, Elements<lm_text> out) {
    for (int64_t i = 0; i < in.size; ++i) texts.find(in.data[i], out.data[i], *status);
}

inline void concatenate(Texts& texts, Status* status, Numbers a, Numbers b, Elements<uint64_t> out) {
    lm_text first;
    lm_text second;
    for (int64_t i = 0; i < out.size; ++i) {
        if (!texts.find(a.data[i], first, *status) || !texts.find(b.data[i], second, *status)) return;
        char* made = texts.reserve(first.size + second.size, *status);
        if (made == nullptr) return;
        memcpy(made, first.data, first.size);
        memcpy(made + first.size, second.data, second.size);
        out.data[i] = texts.commit(made, first.size + second.size, *status);
    }
}

inline bool is_space(uint32_t code) {
    return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
           code == 0x202f || code == 0x205f || code == 0x3000;
}

/// How many bytes at `data` are a delimiter; an empty one is any character that is white space.
inline size_t delimits(const char* data, size_t size, const lm_text& delimiter) {
    if (delimiter.size > 0) {
        return size >= delimiter.size && memcmp(data, delimiter.data, delimiter.size) == 0 ? delimiter.size : 0;
    }
    uint32_t code = 0;
    const size_t bytes = read_character(data, size, code);
    return bytes > 0 && is_space(code) ? bytes : 0;
}

/// Calls `part(data, size)` for each part of a text between delimiters, split `most` times at the most.
template <class Part>
void parts_of(const lm_text& text, const lm_text& delimiter, int64_t most, const Part& part) {
    const bool spaces = delimiter.size == 0;
    size_t begin = 0;
    const auto skip = [&] {
        while (size_t bytes = spaces ? delimits(text.data + begin, text.size - begin, delimiter) : 0) begin += bytes;
    };
    skip();
    for (size_t at = begin; at < text.size && most != 0;) {
        const size_t bytes = delimits(text.data + at, text.size - at, delimiter);
        if (bytes == 0) {
            ++at;
            continue;
        }
        part(text.data + begin, at - begin);
        begin = at + bytes;
        skip();
        at = begin;
        --most;
    }
    if (!spaces || begin < text.size) part(text.data + begin, text.size - begin);
}

inline void count_parts(Texts& texts, Status* status, Numbers in, Numbers by, Elements<const int64_t> most,
                        Elements<int64_t> out) {
    lm_text text;
    lm_text delimiter;
    if (!texts.find(*by.data, delimiter, *status)) return;
    for (int64_t i = 0; i < out.size; ++i) {
        if (!texts.find(in.data[i], text, *status)) return;
        int64_t count = 0;
        parts_of(text, delimiter, *most.data, [&](const char*, size_t) { ++count; });
        if (count > MOST_PARTS) status->raise(LM_OPERATOR_FAILED);
        out.data[i] = count;
    }
}

inline void split(Texts& texts, Status* status, Numbers in, Numbers by, Elements<const int64_t> most,
                  Elements<uint64_t> out) {
    lm_text text;
    lm_text delimiter;
    if (!texts.find(*by.data, delimiter, *status)) return;
    const int64_t room = in.size > 0 ? out.size / in.size : 0;
    memset(out.data, 0, static_cast<size_t>(out.size) * sizeof(uint64_t));
    for (int64_t i = 0; i < in.size; ++i) {
        if (!texts.find(in.data[i], text, *status)) return;
        int64_t count = 0;
        parts_of(text, delimiter, *most.data, [&](const char* data, size_t size) {
            if (count < room) out.data[i * room + count++] = texts.number(data, size, *status);
        });
    }
}

/// What the table makes of a character: up to three, written to `image`; how many.
inline int64_t map_character(uint32_t code, Elements<const int32_t> table, uint32_t* image) {
    int64_t low = 0;
    for (int64_t high = table.size / 6; low < high;) {
        const int64_t middle = (low + high) / 2;
        if (static_cast<uint32_t>(table.data[middle * 6 + 1]) < code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    image[0] = code;
    const int32_t* row = table.data + low * 6;
    if (low * 6 == table.size || code < static_cast<uint32_t>(row[0])) return 1;
    if (row[2] > 0) {
        if ((code - static_cast<uint32_t>(row[0])) % static_cast<uint32_t>(row[2]) == 0) image[0] += row[3];
        return 1;
    }
    int64_t count = 0;
    for (int64_t i = 3; i < 6; ++i) {
        if (row[i] != 0) image[count++] = static_cast<uint32_t>(row[i]);
    }
    return count;
}

inline void map_characters(Texts& texts, Status* status, Numbers in, Elements<const int32_t> table,
                           Elements<uint64_t> out) {
    lm_text text;
    uint32_t image[3];
    for (int64_t i = 0; i < out.size; ++i) {
        if (!texts.find(in.data[i], text, *status)) return;
        char* made = texts.reserve(text.size * 12, *status);  // of one byte, three characters of four
        if (made == nullptr) return;
        size_t size = 0;
        for (size_t at = 0; at < text.size;) {
            uint32_t code = 0;
            at += read_character(text.data + at, text.size - at, code);
            const int64_t count = map_character(code, table, image);
            for (int64_t k = 0; k < count; ++k) size += write_character(image[k], made + size);
        }
        out.data[i] = texts.commit(made, size, *status);
    }
}

/// `classes` are those of the 256 bytes; a row of `states` is whether the state accepts, and what follows it, by class.
inline void match(Texts& texts, Status* status, Numbers in, Elements<const int32_t> classes,
                  Elements<const int32_t> states, Elements<bool> out) {
    int32_t width = 0;
    for (int64_t i = 0; i < classes.size; ++i) width = classes.data[i] + 2 > width ? classes.data[i] + 2 : width;
    lm_text text;
    for (int64_t i = 0; i < out.size; ++i) {
        if (!texts.find(in.data[i], text, *status)) return;
        const int32_t* state = states.data;
        for (size_t at = 0; at < text.size; ++at) {
            state = states.data + state[1 + classes.data[static_cast<unsigned char>(text.data[at])]] * width;
        }
        out.data[i] = state[0] != 0;
    }
}

/// Automata that share a table: the classes of the 256 bytes of each; rows of states, that name those which follow by
/// their rows, or -1 where nothing is accepted any more; the row of each one's first state.
struct Automata {
    const int32_t* classes;
    const int32_t* states;
    const int64_t* starts;
    int64_t count;
    int32_t width;

    Automata(Elements<const int32_t> by, Elements<const int32_t> rows, Elements<const int64_t> first)
        : classes(by.data), states(rows.data), starts(first.data), count(first.size), width(2) {
        for (int64_t i = 0; i < by.size; ++i) width = by.data[i] + 2 > width ? by.data[i] + 2 : width;
    }

    /// How many bytes automaton `number` accepts at the most; 0 where it accepts none.
    size_t longest(int64_t number, const char* data, size_t size) const {
        size_t best = 0;
        int64_t state = starts[number];
        for (size_t at = 0; at < size; ++at) {
            state = states[state * width + 1 + classes[number * 256 + static_cast<unsigned char>(data[at])]];
            if (state < 0) break;
            if (states[state * width] != 0) best = at + 1;
        }
        return best;
    }
};

/// Which tokens there are: what lies between what the automata accept, or what the one accepts; with so many characters
/// at least; and whether a mark comes before and behind them.
struct Tokens {
    bool separating;
    int64_t least;
    bool marked;

    explicit Tokens(Elements<const int64_t> rule)
        : separating(rule.data[0] != 0), least(rule.data[1] > 1 ? rule.data[1] : 1), marked(rule.data[2] != 0) {}

    /// Calls `part(data, size)` for each token; the automata from `number` on divide what is left.
    template <class Part>
    void each(const Automata& by, int64_t number, const char* data, size_t size, const Part& part) const {
        if (number == by.count) return give(data, size, part);
        size_t begin = 0;
        for (size_t at = 0; at < size;) {
            const size_t taken = by.longest(number, data + at, size - at);
            if (taken > 0 && separating) {
                each(by, number + 1, data + begin, at - begin, part);
                begin = at + taken;
            } else if (taken > 0) {
                give(data + at, taken, part);
            }
            at += taken > 0 ? taken : 1;
        }
        if (separating) each(by, number + 1, data + begin, size - begin, part);
    }

  private:
    template <class Part>
    void give(const char* data, size_t size, const Part& part) const {
        int64_t characters = 0;
        for (size_t i = 0; i < size; ++i) characters += (static_cast<unsigned char>(data[i]) & 0xc0) != 0x80;
        if (characters >= least) part(data, size);
    }
};

inline void count_tokens(Texts& texts, Status* status, Numbers in, Elements<const int32_t> classes,
                         Elements<const int32_t> states, Elements<const int64_t> starts, Elements<const int64_t> rule,
                         Elements<int64_t> out) {
    const Automata by(classes, states, starts);
    const Tokens tokens(rule);
    lm_text text;
    for (int64_t i = 0; i < out.size; ++i) {
        if (!texts.find(in.data[i], text, *status)) return;
        int64_t count = 0;
        tokens.each(by, 0, text.data, text.size, [&](const char*, size_t) { ++count; });
        if (count > MOST_PARTS) status->raise(LM_OPERATOR_FAILED);
        out.data[i] = count;
    }
}

inline void tokens(Texts& texts, Status* status, Numbers in, Elements<const int32_t> classes,
                   Elements<const int32_t> states, Elements<const int64_t> starts, Elements<const int64_t> rule,
                   Numbers fill, Elements<uint64_t> out) {
    const Automata by(classes, states, starts);
    const Tokens tokens(rule);
    const int64_t room = in.size > 0 ? out.size / in.size : 0;
    lm_text text;
    for (int64_t i = 0; i < out.size; ++i) out.data[i] = *fill.data;
    for (int64_t i = 0; i < in.size && room > 0; ++i) {
        if (!texts.find(in.data[i], text, *status)) return;
        uint64_t* row = out.data + i * room;
        int64_t count = 0;
        const auto put = [&](const char* data, size_t size) {
            if (count < room) row[count++] = texts.number(data, size, *status);
        };
        if (tokens.marked) put("\x02", 1);
        tokens.each(by, 0, text.data, text.size, put);
        if (tokens.marked) put("\x03", 1);
    }
}

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Whether a text, which a 0 follows, says a number: as strtod takes it, but for hexadecimal and white space.
inline bool is_number(const char* text, size_t size) {
    const char* sign = *text == '+' || *text == '-' ? text + 1 : text;
    if (is_digit(*sign) || (*sign == '.' && is_digit(sign[1]))) return sign[1] != 'x' && sign[1] != 'X';
    const auto is = [&](const char* word) { return strcasecmp(sign, word) == 0; };
    return size > 0 && (is("inf") || is("infinity") || is("nan"));
}

/// The integer that a text says without point or exponent, if the type holds it; `end` is where it ends.
inline void read_integer(const char* text, char*& end, int64_t& value) { value = strtoll(text, &end, 10); }
inline void read_integer(const char* text, char*& end, uint64_t& value) {
    value = strtoull(text, &end, 10);
    if (*text == '-' && value != 0) errno = ERANGE;  // it was negated
}
inline void read_integer(const char*, char*&, double&) { errno = ERANGE; }

inline void from_double(double value, double& out) { out = value; }
inline void from_double(double value, int64_t& out) {
    out = value != value ? 0 : value >= 0x1p63 ? INT64_MAX : value < -0x1p63 ? INT64_MIN : static_cast<int64_t>(value);
}
inline void from_double(double value, uint64_t& out) {
    out = !(value > 0) ? 0 : value >= 0x1p64 ? UINT64_MAX : static_cast<uint64_t>(value);
}

template <class T>
void parsed(Texts& texts, Status* status, Numbers in, Elements<T> out) {
    const LocaleOfC locale;
    lm_text text;
    for (int64_t i = 0; i < out.size; ++i) {
        if (!texts.find(in.data[i], text, *status)) return;
        char* copy = texts.reserve(text.size + 1, *status);
        if (copy == nullptr) return;
        memcpy(copy, text.data, text.size);
        copy[text.size] = '\0';
        char* end = copy;
        if (!is_number(copy, text.size)) return status->raise(LM_OPERATOR_FAILED);
        errno = 0;
        read_integer(copy, end, out.data[i]);
        if (errno != 0 || end != copy + text.size) from_double(strtod(copy, &end), out.data[i]);
        if (end != copy + text.size) return status->raise(LM_OPERATOR_FAILED);
    }
}

inline void parse_float64(Texts& texts, Status* status, Numbers in, Elements<double> out) {
    parsed(texts, status, in, out);
}
inline void parse_int64(Texts& texts, Status* status, Numbers in, Elements<int64_t> out) {
    parsed(texts, status, in, out);
}
inline void parse_uint64(Texts& texts, Status* status, Numbers in, Elements<uint64_t> out) {
    parsed(texts, status, in, out);
}

inline double read_back(const char* text, double) { return strtod(text, nullptr); }
inline float read_back(const char* text, float) { return strtof(text, nullptr); }

/// The shortest text that reads back as the number; how many bytes.
template <class T>
int shortest(T value, char* text, size_t room) {
    if (value != value) return snprintf(text, room, "NaN");
    if (value - value != 0) return snprintf(text, room, value < 0 ? "-INF" : "INF");
    int digits = 0;
    do {
        snprintf(text, room, "%.*e", digits++, static_cast<double>(value));
    } while (read_back(text, value) != value);
    const int sign = *text == '-';
    const int exponent = atoi(strchr(text, 'e') + 1);
    const int after = digits - 1 - exponent;  // of them behind the point, where the exponent is not written
    const int plain = sign + (exponent < 0 ? 2 + after : after > 0 ? digits + 1 : exponent + 1);
    const int size = static_cast<int>(strlen(text));
    if (plain > size) return size;
    char number[24];  // the digits alone
    number[0] = text[sign];
    memcpy(number + 1, text + sign + 2, static_cast<size_t>(digits - 1));
    char* end = text + sign;
    for (int place = exponent > 0 ? exponent : 0; place >= (after > 0 ? -after : 0); --place) {
        if (place == -1) *end++ = '.';
        const int digit = exponent - place;
        *end++ = digit >= 0 && digit < digits ? number[digit] : '0';
    }
    return plain;
}

inline int shortest(int64_t value, char* text, size_t room) {
    return snprintf(text, room, "%lld", static_cast<long long>(value));
}
inline int shortest(uint64_t value, char* text, size_t room) {
    return snprintf(text, room, "%llu", static_cast<unsigned long long>(value));
}

template <class T>
void format(Texts& texts, Status* status, Elements<const T> in, Elements<uint64_t> out) {
    const LocaleOfC locale;
    char text[512];
    for (int64_t i = 0; i < out.size; ++i) {
        const int size = shortest(in.data[i], text, sizeof text);
        out.data[i] = texts.number(text, static_cast<size_t>(size), *status);
    }
}

inline void format_float32(Texts& texts, Status* status, Elements<const float> in, Elements<uint64_t> out) {
    format(texts, status, in, out);
}
inline void format_float64(Texts& texts, Status* status, Elements<const double> in, Elements<uint64_t> out) {
    format(texts, status, in, out);
}
inline void format_int64(Texts& texts, Status* status, Elements<const int64_t> in, Elements<uint64_t> out) {
    format(texts, status, in, out);
}
inline void format_uint64(Texts& texts, Status* status, Elements<const uint64_t> in, Elements<uint64_t> out) {
    format(texts, status, in, out);
}

}  // namespace host

}  // namespace LM_RUNTIME
}  // namespace lm
