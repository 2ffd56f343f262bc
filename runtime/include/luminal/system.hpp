// What the runtime needs of an operating system: threads, locks, sleeping on a word, pages of memory, files, time. Each
// file of system/ provides the same names. Nothing else in the runtime of CPUs asks which system it is on.
#pragma once

#if defined(_WIN32)
#include "luminal/system/windows.hpp"
#elif defined(__wasm__)
#include "luminal/system/wasm.hpp"
#elif defined(__APPLE__)
#include "luminal/system/macos.hpp"
#else
#include "luminal/system/linux.hpp"
#endif
