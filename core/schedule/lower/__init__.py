"""A cluster of nodes as a serial loop nest, which says what is computed; clusters and layouts stay as they are."""
