"""Contractions in a graph: the roles of their axes, their operands, tiles and panels; new views and copies of
operands, no kernels."""
