"""Texts divided into tokens, as onnxruntime's Tokenizer does it, in the interpreter and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import luminal
from luminal.core.errors import ModelError, UnsupportedError
from luminal.frontends.onnx import importer
from luminal.module import Module
from luminal.runtime.loader import LibraryError
from tests import onnx_models as models

Array = np.ndarray[Any, Any]
LETTERS = "ab,; .éß日𝔸\t_A1"


def tokenizer(rank: int = 1, **attributes: Any) -> onnx.ModelProto:
    given = {"mark": 0, "pad_value": "#", "mincharnum": 1, **attributes}
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **given)
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", "c"][-rank:])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, ["n", "c", "d"][-rank - 1 :])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "test", [x], [y]), opset_imports=imports, ir_version=8)


def drawn(*shape: int) -> Array:
    """Texts of letters that the patterns below take, and others."""
    seed = np.random.default_rng(len(shape))
    rows = ["".join(seed.choice(list(LETTERS), seed.integers(0, 14))) for _ in range(int(np.prod(shape)))]
    rows[: min(3, len(rows))] = ["", "ab", "xabab a"][: len(rows)]
    return np.array(rows, object).reshape(shape)


CASES: dict[str, dict[str, Any]] = {
    "words": {"tokenexp": "[a-zA-Z0-9_]+"},
    "the longest": {"tokenexp": "a|ab|b;"},
    "any case, two letters": {"tokenexp": "(?i)a+b*", "mincharnum": 2},
    "may be empty": {"tokenexp": "a*"},
    "letters of several bytes": {"tokenexp": "[éß日]+|𝔸"},
    "no ASCII": {"tokenexp": "[^a-z ]+", "mincharnum": 2, "pad_value": ""},
    "marked": {"tokenexp": "[a-z]+", "mark": 1},
    "a separator": {"separators": [" "]},
    "separators, one after the other": {"separators": ["b", "ab", "[,;]+"]},
    "in another order": {"separators": ["ab", "b"]},
    "separators, marked": {"separators": [",", ";| "], "mark": 1, "mincharnum": 2},
    "characters": {"separators": [""]},
    "characters, marked": {"separators": [""], "mark": 1},
}


@pytest.fixture(scope="module")
def library() -> Module:
    module = luminal.compile({f"c{k}": tokenizer(1 + k % 2, **case) for k, case in enumerate(CASES.values())})
    assert isinstance(module, Module)
    return module


@pytest.mark.parametrize("case", CASES)
def test_tokens(case: str, library: Module) -> None:
    number = [*CASES].index(case)
    rank = 1 + number % 2
    proto = tokenizer(rank, **CASES[case])
    graph = importer.load(proto)
    for shape in ((40, 3)[:rank], (1, 1)[:rank]):
        x = drawn(*shape)
        (expected,) = models.by_onnxruntime(proto, {"x": x})
        (found,) = models.run(graph, {"x": x})
        for y in (found, library[f"c{number}"].run({"x": x})["y"]):
            assert y.shape == expected.shape and y.tolist() == expected.tolist()


def test_no_tokens_at_all(library: Module) -> None:
    for case in ("words", "marked"):
        number = [*CASES].index(case)
        x = np.full((2, 2)[: 1 + number % 2], ",")
        (expected,) = models.by_onnxruntime(tokenizer(x.ndim, **CASES[case]), {"x": x.astype(object)})
        assert library[f"c{number}"].run({"x": x})["y"].shape == expected.shape == (*x.shape, 0)


def test_a_vectoriser_of_texts() -> None:
    """What skl2onnx writes for words that are counted: lower case, tokens, counts."""
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["r"]),
        helper.make_node("StringNormalizer", ["r"], ["l"], case_change_action="LOWER", is_case_sensitive=0, locale="C"),
        helper.make_node(
            "Tokenizer", ["l"], ["t"], domain="com.microsoft", mark=0, mincharnum=1, pad_value="#",
            tokenexp="[a-zA-Z0-9_]+",
        ),
        helper.make_node("Flatten", ["t"], ["f"]),
        helper.make_node(
            "TfIdfVectorizer", ["f"], ["y"], mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=0,
            ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3, 4], weights=[1.0] * 5,
            pool_strings=["bad", "day", "film", "bad", "film", "good", "day"],
        ),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])
    flat = onnx.numpy_helper.from_array(np.array([-1]), "flat")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "test", [x], [y], [flat])
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    module = luminal.compile(proto)
    assert isinstance(module, Module)
    for texts in (["Good film, bad film", "a bad day"], ["", "?", "good day, good day; bad"]):
        values = np.array(texts, object).reshape(-1, 1)
        np.testing.assert_array_equal(module.run({"x": values})["y"], models.by_onnxruntime(proto, {"x": values})[0])


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"tokenexp": r"\b\w\w+\b"}, "around a part of a text"),
        ({"separators": ["a*"]}, "separates at nothing"),
        ({"tokenexp": "("}, "no regular expression"),
        ({}, "separators or a tokenexp"),
        ({"tokenexp": "a", "mincharnum": 0}, "mincharnum"),
    ],
)
def test_what_is_refused(attributes: dict[str, Any], said: str) -> None:
    with pytest.raises((ModelError, UnsupportedError), match=said):
        importer.load(tokenizer(**attributes))


def test_more_tokens_than_there_is_room_for(library: Module) -> None:
    with pytest.raises(LibraryError):
        library["c0"].run({"x": np.array(["a " * 1025], object)})
