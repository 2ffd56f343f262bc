"""Sound for Whisper: WAV files by the standard library, and the spectrogram that the encoder reads.

The spectrogram is that of Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section
2.2: magnitudes of 25 ms every 10 ms, summed on Slaney's mel scale, as logarithms.
"""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np

from examples.common import WrongFile

Array = np.ndarray[Any, Any]
RATE, FRAME, HOP = 16_000, 400, 160
_FLOOR, _RANGE = 1e-10, 8.0  # the least power, and how many powers of ten below the loudest are told apart


def read(path: Path) -> Array:
    """The sound in a WAV file: float64 samples of one channel, 16,000 a second. Raises WrongFile where it is none."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, count = file.getparams()[:4]
            content = file.readframes(count)
    except (wave.Error, EOFError) as error:
        raise WrongFile(f"{path}: expected a WAV file of whole numbers (PCM): {error or 'it is empty'}") from error
    samples = _samples(content[: len(content) - len(content) % (width * channels)], width)
    if not samples.size:
        raise WrongFile(f"{path}: expected sound, found a WAV file without samples")
    return resampled(samples.reshape(-1, channels).mean(1), rate)


def _samples(content: bytes, width: int) -> Array:
    """Numbers from -1 to 1: those of one byte have no sign, others are little-endian."""
    if width == 1:
        return (np.frombuffer(content, np.uint8).astype(np.float64) - 128) / 128
    parts = np.frombuffer(content, np.uint8).reshape(-1, width).astype(np.int64)
    whole = (parts << (8 * np.arange(width))).sum(1)
    half = 1 << (8 * width - 1)
    return ((whole + half) % (2 * half) - half) / half


def resampled(samples: Array, rate: int) -> Array:
    """The sound at 16,000 samples a second: its spectrum, without what is too high for that."""
    if rate == RATE:
        return samples
    count = max(1, round(len(samples) * RATE / rate))
    spectrum = np.fft.rfft(samples)
    kept = np.zeros(count // 2 + 1, complex)
    shared = min(len(kept), len(spectrum))
    kept[:shared] = spectrum[:shared]
    return np.fft.irfft(kept, count) * (count / len(samples))


def chirp(seconds: float = 2.0) -> Array:
    """A tone that rises, for those who have no file at hand."""
    at = np.arange(int(seconds * RATE)) / RATE
    return 0.4 * np.sin(2 * np.pi * (200 + 300 * at) * at)


def mel_filters(bands: int) -> Array:
    """The weight of each frequency in each band ``[bands, FRAME // 2 + 1]``: triangles whose corners are evenly spaced
    on Slaney's mel scale, linear up to 1 kHz and logarithmic above, each of the same area."""
    step = np.log(6.4) / 27  # of the scale above 1 kHz, which is 15 mel

    def mel(hertz: float) -> float:
        return 3 * hertz / 200 if hertz < 1000 else 15 + float(np.log(hertz / 1000)) / step

    mels = np.linspace(mel(0.0), mel(RATE / 2), bands + 2)
    corners = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(step * (mels - 15)))
    low, middle, high = (corners[k : k + bands, None] for k in range(3))
    frequencies = np.fft.rfftfreq(FRAME, 1 / RATE)[None]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (high - low))


def spectrogram(samples: Array, bands: int, frames: int) -> Array:
    """What the encoder reads of ``samples``, of which there are at most ``frames * HOP``: ``float32[1, bands,
    frames]``; silence follows where there are fewer."""
    whole = np.zeros(frames * HOP)
    whole[: min(len(samples), len(whole))] = samples[: len(whole)]
    padded = np.pad(whole, FRAME // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)
    parts = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP][:frames]
    powers = np.abs(np.fft.rfft(parts * window)) ** 2
    heights = np.log10(np.maximum(powers @ mel_filters(bands).T, _FLOOR)).T
    heights = (np.maximum(heights, heights.max() - _RANGE) + 4) / 4
    return heights[None].astype(np.float32)
