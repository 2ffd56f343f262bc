"""A compiled model as one page of HTML: what is shown is collected here; the page itself is built from ``viewer/``."""
