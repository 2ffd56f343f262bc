"""Horizontal bars as an SVG that reads well on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

LONGEST, RIGHT, TOP, BOTTOM = 560, 60, 92, 12
BAR, FIRST, GAP = 11, 15, 18  # heights: of a bar, of the first one of a group, and between groups
CHARACTER, VALUE = 7, 24  # at least as wide as a character of a title, and as a value
COLORS = ("#2f81f7", "#8b949e", "#b08800", "#a371f7", "#6e7681")
TEXT = "#7d8590"  # between black and white: legible on both
STEPS = (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # between the lines of the scale


@dataclass(frozen=True)
class Bars:
    """A group of bars: ``values`` by the name of a series. A group may lack some."""

    title: str
    values: Mapping[str, float]


def draw(title: str, groups: Sequence[Bars], base: str) -> str:
    """The chart; a line at 1 stands for ``base``. The first series is the one that matters: its bars are thicker."""
    series = list(dict.fromkeys(name for group in groups for name in group.values))
    color = dict(zip(series, COLORS, strict=False))
    longest = max(1.0, *(value for group in groups for value in group.values.values()))
    scale = LONGEST / longest
    left = 20 + CHARACTER * max(len(group.title) for group in groups)
    width = max(left + LONGEST + RIGHT, 40 + CHARACTER * len(title))
    one = left + scale
    heights = [sum(FIRST if name == series[0] else BAR for name in group.values) + GAP for group in groups]
    height = TOP + sum(heights) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{TEXT}" role="img">',
        f"  <title>{escape(title)}</title>",
        f'  <text x="20" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    x = 20
    for name in series:
        weight = ' font-weight="600"' if name == series[0] else ""
        lines.append(f'  <rect x="{x}" y="39" width="12" height="12" rx="2" fill="{color[name]}"/>')
        lines.append(f'  <text x="{x + 17}" y="49"{weight}>{escape(name)}</text>')
        x += 17 + CHARACTER * len(name) + 18
    lines += _scale(left, scale, longest, height, base)
    y = TOP
    for group, room in zip(groups, heights, strict=True):
        middle = y + (room - GAP) / 2 + 4
        lines.append(f'  <text x="{left - 10}" y="{middle:g}" text-anchor="end">{escape(group.title)}</text>')
        below = y
        for name, value in group.values.items():
            tall = FIRST if name == series[0] else BAR
            after = left + value * scale + 5
            if one - VALUE < after < one + 5:
                after = one + 5  # or the line would cross it
            weight = ' font-weight="600"' if name == series[0] else ""
            size = 11 if name == series[0] else 9
            lines.append(
                f'  <rect x="{left}" y="{below}" width="{value * scale:.1f}" height="{tall - 2}" rx="2" '
                f'fill="{color[name]}"/>'
            )
            lines.append(
                f'  <text x="{after:.1f}" y="{below + tall / 2 + 2.5:g}" font-size="{size}"{weight}>{value:.2f}</text>'
            )
            below += tall
        y += room
    lines += [
        f'  <line x1="{one:.1f}" y1="{TOP - 8}" x2="{one:.1f}" y2="{height - BOTTOM}" stroke="{TEXT}" '
        f'stroke-dasharray="3 3"/>',
        f'  <text x="{one:.1f}" y="{TOP - 13}" text-anchor="middle" font-size="11" font-weight="600">{escape(base)}'
        f"</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _scale(left: int, scale: float, longest: float, height: int, base: str) -> list[str]:
    """Faint lines behind the bars, with their numbers where ``base`` leaves room."""
    step = next((step for step in STEPS if longest / step <= 8), longest)
    marks = [number * step for number in range(1, int(longest / step) + 1)]
    lines = []
    for mark in marks:
        x = left + mark * scale
        lines.append(f'  <path d="M{x:.1f} {TOP - 8}V{height - BOTTOM}" stroke="{TEXT}" stroke-opacity="0.18"/>')
        if abs(mark - 1) * scale > CHARACTER * len(base) / 2 + VALUE:
            lines.append(f'  <text x="{x:.1f}" y="{TOP - 13}" text-anchor="middle" font-size="10">{mark:g}</text>')
    return lines
