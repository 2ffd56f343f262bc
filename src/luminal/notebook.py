"""What notebooks show of a value: HTML."""

from __future__ import annotations

import io
from html import escape
from typing import Any

from rich.console import Console, Group

_WIDTH = 120  # columns of a table in a cell
# Colours come from the notebook, so that light and dark ones are both read.
_FRAME = '<pre style="white-space:pre;overflow-x:auto;line-height:1.2;font-family:monospace">{code}</pre>'


def html(*parts: Any) -> str:
    """What ``rich`` prints of ``parts``, as a block of HTML."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_jupyter=False)
    console.print(Group(*parts))
    return console.export_html(inline_styles=True, code_format=_FRAME)


def heading(text: str) -> str:
    """A line above a block."""
    return f"<p><strong>{escape(text)}</strong></p>"
