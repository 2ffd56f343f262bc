"""The examples of whole models, on small ones: what they compute, the programs themselves, and files that are wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import subprocess
import sys
import wave
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from onnx import TensorProto, helper

import luminal
from examples import common, language
from examples.whisper import sound, transcribe
from examples.yolo import detect, network, pictures
from luminal.llm import Sampling
from tests.drawn import draw

ROOT = Path(__file__).resolve().parents[1]
Array = np.ndarray[Any, Any]


# ---- whisper ---------------------------------------------------------------------------------------------------------

BANDS, FRAMES = 20, 120


@cache
def speaker() -> Any:
    config = transformers.WhisperConfig(
        vocab_size=200, num_mel_bins=BANDS, d_model=48, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=FRAMES // 2,
        max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
        suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    made = transformers.WhisperForConditionalGeneration(config).eval()
    draw(made, 3, 0.25)
    return made


@cache
def listener() -> luminal.Module:
    return transcribe.compiled(speaker())


def heard(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((1, BANDS, FRAMES)).astype(np.float32)


def test_a_spectrogram_is_that_of_transformers() -> None:
    frames = 300
    drawn = np.random.default_rng(0)
    for samples in (sound.chirp(1.5), drawn.standard_normal(frames * sound.HOP) * 0.1):
        wanted = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=frames * sound.HOP // sound.RATE)(
            samples.astype(np.float32), sampling_rate=sound.RATE, return_tensors="np"
        )["input_features"]
        found = sound.spectrogram(samples, 80, frames)
        assert found.shape == wanted.shape == (1, 80, frames)
        # Theirs is in float32, which tells powers 10^-8 below the loudest apart by so much.
        assert np.abs(found - wanted).max() < 2e-3 and np.abs(found - wanted).mean() < 1e-5
    np.testing.assert_allclose(
        sound.mel_filters(128).T, transformers.WhisperFeatureExtractor(feature_size=128).mel_filters, atol=1e-9
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_tokens_of_a_sound_are_those_of_transformers(seed: int) -> None:
    model, spectrogram = speaker(), heard(seed)
    rules = transcribe.Rules.of(model)
    found = list(transcribe.tokens(listener(), spectrogram, rules, 40))
    given = torch.from_numpy(spectrogram)
    with torch.no_grad():
        wanted = transformers.GenerationMixin.generate(
            model, given, max_new_tokens=40, do_sample=False, return_dict_in_generate=True, output_scores=True
        )
    gaps = [float(np.diff(np.sort(scores[0].numpy())[-2:])[0]) for scores in wanted.scores]
    assert min(gaps) > 1e-4  # no other token is as good
    assert found == wanted.sequences[0, 1:].tolist() and len(set(found)) > 4


def test_rules_of_a_model_are_those_of_its_folder() -> None:
    model = speaker()
    with pytest.raises(common.WrongFile, match="lang_to_id: the model does not know 'de'; it knows none"):
        transcribe.Rules.of(model, language="de")
    given = transformers.GenerationConfig(
        eos_token_id=2, lang_to_id={"<|de|>": 7, "<|en|>": 6}, task_to_id={"translate": 8}, no_timestamps_token_id=9,
        suppress_tokens=[11], begin_suppress_tokens=[12],
    )  # fmt: skip
    kept, model.generation_config = model.generation_config, given
    try:
        rules = transcribe.Rules.of(model, "de", "translate")
        assert rules == transcribe.Rules([3, 7, 8, 9], frozenset([2]), [11], [12])
        first = next(transcribe.tokens(listener(), heard(0), rules, 3))
        without = transcribe.Rules([3, 7, 8, 9], frozenset([2]), [first], [])
        assert next(transcribe.tokens(listener(), heard(0), without, 3)) != first
        with pytest.raises(common.WrongFile, match="does not know 'fr'; it knows de, en"):
            transcribe.Rules.of(model, "fr")
    finally:
        model.generation_config = kept


@pytest.mark.parametrize(("width", "channels", "rate"), [(1, 1, 16_000), (2, 2, 16_000), (3, 1, 16_000), (2, 1, 8_000)])
def test_wav_files_are_read(width: int, channels: int, rate: int, tmp_path: Path) -> None:
    at = np.arange(rate // 10) / rate
    wanted = 0.5 * np.sin(2 * np.pi * 440 * at)
    whole = np.rint(wanted * ((1 << (8 * width - 1)) - 1)).astype(np.int64) + (128 if width == 1 else 0)
    content = (whole[:, None] >> (8 * np.arange(width)) & 255).astype(np.uint8)
    content = np.repeat(content[:, None], channels, 1)
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setparams((channels, width, rate, len(at), "NONE", ""))
        file.writeframes(content.tobytes())
    found = sound.read(tmp_path / "tone.wav")
    there = np.arange(sound.RATE // 10) / sound.RATE
    assert np.abs(found - 0.5 * np.sin(2 * np.pi * 440 * there))[100:-100].max() < max(
        0.01, 1.5 / (1 << (8 * width - 1))
    )


def test_whisper_speaks_and_says_what_is_wrong(tmp_path: Path) -> None:
    speaker().save_pretrained(tmp_path / "model")
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
        transcribe.main(["--model", str(tmp_path / "model"), "--max-tokens", "5", "--threads", "1"])
    lines = said.getvalue().splitlines()
    assert len(lines) == -(-2 * sound.RATE // (FRAMES * sound.HOP))
    assert all(1 <= len([*map(int, line.split())]) <= 5 for line in lines)
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(common.WrongFile, match=r"text\.wav: expected a WAV file"):
        transcribe.main([str(tmp_path / "text.wav")])
    with pytest.raises(common.WrongFile, match=r"expected a folder with config\.json"):
        transcribe.loaded(tmp_path)
    transformers.BertConfig().save_pretrained(tmp_path / "bert")
    with pytest.raises(common.WrongFile, match="expected a model of type 'whisper', found 'bert'"):
        transcribe.loaded(tmp_path / "bert")


# ---- llama, mistral --------------------------------------------------------------------------------------------------

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128}  # fmt: skip


def test_random_language_models_speak_bytes() -> None:
    model = language.random_model("mistral", **SMALL, sliding_window=16)
    draw(model, 1, 0.3)
    lm = luminal.llm.compile(model, context=128, chunk=32)
    prompt = "Once"
    given = torch.tensor([list(prompt.encode())])
    with torch.no_grad():
        wanted = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=30, do_sample=False)
    assert list(language.bytes_of(lm, prompt, 30, Sampling())) == wanted[0, given.shape[1] :].tolist()


def test_language_examples_say_what_is_wrong(tmp_path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as told:
        language.main("llama", "", ["Hi", "--max-tokens", "4", "--threads", "1"], **SMALL)
    assert said.getvalue().startswith("Hi") and "4 tokens in" in told.getvalue()
    (tmp_path / "model.gguf").write_bytes(b"none")
    with pytest.raises(luminal.LuminalError, match="GGUF"):
        language.main("llama", "", ["--model", str(tmp_path / "model.gguf")])


# ---- yolo ------------------------------------------------------------------------------------------------------------

SIDE = 64


@cache
def detector() -> network.Detector:
    """With weights that keep numbers as large as they are from layer to layer."""
    made = network.Detector(classes=5, width=4).eval()
    draw(made, 2, 1.0)
    with torch.no_grad():
        for value in made.parameters():
            if value.ndim > 1:
                value.mul_((2 / value[0].numel()) ** 0.5)
    return made


@pytest.mark.parametrize("form", [".onnx", ".pt2"])
def test_boxes_are_those_of_the_frameworks(form: str, tmp_path: Path) -> None:
    """From a file, on a picture that is no square; the suppression beside that of onnxruntime."""
    path, images = tmp_path / f"net{form}", torch.zeros(1, 3, SIDE, SIDE)
    if form == ".onnx":
        torch.onnx.export(detector(), (images,), path, dynamo=True, external_data=False, verbose=False)
    else:
        torch.export.save(torch.export.export(detector(), (images,)), path)
    module = detect.compiled(path, SIDE)
    picture = detect.scene(60, 100)
    given, scale, (across, down) = detect.fitted(picture, SIDE)
    assert given.shape == (1, 3, SIDE, SIDE) and scale == SIDE / 100 and (across, down) == (0, 13)
    with torch.no_grad():
        expected = detector()(torch.from_numpy(given))[0].numpy()
    output = module.run({module.input_names[0]: given}).popitem()[1][0]
    assert np.abs(output - expected).max() < 1e-3
    confidence, overlap = float(np.quantile(output[4:].max(0), 0.4)), 0.3
    found = detect.detected(module, picture, SIDE, confidence, overlap)
    wanted = _suppressed(output, confidence, overlap)
    assert [(one.kind, round(one.score, 4)) for one in found] == [(k, round(s, 4)) for k, s, _ in wanted]
    assert 3 < len(found) < output.shape[1]
    for one, (_, _, box) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.box, (box - [across, down, across, down]) / scale, atol=1e-2)


def _suppressed(output: Array, confidence: float, overlap: float) -> list[tuple[int, float, Array]]:
    """Class, score and box by ONNX's ``NonMaxSuppression``, of the likeliest class of each place."""
    kinds = output[4:].argmax(0)
    scores = np.where(np.arange(len(output) - 4)[:, None] == kinds, output[4:], 0)[None]
    names = ["boxes", "scores", "most", "overlap", "least"]
    node = helper.make_node("NonMaxSuppression", names, ["chosen"], center_point_box=1)
    kinds_of = [TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT]
    shapes: list[list[int]] = [[1, output.shape[1], 4], list(scores.shape), [1], [1], [1]]
    given = [helper.make_tensor_value_info(*each) for each in zip(names, kinds_of, shapes, strict=True)]
    result = helper.make_tensor_value_info("chosen", TensorProto.INT64, [None, 3])
    graph = helper.make_graph([node], "nms", given, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = [output[:4].T[None], scores, np.array([1000]), np.array([overlap], np.float32),
              np.array([confidence], np.float32)]  # fmt: skip
    chosen = session.run(None, dict(zip(names, values, strict=True)))[0]
    boxes = np.concatenate([output[:2] - output[2:4] / 2, output[:2] + output[2:4] / 2]).T
    found = [(int(kind), float(output[4 + kind, place]), boxes[place]) for _, kind, place in chosen]
    return sorted(found, key=lambda one: -one[1])


def test_pictures_come_back_as_they_were(tmp_path: Path) -> None:
    picture = detect.scene(33, 47)
    pictures.draw(picture, (-5, 4, 20.6, 900), (1, 2, 3))
    assert (picture[4:, 0:3] == (1, 2, 3)).all() and (picture[:4] != (1, 2, 3)).any(-1).all()
    assert (picture[10:28, 5:15] != (1, 2, 3)).any(-1).all()
    pictures.write(tmp_path / "a.png", picture)
    np.testing.assert_array_equal(pictures.read(tmp_path / "a.png"), picture)


def test_rows_of_every_filter_are_read() -> None:
    """What is filtered as the format says comes back."""
    drawn = np.random.default_rng(0).integers(0, 256, (5, 12), np.uint8)
    rows = np.zeros((5, 13), np.uint8)
    for number, row in enumerate(drawn.astype(int)):
        up = drawn[number - 1].astype(int) if number else np.zeros(12, int)
        left, corner = (np.concatenate([np.zeros(3, int), x[:-3]]) for x in (row, up))
        guess = left + up - corner
        apart = np.abs(np.stack([guess - left, guess - up, guess - corner]))
        paeth = np.choose(apart.argmin(0), [left, up, corner])
        predicted = [0 * row, left, up, (left + up) // 2, paeth][number]
        rows[number] = [number, *((row - predicted) & 255)]
    np.testing.assert_array_equal(pictures._unfiltered(rows, 3, Path("x")), drawn)


def test_yolo_draws_and_says_what_is_wrong(tmp_path: Path) -> None:
    module = torch.nn.Conv2d(3, 4, 1).eval()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 32, 32),)), tmp_path / "other.pt2")
    with pytest.raises(
        common.WrongFile, match=r"expected a model of \[1, 3, 32, 32\] that gives \[1, 4 \+ classes, places\]"
    ):
        detect.compiled(tmp_path / "other.pt2", 32)
    with pytest.raises(common.WrongFile, match=r"expected an \.onnx or a \.pt2 file"):
        detect.compiled(tmp_path / "other.pt", 32)
    (tmp_path / "no.png").write_bytes(b"GIF89a")
    with pytest.raises(common.WrongFile, match="expected a PNG file, found one that begins with b'GIF89a'"):
        detect.main([str(tmp_path / "no.png")])
    pictures.write(tmp_path / "cut.png", detect.scene(20, 20))
    content = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[:60])
    with pytest.raises(common.WrongFile, match=r"cut\.png: "):
        pictures.read(tmp_path / "cut.png")
    torch.export.save(torch.export.export(detector(), (torch.zeros(1, 3, SIDE, SIDE),)), tmp_path / "net.pt2")
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
        detect.main(["--model", str(tmp_path / "net.pt2"), "--size", str(SIDE), "--confidence", "0.5",
                     "-o", str(tmp_path / "out.png")])  # fmt: skip
    assert "class" in said.getvalue()
    assert (pictures.read(tmp_path / "out.png") != detect.scene()).any()


