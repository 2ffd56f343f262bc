"""NVIDIA's machine code, read without a GPU: ``sass`` parses it, ``follow`` goes through it thread by thread, and
``kernels`` says what a kernel's blocks issue, move and take, which ``luminal tune`` can judge by."""
