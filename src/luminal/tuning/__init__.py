"""Choices by measurement: ``search`` has ``bench`` race the candidates of a model's questions in the process of a
``worker``, ``confirm`` runs the model as a whole, and ``records`` keep what was measured."""
