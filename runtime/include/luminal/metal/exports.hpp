// The exported C functions of a library that runs on a GPU by Metal.
#pragma once

// clang-format off: the functions stand on the classes.
#include "luminal/metal/library.hpp"
#include "luminal/entry_points.hpp"
// clang-format on