PROGRAMS = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for path in ROOT.glob("examples/*/*.py") if "__main__" in path.read_text() and path.parent.name != "train"
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_have_help(program: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as ended:
        importlib.import_module(program).main(["--help"])
    assert ended.value.code == 0 and "--threads" in said.getvalue()
    assert program.replace(".", "/").removeprefix("examples/") in (ROOT / "examples" / "README.md").read_text()


def test_a_program_runs_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "llama" / "generate.py", "--model", "none"], cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith("error: expected a .gguf file, or a folder"), done.stderr


# ---- stable diffusion ------------------------------------------------------------------------------------------------


V: dict[str, Any] = {"prediction_type": "v_prediction", "timestep_spacing": "trailing", "set_alpha_to_one": True}


@pytest.mark.parametrize("changes", [{}, V], ids=["epsilon", "v"])
def test_a_picture_is_that_of_diffusers(changes: dict[str, Any]) -> None:
    diffusers = pytest.importorskip("diffusers", reason="no diffusers is installed: pip install diffusers")
    from examples.stable_diffusion import paint
    from examples.stable_diffusion.diffusion import Schedule

    given = {**paint._SCHEDULER, **changes}
    pipeline = dataclasses.replace(paint_pipeline(), schedule=Schedule.of(given))
    size, steps, guidance = 16, 7, 3.0
    latents = paint.start(pipeline, size, 5)
    found = paint.painted(painter(), pipeline, "a lighthouse", latents, steps, guidance)
    theirs = diffusers.StableDiffusionPipeline(
        vae=pipeline.vae, text_encoder=pipeline.text_encoder, tokenizer=None, unet=pipeline.unet,
        scheduler=diffusers.DDIMScheduler(**given), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip
    theirs.set_progress_bar_config(disable=True)
    with torch.no_grad():
        empty, asked = (
            pipeline.text_encoder(torch.tensor([pipeline.tokens(text)])).last_hidden_state
            for text in ("", "a lighthouse")
        )
    wanted = theirs(
        prompt_embeds=asked, negative_prompt_embeds=empty, latents=torch.from_numpy(latents), guidance_scale=guidance,
        num_inference_steps=steps, output_type="np", height=size, width=size,
    ).images[0]  # fmt: skip
    assert found.shape == wanted.shape == (size, size, 3) and found.std() > 0.01
    assert np.abs(found - wanted).max() < 1e-3


@cache
def paint_pipeline() -> Any:
    from examples.stable_diffusion import paint

    made = paint.random_pipeline()
    for seed, part in enumerate((made.text_encoder, made.unet, made.vae)):
        draw(part, seed, 0.1)
    return made


@cache
def painter() -> luminal.Module:
    from examples.stable_diffusion import paint

    return paint.compiled(paint_pipeline(), 16)


def test_stable_diffusion_paints_and_says_what_is_wrong(tmp_path: Path) -> None:
    pytest.importorskip("diffusers", reason="no diffusers is installed: pip install diffusers")
    from examples.stable_diffusion import paint

    with pytest.raises(
        common.WrongFile, match=r"expected a pipeline as diffusers saves it, which has no model_index\.json"
    ):
        paint.loaded(tmp_path)
    with pytest.raises(common.WrongFile, match="--size: expected a multiple of 4, found 18"):
        paint.compiled(paint_pipeline(), 18)


@pytest.mark.parametrize("spacing", ["leading", "trailing"])
def test_steps_with_a_bound_are_those_of_diffusers(spacing: str) -> None:
    """Of a schedule that clips, which no pipeline of theirs takes."""
    diffusers = pytest.importorskip("diffusers", reason="no diffusers is installed: pip install diffusers")
    from examples.stable_diffusion.diffusion import Schedule

    given = {"beta_schedule": "linear", "clip_sample": True, "clip_sample_range": 0.7, "timestep_spacing": spacing}
    theirs, own, drawn = diffusers.DDIMScheduler(**given), Schedule.of(given), np.random.default_rng(0)
    theirs.set_timesteps(9)
    assert own.times(9) == theirs.timesteps.tolist()
    for time in own.times(9):
        x, predicted = drawn.standard_normal((2, 5))
        wanted = theirs.step(torch.from_numpy(predicted), time, torch.from_numpy(x)).prev_sample.numpy()
        np.testing.assert_allclose(own.before(x, predicted, time, 9), wanted, rtol=1e-5, atol=1e-6)


def test_schedules_are_checked() -> None:
    from examples.stable_diffusion.diffusion import Schedule

    with pytest.raises(common.WrongFile, match="'beta_schedule': expected linear or scaled_linear, found 'cosine'"):
        Schedule.of({"beta_schedule": "cosine"})
    with pytest.raises(common.WrongFile, match="--steps: expected 1 to 1000, found 1001"):
        Schedule.of({}).times(1001)
