"""Nodes grouped into kernels, and the place and layout of every stored value; nodes themselves stay as they are."""
