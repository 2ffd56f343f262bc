"""Which transforms a nest gets, by its structure, the target and what was measured; transforms alone change it."""
