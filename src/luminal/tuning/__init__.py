"""Choices by measurement: ``search`` has ``bench`` race the candidates of a model's questions in the process of a
``worker``, here or on the ``workers`` of a cluster, ``forms`` makes models of what forms of the algebra compute,
``confirm`` runs the model as a whole, and ``records`` keep what was measured."""
