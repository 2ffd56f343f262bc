"""Transforms of loop nests, which say how: pure functions from nest to nest, each of which checks that it is legal."""
