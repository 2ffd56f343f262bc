"""Language models as checkpoints describe them: ``config.json`` and named tensors, into graphs of primitives."""
