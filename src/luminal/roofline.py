"""A roofline as an SVG, for light and dark pages: each kernel by its operations for each byte and by its speed, below
what the machine could do at that ratio (Williams, Waterman and Patterson, "Roofline", 2009)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from luminal.peak import Peak
from luminal.profile import KernelTime

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 480, 64, 260, 56, 52
LABELLED = 16  # kernels that are named beside the picture: those that take the most time
LONGEST_NAME = 26
UNITS = {"FMA": "float32", "bf16": "bf16", "int8": "int8"}
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #57606a } .title { font-size: 15px; fill: #1f2328 }
.grid { stroke: #d0d7de } .roof { stroke: #1f2328; stroke-width: 2; fill: none }
.kernel { fill: #2f81f7; fill-opacity: .55; stroke: #2f81f7 } .back { fill: #ffffff } .number { fill: #1f2328 }
@media (prefers-color-scheme: dark) {
  text { fill: #9da7b3 } .title { fill: #e6edf3 } .grid { stroke: #30363d } .roof { stroke: #e6edf3 }
  .back { fill: #0d1117 } .number { fill: #e6edf3 }
}
</style>"""


def draw(title: str, kernels: Sequence[KernelTime], peak: Peak) -> str:
    """The picture of those ``kernels`` that have contractions; the area of a disc is its share of the time of all."""
    shown = [kernel for kernel in kernels if kernel.operations and kernel.bytes and kernel.seconds]
    total = sum(kernel.seconds for kernel in kernels)
    ceilings = dict.fromkeys(("FMA", *(kernel.unit for kernel in shown)))
    roofs = {unit: peak.computing(unit) for unit in ceilings}
    intensities = [kernel.operations / kernel.bytes for kernel in shown]
    speeds = [kernel.operations / kernel.seconds for kernel in shown]
    ridge = max(roofs.values()) / peak.bytes
    x = _Axis([*intensities, ridge / 8, ridge * 4], LEFT, WIDTH - RIGHT)
    lowest = min([*speeds, peak.bytes * 10**x.low])
    y = _Axis([lowest, max(roofs.values()) * 1.5], HEIGHT - BOTTOM, TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>{STYLE}",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
        f'<text x="{LEFT}" y="42">GFLOP/s over operations for each byte touched; discs: share of the time</text>',
    ]
    for exponent in x.decades:
        at = x.place(10.0**exponent)
        lines.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        lines.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10.0**exponent:g}</text>')
    for exponent in y.decades:
        at = y.place(10.0**exponent)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0 ** (exponent - 9):g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">FLOP/byte</text>')
    for unit, roof in roofs.items():
        corner = x.place(roof / peak.bytes)
        top, start = y.place(roof), y.place(peak.bytes * 10**x.low)
        lines.append(f'<path class="roof" d="M{LEFT} {start:.1f}L{corner:.1f} {top:.1f}H{WIDTH - RIGHT}"/>')
        label = f"{UNITS[unit]}: {roof / 1e9:.0f} GFLOP/s"
        lines.append(f'<text x="{WIDTH - RIGHT}" y="{top - 6:.1f}" text-anchor="end">{label}</text>')
    lines.append(f'<text x="{LEFT + 8}" y="{TOP + 14}">memory: {peak.bytes / 1e9:.1f} GB/s</text>')
    for number, (kernel, intensity, speed) in enumerate(zip(shown, intensities, speeds, strict=True), 1):
        across, up, radius = x.place(intensity), y.place(speed), 5 + 26 * math.sqrt(kernel.seconds / total)
        about = f"{kernel.name}: {kernel.seconds * 1e6:.1f} us, {speed / 1e9:.3g} GFLOP/s, {intensity:.3g} FLOP/byte"
        about += "".join(f"\n{origin}" for origin in kernel.origins)
        disc = f'<circle class="kernel" cx="{across:.1f}" cy="{up:.1f}" r="{radius:.1f}">'
        lines.append(f"{disc}<title>{escape(about)}</title></circle>")
        if number <= LABELLED:
            name = kernel.name if len(kernel.name) <= LONGEST_NAME else kernel.name[: LONGEST_NAME - 1] + "…"
            text = f"{number}  {escape(name)}, {kernel.seconds / total:.0%}"
            lines.append(f'<text class="number" x="{across:.1f}" y="{up + 4:.1f}" text-anchor="middle">{number}</text>')
            lines.append(f'<text x="{WIDTH - RIGHT + 16}" y="{TOP + 12 + 22 * (number - 1)}">{text}</text>')
    return "\n".join([*lines, "</svg>\n"])


class _Axis:
    """A logarithmic axis from ``first`` to ``last``, in pixels, that holds all ``values``, from power of ten to power
    of ten."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        self.first, self.last = first, last

    @property
    def decades(self) -> range:
        return range(self.low, self.high + 1)

    def place(self, value: float) -> float:
        part = (math.log10(value) - self.low) / max(self.high - self.low, 1)
        return self.first + part * (self.last - self.first)
