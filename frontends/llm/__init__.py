"""Language models: checkpoints and configurations as graphs of primitives, and the choice of the next token."""
