"""Decompositions: named operators written once in primitives, shared by both front ends."""
