"""Scheduling: kernels, layouts, transforms, cost and the memory plan."""
