"""Measurements on an NVIDIA GPU that may be at hand for minutes only, and on a bare machine: ``python -m
benchmarks.gpu``."""
