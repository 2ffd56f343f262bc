"""The report of a comparison as one page of HTML, from the values that its JSON has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True)
    environment.filters["number"] = lambda value: value if isinstance(value, str) else f"{value:.3g}"
    return environment.from_string(resources.files("luminal.comparison").joinpath("report.html.j2").read_text("utf-8"))


def page(report: Mapping[str, Any]) -> str:
    """The page of a report, given as ``Report.as_json`` has it; that is in the page as well, for programs."""
    return _template().render(report=report)
