// The exported C functions of a library that runs by OpenCL.
#pragma once

// clang-format off: the functions stand on the classes.
#include "luminal/opencl/library.hpp"
#include "luminal/entry_points.hpp"
// clang-format on
