"""The page: a skeleton, the viewer's script and the values, in one file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from luminal.core.errors import BuildError

_HERE = Path(__file__).parent


def built() -> tuple[str, str]:
    """The viewer's script, and the licences of what is in it. Raises BuildError in a source tree without the viewer."""
    try:
        script = (_HERE / "built" / "viewer.js").read_text(encoding="utf-8")
        return script, (_HERE / "built" / "LICENCES.txt").read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BuildError(
            "the viewer is not built: wheels of luminal have it; in a source tree, 'make viewer' builds it, with Node"
        ) from error


def page(values: Mapping[str, Any]) -> str:
    """The page that shows ``values`` (see ``collect``). Raises BuildError in a source tree without the viewer."""
    script, licences = built()
    parts = {
        "TITLE": escape(str(values["name"])),
        # In a script, "<" begins nothing but text if no tag follows it.
        "MODEL": json.dumps(values, separators=(",", ":")).replace("<", "\\u003c"),
        "LICENCES": licences.replace("*/", "* /"),
        "VIEWER": script,
    }
    text = (_HERE / "page.html").read_text(encoding="utf-8")
    # Taken apart at once, so that nothing in the parts is read as a place for others.
    return "".join(parts[part] if number % 2 else part for number, part in enumerate(re.split(r"@([A-Z]+)@", text)))
