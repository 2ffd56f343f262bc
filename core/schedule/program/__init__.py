"""The program: kernels, steps, buffers and states, which steps run without waiting, and the plan of memory."""
