"""``docs/coverage.md``, of which each suite of cases writes one part."""

from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"


def write(part: str) -> None:
    """Put ``part``, whose first line is a heading of the first level, in the place of the part of that heading, or at
    the end."""
    heading = part.split("\n", 1)[0]
    kept = [text for text in parts() if not text.startswith(f"{heading}\n")]
    places = [k for k, text in enumerate(parts()) if text.startswith(f"{heading}\n")]
    kept.insert(places[0] if places else len(kept), part.strip() + "\n")
    PAGE.write_text("\n".join(kept))


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
