"""Language models: from a checkpoint to tokens, in one library."""
