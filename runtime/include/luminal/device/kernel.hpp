// What every generated kernel includes. Under emulation, LM_EMULATE_CUDA or LM_EMULATE_METAL says which language its
// text is in, and the emulator gives that language's words.
#pragma once

#if defined(LM_EMULATE_CUDA) || defined(LM_EMULATE_METAL)
#include "emulator.hpp"
#endif

#include "luminal/device/functions.hpp"
