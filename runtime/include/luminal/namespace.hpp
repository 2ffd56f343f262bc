// Two libraries may be linked into one program, compiled for different instruction sets and from different versions of
// these headers. Everything therefore lies in `lm::model_NAME`, where NAME is the model's: an inline namespace, so that
// code says `lm::Context`. The build passes -DLM_NAMESPACE=model_NAME to every file of the library; the prefix keeps it
// apart from what the headers themselves call `pool` or `model`.
#pragma once

#ifndef LM_NAMESPACE
#error "define LM_NAMESPACE as model_ and the model's name, e.g. -DLM_NAMESPACE=model_example"
#endif
