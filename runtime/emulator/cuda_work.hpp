// What a library that puts work of its own into the streams of the emulated CUDA driver needs of it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <string>
#include <vector>

namespace lm_emulated {

/// Puts work into a stream, a CUstream: it goes on whenever `carry_on()` is called, and has ended once that returns true.
/// It begins as soon as the stream lets it. It uses memory of the device at these addresses. False where there is no such stream.
bool put_work(void* stream, std::function<bool()> carry_on, const std::vector<const void*>& uses);

/// Whether these bytes lie in one allocation of the device.
bool is_on_device(const void* begin, size_t bytes);

/// Memory of the device has been written to.
void was_written(void* begin, size_t bytes);

/// Records what a host program does wrong.
void record_fault(const std::string& text);

/// Which GPU of this machine the context of the calling thread is for: 16 bytes; empty where it has none.
std::string current_gpu();

}  // namespace lm_emulated
