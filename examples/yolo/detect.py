"""YOLO: a picture in, the same picture with boxes around what was found out.

    python examples/yolo/detect.py [PICTURE.png] [--model FILE.onnx] [--names NAMES.txt] [-o boxes.png]

FILE is an ONNX model, or a .pt2 of torch.export, with the output of YOLOv8 and its successors: [1, 4 + classes, places]
(without a suppression of its own). Without one, the weights are random, and so is what is found.
"""

from __future__ import annotations

import argparse
import colorsys
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import luminal
from examples.common import WrongFile, progress, run
from examples.yolo import pictures
from luminal.progress import Progress

Array = np.ndarray[Any, Any]
_GREY = 114  # around a picture that is not square


@dataclass(frozen=True)
class Found:
    """An object: its class, how sure the model is, and its box (left, top, right, bottom) in pixels."""

    kind: int
    score: float
    box: tuple[float, float, float, float]


def compiled(path: Path | None, size: int, threads: int = 0, report: Progress | None = None) -> luminal.Module:
    """The detector for pictures of ``size`` pixels a side. Raises WrongFile for a model of another form."""
    options: dict[str, Any] = {"threads": threads, "progress": report, "name": "detector"}
    if path is None:
        import torch

        from examples.yolo.network import Detector

        torch.manual_seed(0)
        module = luminal.compile(Detector().eval(), (torch.zeros(1, 3, size, size),), **options)
    elif path.suffix == ".onnx":
        module = luminal.compile(path, dims=_sizes(path, size), **options)
    elif path.suffix == ".pt2":
        module = luminal.compile(path, **options)
    else:
        raise WrongFile(f"{path}: expected an .onnx or a .pt2 file")
    if not isinstance(module, luminal.Module):
        raise WrongFile(f"{path}: expected a model of one picture, found inputs that decide its shapes")
    inputs, outputs = ([spec.shape for spec in specs] for specs in (module.entry.inputs, module.entry.outputs))
    if inputs != [(1, 3, size, size)] or len(outputs[0]) != 3 or outputs[0][0] != 1 or outputs[0][1] < 5:
        raise WrongFile(
            f"{path}: expected a model of [1, 3, {size}, {size}] that gives [1, 4 + classes, places], found "
            f"{', '.join(map(str, map(list, inputs)))} and {', '.join(map(str, map(list, outputs)))}; --size is the "
            "picture's side"
        )
    return module


def _sizes(path: Path, size: int) -> dict[str, int]:
    """What the symbolic sizes of a file's one input are here: one picture, ``size`` pixels a side."""
    import onnx

    inputs = onnx.load(str(path), load_external_data=False).graph.input
    axes = inputs[0].type.tensor_type.shape.dim if len(inputs) == 1 else []
    wanted = dict(zip((axis.dim_param for axis in axes), (1, 3, size, size), strict=False))
    return {name: value for name, value in wanted.items() if name}


def fitted(picture: Array, size: int) -> tuple[Array, float, tuple[int, int]]:
    """The picture as the model reads it, ``float32[1, 3, size, size]`` of 0 to 1: scaled until it fits, in the middle
    of grey; and by what it was scaled, and where its corner lies (across, down)."""
    height, width, _ = picture.shape
    scale = min(size / height, size / width)
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    scaled = _scaled(_scaled(picture.astype(np.float64), rows, 0), columns, 1)
    down, across = (size - rows) // 2, (size - columns) // 2
    whole = np.full((size, size, 3), float(_GREY))
    whole[down : down + rows, across : across + columns] = scaled
    planes = np.ascontiguousarray((whole / 255).astype(np.float32).transpose(2, 0, 1))
    return planes[None], scale, (across, down)


def _scaled(x: Array, size: int, axis: int) -> Array:
    """Linear interpolation along an axis, between the middles of pixels."""
    at = np.clip((np.arange(size) + 0.5) * x.shape[axis] / size - 0.5, 0, x.shape[axis] - 1)
    low = np.floor(at).astype(int)
    share = (at - low).reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    high = np.minimum(low + 1, x.shape[axis] - 1)
    result: Array = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return result


def objects(output: Array, confidence: float, overlap: float) -> list[Found]:
    """What the model found, of its output ``[4 + classes, places]``, the surest first: of boxes of a class that share
    more than ``overlap`` of their area, the surest."""
    middles, sizes, scores = output[:2].T, output[2:4].T, output[4:].T
    boxes = np.concatenate([middles - sizes / 2, middles + sizes / 2], 1).astype(np.float64)
    kinds, best = scores.argmax(1), scores.max(1)
    found: list[Found] = []
    for place in np.argsort(-best, kind="stable"):
        if not best[place] >= confidence:
            break
        box = tuple(boxes[place].tolist())
        if all(other.kind != kinds[place] or shared(other.box, box) <= overlap for other in found):
            found.append(Found(int(kinds[place]), float(best[place]), box))
    return found


def shared(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The area of what two boxes share, as a part of the area of both together."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    common = max(0.0, width) * max(0.0, height)
    both = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)) - common
    return common / both if both > 0 else 0.0


def detected(module: luminal.Module, picture: Array, size: int, confidence: float, overlap: float) -> list[Found]:
    """The objects in a picture, with boxes in its own pixels."""
    given, scale, (across, down) = fitted(picture, size)
    output = next(iter(module.run({module.input_names[0]: given}).values()))[0]
    return [
        Found(one.kind, one.score, tuple((x - c) / scale for x, c in zip(one.box, (across, down) * 2, strict=True)))
        for one in objects(output, confidence, overlap)
    ]


def scene(height: int = 240, width: int = 320) -> Array:
    """A picture for those who have none at hand: two blocks on a slope of colour."""
    down, across = np.mgrid[:height, :width]
    picture = np.stack([across * 255 // width, down * 255 // height, np.full_like(down, 90)], 2).astype(np.uint8)
    picture[60:150, 40:120] = (200, 60, 40)
    picture[110:210, 190:280] = (40, 60, 200)
    return picture


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path, nargs="?", help="a PNG file; default: two blocks")
    parser.add_argument("--model", type=Path, help="an .onnx or a .pt2 file; default: random weights")
    parser.add_argument("--names", type=Path, help="a file with the name of a class in each line")
    parser.add_argument("--size", type=int, default=640, help="the side of what the model reads, a multiple of 32")
    parser.add_argument("--confidence", type=float, default=0.25, help="the least score of what is shown")
    parser.add_argument("--overlap", type=float, default=0.45, help="the largest part that boxes of a class may share")
    parser.add_argument("-o", "--output", type=Path, default=Path("boxes.png"))
    parser.add_argument("--threads", type=int, default=0, help="0: one for each CPU")
    given = parser.parse_args(arguments)
    picture = scene() if given.picture is None else pictures.read(given.picture)
    names = [] if given.names is None else given.names.read_text(encoding="utf-8").splitlines()
    with progress() as report:
        module = compiled(given.model, given.size, given.threads, report)
    found = detected(module, picture, given.size, given.confidence, given.overlap)
    for one in found:
        colour = colorsys.hsv_to_rgb(one.kind * 0.618 % 1, 1, 1)
        pictures.draw(picture, one.box, tuple(round(255 * part) for part in colour))
        name = names[one.kind] if one.kind < len(names) else f"class {one.kind}"
        print(f"{name}  {one.score:.2f}  " + " ".join(f"{x:.0f}" for x in one.box))
    pictures.write(given.output, picture)
    sys.stderr.write(f"{len(found)} found; the picture with boxes is {given.output}\n")


if __name__ == "__main__":
    run(main)
