// Threads that a program switches between by itself.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace lm_emulated {

/// A place in a program to go on from, with a stack of its own.
class Context {
  public:
    /// Begins with `entry`, which must not return, on a stack of `bytes` at `stack`.
    void begin(void (*entry)(), char* stack, size_t bytes);

    /// Goes on with this context; comes back when somebody goes on with `from`.
    void resume(Context& from);

  private:
#if defined(__x86_64__)
    void* stack_pointer_ = nullptr;
#else
    ucontext_t context_;
#endif
};

#if defined(__x86_64__)

// The registers that a function has to keep are pushed on one stack and popped from the other. (swapcontext does the
// same and two system calls.)
extern "C" void lm_emulated_switch(void** save, void* restore);
asm(R"(
    .pushsection .text
    .hidden lm_emulated_switch
    .globl lm_emulated_switch
    .type lm_emulated_switch, @function
lm_emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size lm_emulated_switch, .-lm_emulated_switch
    .popsection
)");

inline void Context::begin(void (*entry)(), char* stack, size_t bytes) {
    void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15});
    *--top = nullptr;  // where entry would return to
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    stack_pointer_ = top;
}

inline void Context::resume(Context& from) { lm_emulated_switch(&from.stack_pointer_, stack_pointer_); }

#else

inline void Context::begin(void (*entry)(), char* stack, size_t bytes) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
}

inline void Context::resume(Context& from) { swapcontext(&from.context_, &context_); }

#endif

}  // namespace lm_emulated
