// Two libraries may be linked into one program, compiled for different instruction sets and from different versions of
// these headers. Everything therefore lies in `lm::NAME`, where NAME is the model's: an inline namespace, so that code
// says `lm::Context`. The build passes -DLM_NAMESPACE=NAME to every file of the library.
#pragma once

#ifndef LM_NAMESPACE
#error "define LM_NAMESPACE as the model's name, e.g. -DLM_NAMESPACE=my_model"
#endif
