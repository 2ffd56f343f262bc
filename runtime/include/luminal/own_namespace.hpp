// The namespace of the runtime's headers where it is not given: the model's own.
#pragma once

#ifndef LM_NAMESPACE
#error "define LM_NAMESPACE as model_ and the model's name, e.g. -DLM_NAMESPACE=model_example"
#endif
#define LM_RUNTIME LM_NAMESPACE
