// The exported C functions of a library that runs on NVIDIA's GPUs.
#pragma once

// clang-format off: the functions stand on the classes.
#include "luminal/cuda/library.hpp"
#include "luminal/entry_points.hpp"
// clang-format on
