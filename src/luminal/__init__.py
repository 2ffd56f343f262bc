"""luminal: an ahead-of-time deep-learning compiler."""

__version__ = "0.1.0"

__all__ = ["__version__"]
