"""What can be said of kernels for NVIDIA's GPUs without one: their machine code is followed, thread by thread, and
what it issues and moves is counted."""
