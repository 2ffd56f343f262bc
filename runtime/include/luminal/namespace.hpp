// Two libraries may be linked into one program, compiled for different instruction sets and from different versions of
// these headers. Everything of a model therefore lies in `lm::model_NAME`, where NAME is the model's, and everything of
// these headers in `lm::LM_RUNTIME`: inline namespaces, so that code says `lm::Context`. The build passes
// -DLM_NAMESPACE=model_NAME to every file of the library; the prefix keeps it apart from what the headers themselves
// call `pool` or `model`. Libraries whose headers and flags are the same, whatever the model, may have one -DLM_RUNTIME:
// then these headers are compiled once for all of them. Otherwise it is the model's own namespace.
#pragma once

#ifndef LM_RUNTIME
// In a file of its own: compilers refuse precompiled headers that mention a name which is defined otherwise later.
#include "luminal/own_namespace.hpp"
#endif
