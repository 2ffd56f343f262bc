// The exported C functions of a library that runs on the CPU.
#pragma once

// clang-format off: the functions stand on the classes.
#include "luminal/library.hpp"
#include "luminal/entry_points.hpp"
// clang-format on
