"""Language models: from a checkpoint on disk to text."""
