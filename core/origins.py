"""Where nodes come from in the model, and where an option changed what they compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Origin:
    """A source operator: its type, its name in the model, the user's line (``file:line``) where it is known, and the
    path of the modules that it is in."""

    op: str
    name: str
    location: str = ""
    module: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        return f"{self.op} {self.name!r}{where}"


@dataclass(frozen=True)
class Approximation:
    """A place where an ``option`` changes the computed values: ``what`` was done, and to which source operators.
    ``form`` is what a search found for the ``region`` of that hash."""

    option: str
    what: str
    origins: tuple[Origin, ...]
    region: str = ""
    form: str = ""

    @property
    def described(self) -> dict[str, Any]:
        """This value as a dictionary for JSON."""
        found = {"region": self.region, "form": self.form} if self.form else {}
        return {"option": self.option, "what": self.what, "origins": [str(o) for o in self.origins], **found}
