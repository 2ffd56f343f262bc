// The text of an error.
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "luminal/system.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// A bounded error message.
class Message {
  public:
    static constexpr size_t CAPACITY = 1024;

    __attribute__((format(printf, 2, 3))) void set(const char* format, ...) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text_, CAPACITY, format, arguments);
        va_end(arguments);
    }

    __attribute__((format(printf, 2, 3))) void append(const char* format, ...) {
        const size_t used = strlen(text_);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text_ + used, CAPACITY - used, format, arguments);
        va_end(arguments);
    }

    void clear() { text_[0] = '\0'; }
    const char* text() const { return text_; }

  private:
    char text_[CAPACITY] = "";
};

}  // namespace LM_RUNTIME
}  // namespace lm
