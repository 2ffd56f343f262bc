"""Whether a compiled model is right, and if not, which step made it wrong: ``luminal.diff``."""

from luminal.comparison.compare import diff
from luminal.comparison.report import Finding, Report, Row, Trial

__all__ = ["Finding", "Report", "Row", "Trial", "diff"]
