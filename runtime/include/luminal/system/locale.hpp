// The locale of a thread, where the system lets a thread have one of its own as POSIX says.
#pragma once

#include <locale.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// While it exists, the thread reads and writes numbers as C does, wherever it runs.
class LocaleOfC {
  public:
    LocaleOfC() : made_(newlocale(LC_ALL_MASK, "C", locale_t{})), before_(uselocale(made_)) {}
    ~LocaleOfC() {
        uselocale(before_);
        if (made_ != locale_t{}) freelocale(made_);
    }
    LocaleOfC(const LocaleOfC&) = delete;
    LocaleOfC& operator=(const LocaleOfC&) = delete;

  private:
    locale_t made_;
    locale_t before_;
};

}  // namespace LM_RUNTIME
}  // namespace lm
