"""A cluster of nodes as a serial loop nest, which says what is computed."""
