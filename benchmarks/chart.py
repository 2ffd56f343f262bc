"""Horizontal bars as an SVG that reads well on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

LONGEST, RIGHT, TOP = 540, 60, 70
BAR, GAP = 12, 14
CHARACTER, VALUE = 7, 24  # at least as wide as a character of a title, and as a value
COLORS = ("#2f81f7", "#8b949e", "#b08800", "#a371f7", "#6e7681")
TEXT = "#7d8590"  # between black and white: legible on both


@dataclass(frozen=True)
class Bars:
    """A group of bars: ``values`` by the name of a series, the same names in every group."""

    title: str
    values: Mapping[str, float]


def draw(title: str, groups: Sequence[Bars], base: str) -> str:
    """The chart; a line at 1 stands for ``base``."""
    series = list(groups[0].values)
    color = dict(zip(series, COLORS, strict=False))
    longest = max(1.0, *(value for group in groups for value in group.values.values()))
    scale = LONGEST / longest
    left = 20 + CHARACTER * max(len(group.title) for group in groups)
    width = left + LONGEST + RIGHT
    one = left + scale
    height = TOP + len(groups) * (len(series) * BAR + GAP) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{TEXT}" role="img">',
        f"  <title>{escape(title)}</title>",
        f'  <text x="{left}" y="20" font-size="14" font-weight="600">{escape(title)}</text>',
    ]
    x = left
    for name in series:
        lines.append(f'  <rect x="{x}" y="34" width="{BAR}" height="{BAR}" rx="2" fill="{color[name]}"/>')
        lines.append(f'  <text x="{x + BAR + 5}" y="44">{escape(name)}</text>')
        x += BAR + 25 + 7 * len(name)
    y = TOP
    for group in groups:
        middle = y + len(series) * BAR / 2 + 4
        lines.append(f'  <text x="{left - 10}" y="{middle:g}" text-anchor="end">{escape(group.title)}</text>')
        for name in series:
            length = group.values[name] * scale
            after = left + length + 5
            if one - VALUE < after < one + 5:
                after = one + 5  # or the line would cross it
            weight = ' font-weight="600"' if name == series[0] else ""
            lines.append(
                f'  <rect x="{left}" y="{y}" width="{length:.1f}" height="{BAR - 2}" rx="2" fill="{color[name]}"/>'
            )
            lines.append(
                f'  <text x="{after:.1f}" y="{y + BAR - 3}" font-size="10"{weight}>{group.values[name]:.2f}</text>'
            )
            y += BAR
        y += GAP
    lines += [
        f'  <line x1="{one:.1f}" y1="{TOP - 8}" x2="{one:.1f}" y2="{height - 10}" stroke="{TEXT}" '
        f'stroke-dasharray="3 3"/>',
        f'  <text x="{one:.1f}" y="{TOP - 11}" text-anchor="middle" font-size="10">{escape(base)}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
