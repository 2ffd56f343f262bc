"""A graph divided among the ranks of a mesh: where each value lies, chosen by cost, and what each rank runs."""
