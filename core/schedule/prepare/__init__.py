"""The graph with every contraction, loop and branch in the form that kernels read: rewrites nodes, groups none."""
