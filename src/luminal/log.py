"""The log: what luminal does, on standard error, as far as the switch ``LUMINAL_LOG`` asks for it.

Messages go to the logger ``luminal`` of Python's ``logging``, so that an application can take them elsewhere.
"""

from __future__ import annotations

import logging
from functools import cache

from luminal.core import config


def configure() -> None:
    """Writes the log to standard error from the level on that ``LUMINAL_LOG`` names, if it names one. Raises InputError
    where there is no such level."""
    level = config.LOG.value
    if level is not None:
        _handled()
        logging.getLogger("luminal").setLevel(level)


@cache
def _handled() -> None:
    """Adds the handler, once."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
    logging.getLogger("luminal").addHandler(handler)
