"""``docs/coverage.md``, of which each suite of cases writes one part, and its tables for ``luminal check``.

``python -m tests.coverage_page`` writes the tables anew.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
DATA = ROOT / "src" / "luminal" / "coverage.json"
# The headings of the parts whose tables count, by suite. What is compiled is some of what the interpreter runs.
ONNX = "# Coverage"
TORCH = "# Coverage of PyTorch's operators"
_ROW = re.compile(r"\| (\S+) \| (\d+) / (\d+) \|")


def write(part: str) -> None:
    """Put ``part``, whose first line is a heading of the first level, in the place of the part of that heading, or at
    the end."""
    heading = part.split("\n", 1)[0]
    kept = [text for text in parts() if not text.startswith(f"{heading}\n")]
    places = [k for k, text in enumerate(parts()) if text.startswith(f"{heading}\n")]
    kept.insert(places[0] if places else len(kept), part.strip() + "\n")
    PAGE.write_text("\n".join(kept))
    DATA.write_text(tables())


def tables() -> str:
    """The operators of each suite, with how many of their cases pass and how many there are, as JSON."""
    suites = {ONNX: "onnx", TORCH: "torch"}
    found: dict[str, dict[str, list[int]]] = {suite: {} for suite in suites.values()}
    for part in parts():
        heading, *lines = part.splitlines()
        suite = suites.get(heading)
        inside = False
        for line in lines if suite else ():
            starts = line.startswith(("| operator | compiled |", "| operator | cases |"))
            inside = starts or (inside and line.startswith("|"))
            row = _ROW.match(line) if inside else None
            if row is not None:
                found[suite][row[1]] = [int(row[2]), int(row[3])]
    text = ",\n".join(
        f' "{suite}": {{\n' + ",\n".join(f"  {json.dumps(name)}: {cases}" for name, cases in operators.items()) + "\n }"
        for suite, operators in found.items()
    )
    return f"{{\n{text}\n}}\n"


def parts() -> list[str]:
    """The parts of the page, each from its heading on."""
    text = PAGE.read_text() if PAGE.exists() else ""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith("# "):
            found.append("")
        if found:
            found[-1] += line + "\n"
    return [part.rstrip() + "\n" for part in found]


if __name__ == "__main__":
    DATA.write_text(tables())
