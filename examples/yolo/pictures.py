"""Pictures as arrays: PNG files by the standard library alone, and boxes that are drawn into them.

The format is that of the W3C's "Portable Network Graphics", third edition: chunks, of which those with the pixels are
one stream of zlib; each row begins with the number of a filter, which is undone here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.common import WrongFile

Array = np.ndarray[Any, Any]
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of colour: grey, RGB, palette, grey and alpha, RGB and alpha
_PALETTE = 3
_MOST = 1 << 28  # bytes of a picture


def read(path: Path) -> Array:
    """The picture in a PNG file of 8 bits: ``uint8[height, width, 3]``; what is transparent lies on white. Raises
    WrongFile for another file, or another kind of PNG."""
    content = path.read_bytes()
    if not content.startswith(_SIGNATURE):
        raise WrongFile(f"{path}: expected a PNG file, found one that begins with {content[:8]!r}")
    chunks = _chunks(content, path)
    if len(chunks.get(b"IHDR", b"")) != 13:
        raise WrongFile(f"{path}: expected a PNG file with a header, found none: it is damaged")
    width, height, bits, kind, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if bits != 8 or kind not in _CHANNELS or interlaced:
        raise WrongFile(f"{path}: expected a PNG of 8 bits that is not interlaced; save it so")
    size = _CHANNELS[kind]
    if not 0 < width * height * size <= _MOST:
        raise WrongFile(f"{path}: expected a picture of at most {_MOST} bytes, found {width} x {height}")
    expected = height * (1 + width * size)
    try:
        raw = zlib.decompressobj().decompress(chunks.get(b"IDAT", b""), expected)
    except zlib.error as error:
        raise WrongFile(f"{path}: its pixels are damaged: {error}") from error
    if len(raw) != expected:
        raise WrongFile(f"{path}: expected {expected} bytes of pixels, found {len(raw)}: it is truncated")
    rows = np.frombuffer(raw, np.uint8).reshape(height, -1)
    return _in_colour(_unfiltered(rows, size, path).reshape(height, width, size), kind, chunks, path)


def _chunks(content: bytes, path: Path) -> dict[bytes, bytes]:
    """Chunks by their names; those of one name are joined."""
    found: dict[bytes, bytes] = {}
    at = len(_SIGNATURE)
    while at + 12 <= len(content):
        length, name = struct.unpack(">I4s", content[at : at + 8])
        body = content[at + 8 : at + 8 + length]
        check = content[at + 8 + length : at + 12 + length]
        if len(check) < 4 or zlib.crc32(name + body) != int.from_bytes(check, "big"):
            raise WrongFile(f"{path}: the chunk {name!r} is damaged")
        found[name] = found.get(name, b"") + body
        at += 12 + length
    return found


def _unfiltered(rows: Array, step: int, path: Path) -> Array:
    """The pixels of rows that each begin with the number of a filter."""
    kinds, given = rows[:, 0], rows[:, 1:]
    result = np.zeros_like(given)
    above = np.zeros(given.shape[1], np.uint8)
    for number, kind in enumerate(kinds):
        row = given[number].copy()
        if kind == 2:
            row += above
        elif kind in (1, 3, 4):
            _along(row, above, step, int(kind))
        elif kind:
            raise WrongFile(f"{path}: expected a filter from 0 to 4, found {kind}: it is damaged")
        result[number] = above = row
    return result


def _along(row: Array, above: Array, step: int, kind: int) -> None:
    """Undoes a filter that reads the pixel to the left: that itself, its mean with the one above, or Paeth's choice."""
    values, upper = row.tolist(), above.tolist()
    for at in range(len(values)):
        left = values[at - step] if at >= step else 0
        up, corner = upper[at], upper[at - step] if at >= step else 0
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + up) // 2
        else:
            apart = [abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)]
            guess = (left, up, corner)[apart.index(min(apart))]
        values[at] = (values[at] + guess) & 255
    row[:] = values


def _in_colour(pixels: Array, kind: int, chunks: dict[bytes, bytes], path: Path) -> Array:
    if kind == _PALETTE:
        palette = np.frombuffer(chunks.get(b"PLTE", b""), np.uint8).reshape(-1, 3)
        if not len(palette) or int(pixels.max()) >= len(palette):
            raise WrongFile(f"{path}: expected a palette with every colour: it is damaged")
        return palette[pixels[..., 0]]
    colours = np.repeat(pixels[..., :1], 3, 2) if pixels.shape[2] < 3 else pixels[..., :3]
    if pixels.shape[2] in (2, 4):
        share = pixels[..., -1:].astype(np.float64) / 255
        colours = np.rint(colours * share + 255 * (1 - share)).astype(np.uint8)
    return np.ascontiguousarray(colours)


def write(path: Path, picture: Array) -> None:
    """A PNG file of ``uint8[height, width, 3]``."""
    height, width, _ = picture.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, -1)], 1)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows.tobytes())), chunk(b"IEND", b"")]
    path.write_bytes(_SIGNATURE + b"".join(parts))


def draw(picture: Array, box: Sequence[float], colour: tuple[int, int, int], thickness: int = 3) -> None:
    """The frame of a box (left, top, right, bottom), in pixels, into a picture."""
    height, width, _ = picture.shape
    left, right = (int(min(max(x, 0), width - 1)) for x in (box[0], box[2]))
    top, bottom = (int(min(max(y, 0), height - 1)) for y in (box[1], box[3]))
    inner = slice(top + thickness, max(top + thickness, bottom + 1 - thickness))
    area = picture[top : bottom + 1, left : right + 1]
    kept = picture[inner, left + thickness : max(left + thickness, right + 1 - thickness)].copy()
    area[:] = colour
    picture[inner, left + thickness : left + thickness + kept.shape[1]] = kept
