"""What can be said of kernels for NVIDIA's GPUs without one: their machine code is followed (``luminal.machine_code``),
and what it issues and moves is set beside what Triton's does."""
