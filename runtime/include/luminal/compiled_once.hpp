// Functions that are the same for every model: a file that defines LM_RUNTIME_ELSEWHERE only declares them, and is linked
// with another that includes the same headers and defines LM_RUNTIME_HERE. Without either they are inline.
#pragma once

#ifdef LM_RUNTIME_HERE
#define LM_RUNTIME_FUNCTION __attribute__((weak))  // two libraries in one program may both bring it
#else
#define LM_RUNTIME_FUNCTION inline
#endif
