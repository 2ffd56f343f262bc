// The text of an error.
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "luminal/namespace.hpp"

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

/// The text of an errno, as it was when constructed; thread-safe, unlike strerror.
class SystemError {
  public:
    SystemError() : text_(chosen(strerror_r(errno, buffer_, sizeof(buffer_)), buffer_)) {}
    SystemError(const SystemError&) = delete;
    SystemError& operator=(const SystemError&) = delete;
    const char* text() const { return text_; }

  private:
    // The GNU function returns the text, the POSIX function a status.
    static const char* chosen(const char* result, const char*) { return result; }
    static const char* chosen(int, const char* buffer) { return buffer; }

    char buffer_[256] = "";
    const char* text_;
};

}  // namespace LM_RUNTIME
}  // namespace lm
