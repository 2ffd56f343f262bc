"""What the examples print while they train, and the plot that they leave."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path


class Progress:
    """A line with the step, the loss and the time that is left."""

    def __init__(self, steps: int) -> None:
        self.steps, self.started, self.losses = steps, time.monotonic(), list[float]()
        self.shown = 0.0

    def __call__(self, loss: float) -> None:
        self.losses.append(loss)
        done, now = len(self.losses), time.monotonic()
        if now - self.shown > 0.2 or done == self.steps:
            self.shown = now
            left = (now - self.started) / done * (self.steps - done)
            sys.stderr.write(f"\rstep {done} of {self.steps}   loss {loss:8.4f}   {left:4.0f} s left ")
            sys.stderr.write("\n" if done == self.steps else "")
            sys.stderr.flush()


def plot(path: str | Path, losses: Sequence[float], title: str) -> None:
    """The losses of all steps as a picture in SVG."""
    width, height, edge = 640, 360, 48
    low, high = min(losses), max(losses)
    span = (high - low) or 1.0

    def at(step: int, loss: float) -> str:
        x = edge + (width - 2 * edge) * step / max(len(losses) - 1, 1)
        return f"{x:.1f},{height - edge - (height - 2 * edge) * (loss - low) / span:.1f}"

    line = " ".join(at(step, loss) for step, loss in enumerate(losses))
    frame = f"{edge},{edge} {edge},{height - edge} {width - edge},{height - edge}"
    texts = [
        (width / 2, edge / 2, "middle", title), (edge - 6, edge + 4, "end", f"{high:.2f}"),
        (edge - 6, height - edge + 4, "end", f"{low:.2f}"), (edge, height - edge + 18, "start", "1"),
        (width - edge, height - edge + 18, "end", f"step {len(losses)}"),
    ]  # fmt: skip
    labels = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in texts)
    Path(path).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/><polyline points="{frame}" fill="none" '
        f'stroke="gray"/><polyline points="{line}" fill="none" stroke="#1f6fb4" stroke-width="1.5"/>{labels}</svg>\n'
    )
