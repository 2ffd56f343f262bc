"""The program: kernels, steps, buffers and states, phases without waiting, and the plan of memory; no loop is
scheduled."""
