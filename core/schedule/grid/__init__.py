"""Transforms of loop nests for blocks of threads with shared memory: pure functions, as those of ``transform``."""
