"""Which transforms a nest gets: the schedule, from the structure of the nest, the target and what was measured."""
