"""Why luminal issues more instructions of a class than Triton, by kind of work, architecture (empty: all) and class."""

REASONS: dict[tuple[str, str, str], str] = {}
