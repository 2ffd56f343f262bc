"""Damaged ONNX models: each must end in a named error or in a program, in bounded time and memory.

``python -m tests.fuzz_onnx --cases 20000 --seed 0`` runs them; a case is its seed and its number, whatever else runs.
"""
