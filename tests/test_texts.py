"""Texts: their numbers, regular expressions, and the functions of the host, in the interpreter and compiled in one
library, against Python's own."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import luminal
from luminal.core import interp, ir, texts, types
from luminal.core import symbolic as sym
from luminal.core.decompose import text
from luminal.core.decompose.automaton import automaton
from luminal.core.errors import DTypeError, InputError, ModelError, UnsupportedError
from luminal.core.ir import Graph, Node
from luminal.module import Module
from luminal.runtime.loader import LibraryError

Array = np.ndarray[Any, Any]
N = sym.var("n", 0, 3000)
# Letters of one to four bytes, with images of other lengths, white space, and what splits and matches ask for.
LETTERS = "abcXYZ,. \t\u2003éßİǅσΣ日𝔸😀ŉ0"
WORDS = st.text(LETTERS, max_size=12) | st.text(max_size=6)
CHARACTERS = st.characters(exclude_categories=["Cs"])
PATTERN = r"(\w+[, ])*[a-cé😀]{1,3}\b.?"


def graph(build: Any, *nodes: Node) -> Graph:
    measured: ir.Measured = {}
    with ir.measuring(measured):
        results = build(*nodes)
    outputs = tuple((f"y{k}", node) for k, node in enumerate(results))
    return Graph("texts", nodes, outputs, (*sym.variables(N), *measured), measured=measured)


def everything(x: Node, y: Node) -> list[Node]:
    """``x [n]`` and ``y []``, through every function."""
    return [
        text.concatenate(x, y), *text.split(x, ",", name="a"), *text.split(x, "", 2, name="b"), text.lower(x),
        text.upper(x), text.matches(x, PATTERN), ir.binary(luminal.core.ops.EQUAL, x, y),
        text.without(x, ir.binary(luminal.core.ops.EQUAL, x, y), "rest"),
    ]  # fmt: skip


def expected(x: list[str], y: str) -> list[Any]:
    commas, spaces = [each.split(",") for each in x], [each.split(None, 2) for each in x]
    mapped = [["".join(getattr(c, how)() for c in each) for each in x] for how in ("lower", "upper")]
    pattern = re.compile(PATTERN, re.ASCII)
    rest = [each for each in x if each != y] or [""]
    return [
        [each + y for each in x], padded(commas), list(map(len, commas)), padded(spaces), list(map(len, spaces)),
        *mapped, [pattern.fullmatch(each) is not None for each in x], [each == y for each in x], rest,
    ]  # fmt: skip


def padded(rows: list[list[str]]) -> list[list[str]]:
    size = max(map(len, rows), default=0)
    return [[*row, *[""] * (size - len(row))] for row in rows]


EVERYTHING = graph(everything, ir.input_("x", (N,), types.text), ir.input_("y", (), types.text))


@cache
def compiled() -> Module:
    module = luminal.compile({"texts": EVERYTHING, "numbers": NUMBERS, "parsed": PARSED}, name="texts")
    assert isinstance(module, Module)
    return module


def words(values: list[str]) -> Array:
    return np.array(values, object)


def check(x: list[str], y: str, found: list[Array]) -> None:
    for result, wanted in zip(found, expected(x, y), strict=True):
        assert result.tolist() == wanted


@settings(max_examples=100, deadline=None)
@given(x=st.lists(WORDS, max_size=5), y=WORDS)
def test_functions_of_texts(x: list[str], y: str) -> None:
    check(x, y, interp.run(EVERYTHING, {"x": words(x), "y": np.array(y, object)}).outputs)


@settings(max_examples=200, deadline=None)
@given(x=st.lists(WORDS, max_size=5), y=WORDS)
@example(x=[], y="")
@example(x=["a" * 200_000, "b," * 1000, "İ" * 5000], y="c" * 70_000)
@example(x=[f"{k} {k % 7}" for k in range(3000)], y="5 5")
def test_functions_of_texts_compiled(x: list[str], y: str) -> None:
    check(x, y, list(compiled()["texts"].run({"x": words(x), "y": np.array(y, object)}).values()))


# ---- numbers ---------------------------------------------------------------------------------------------------------

KINDS = {"f32": types.f32, "f64": types.f64, "i64": types.i64, "u64": types.u64, "bf16": types.bf16}
NUMBERS = graph(lambda *x: list(map(text.formatted, x)), *(ir.input_(n, (N,), t) for n, t in KINDS.items()))
PARSED = graph(
    lambda x: [text.parsed(x, dtype) for dtype in (types.f64, types.f32, types.i64, types.u64)],
    ir.input_("x", (N,), types.text),
)
SPECIAL = [0.0, -0.0, 1.0, 1e22, 1e23, 5e-324, 1.7976931348623157e308, 0.1, 1e-5, 99999.0, 1e5, 12345678901.234, np.inf,
           -np.inf, np.nan, 16777217.0, 3.4028235e38, 1.1754944e-38]  # fmt: skip


def numbers(bits: list[int]) -> dict[str, Array]:
    wide = np.array(bits, np.uint64)
    doubles = np.concatenate([np.array(SPECIAL), wide.view(np.float64)])
    floats = np.concatenate([np.array(SPECIAL, np.float32), wide.astype(np.uint32).view(np.float32)])
    integers = np.concatenate([np.arange(len(SPECIAL)).astype(np.uint64), wide])
    return {
        "f32": floats, "f64": doubles, "i64": integers.view(np.int64), "u64": integers,
        "bf16": floats.astype(types.bf16.numpy),
    }  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(bits=st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_numbers_as_texts_are_the_shortest_that_read_back(bits: list[int]) -> None:
    with np.errstate(all="ignore"):
        given = numbers(bits)
    for found in (interp.run(NUMBERS, given).outputs, list(compiled()["numbers"].run(given).values())):
        for said, (name, values) in zip(found, given.items(), strict=True):
            dtype = types.f32.numpy if name == "bf16" else KINDS[name].numpy
            back = np.array([dtype.type(each) for each in said])
            np.testing.assert_array_equal(back, values.astype(dtype))
            for each, value in zip(said, values.astype(dtype), strict=True):
                assert dtype.kind != "f" or len(each) <= len(np.format_float_scientific(value))
    np.testing.assert_array_equal(found[0], interp.run(NUMBERS, given).outputs[0])
    np.testing.assert_array_equal(found[1], interp.run(NUMBERS, given).outputs[1])


def test_truth_values_as_texts_read_back() -> None:
    def back_and_forth(x: Node) -> list[Node]:
        return [text.formatted(x), text.parsed(text.formatted(x), types.bool_)]

    given = {"x": np.array([True, False])}
    found = interp.run(graph(back_and_forth, ir.input_("x", (N,), types.bool_)), given).outputs
    assert found[0].tolist() == ["1", "0"] and found[1].tolist() == [True, False]


def test_texts_as_numbers() -> None:
    said = ["1", "-2.5", "+.5", "7.", "1e3", "1E-2", "inf", "-INF", "NaN", "Infinity", "100.5", "0.1"]
    wanted = np.array([float(each) for each in said])
    with np.errstate(all="ignore"):
        results = [wanted, wanted.astype(np.float32)]
    for found in (
        interp.run(PARSED, {"x": words(said)}).outputs, list(compiled()["parsed"].run({"x": words(said)}).values())
    ):  # fmt: skip
        np.testing.assert_array_equal(found[0], results[0])
        np.testing.assert_array_equal(found[1], results[1])
        assert found[2].tolist()[:6] == [1, -2, 0, 7, 1000, 0] and found[2][-2] == 100
        assert found[2].tolist()[6:10] == [2**63 - 1, -(2**63), 0, 2**63 - 1]
        assert found[3].tolist()[:10] == [1, 0, 0, 7, 1000, 0, 2**64 - 1, 0, 0, 2**64 - 1]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.integers(-(2**65), 2**65), max_size=8))
@example(values=[2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -1, -(2**63) - 1])
def test_integers_are_read_to_the_last_digit(values: list[int]) -> None:
    given = {"x": words([str(value) for value in values])}
    for found in (interp.run(PARSED, given).outputs, list(compiled()["parsed"].run(given).values())):
        assert found[2].tolist() == [min(max(value, -(2**63)), 2**63 - 1) for value in values]
        assert found[3].tolist() == [min(max(value, 0), 2**64 - 1) for value in values]


@pytest.mark.parametrize("wrong", ["", " 1", "1 ", "0x10", "1e", "one", "1_0", "٣", "nan(1)", "--1", "1\0"])
def test_what_says_no_number_is_refused(wrong: str) -> None:
    with pytest.raises(InputError, match="no number"):
        interp.run(PARSED, {"x": words([wrong])})
    with pytest.raises(LibraryError, match="the operator failed in step"):
        compiled()["parsed"].run({"x": words([wrong])})


# ---- regular expressions ---------------------------------------------------------------------------------------------

PATTERNS = [
    "", "a*b|c+d?", "[^a-c]x", "(ab|a)(bc|c)?", "x{2,4}y{0,2}", "[à-ü]+.", ".*a.{3}", "(a|b)*abb", "^a$|b", "(?s).",
    r"\d+\.\D", r"\w\W\s\S", "(?i:aB)c", "(?i)[x-z]é", r"a??b+?", r"(^|a)\b\w+\b($|\B.)", "[^\\w]", "(a?){5}a{3}",
    "a$b",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=150, deadline=None)
@given(x=st.text("abcdxyzABE.é1ü\n ", max_size=8))
def test_automata_accept_what_patterns_match(pattern: str, x: str) -> None:
    # Python's `$` also matches before a last line break; RE2's does not.
    wanted = re.compile(pattern.replace("$", r"\Z"), re.ASCII if "(?i" not in pattern else 0)
    assert accepts(pattern, x) == (wanted.fullmatch(x) is not None)


@given(
    low=st.characters(exclude_categories=["Cs"]), high=st.characters(exclude_categories=["Cs"]), x=st.text(max_size=1)
)
@example(low="\u0000", high="\U0010ffff", x="\ue000")
def test_ranges_of_characters_in_utf8(low: str, high: str, x: str) -> None:
    low, high = min(low, high), max(low, high)
    assert accepts(f"[{re.escape(low)}-{re.escape(high)}]", x) == (x != "" and low <= x <= high)


def accepts(pattern: str, x: str) -> bool:
    (found,) = interp.evaluate([text.matches(ir.constant(words([x])), pattern)])
    return bool(found[0])


def test_automata_are_small() -> None:
    classes, states = automaton("(a|b)*abb")
    assert states.shape == (5, 5)  # the four of the textbook, and one from which nothing is accepted
    assert classes.max() == 3


def test_classes_by_name() -> None:
    assert accepts("[[:alpha:]_]+[[:digit:]]", "a_B7")
    assert not accepts("[[:alpha:]]", "1")
    assert accepts(r"\[:alpha:]", "[:alph]"[:1] + ":") is False and accepts(r"\[:a]", "[:a]")


def test_letters_that_differ_in_case() -> None:
    assert not accepts(r"(?i)\W", "S") and not accepts(r"(?i)[^k]", "K")
    assert accepts("(?i)k", "\u212a") and accepts("(?i)[a-s]", "ſ") and accepts("(?i)Σ", "ς")
    assert accepts(r"(?i)\S{50}", "x" * 50)


def test_braces_that_repeat_nothing_are_characters() -> None:
    assert accepts("a{,3}", "a{,3}") and not accepts("a{,3}", "aa") and accepts("[{,3}]", "{")


@pytest.mark.parametrize(
    ("pattern", "error", "says"),
    [
        ("(a", ModelError, "no regular expression"),
        ("[[:letter:]]", ModelError, "no class of characters"),
        ("(){1000000000}", UnsupportedError, "more than 1000 times"),
        ("(){0,4000000000}", UnsupportedError, "more than 1000 times"),
        (r"\z", ModelError, "not one that Python reads"),
        ("(a)\\1", UnsupportedError, "groupref"),
        ("(?=a)a", UnsupportedError, "assert"),
        ("(?m)^a", UnsupportedError, "no automaton can tell"),
        ("((a{100}){100}){100}", UnsupportedError, "states"),
        ("(a|b)*a(a|b){20}", UnsupportedError, "states"),
    ],
)
def test_patterns_that_are_refused(pattern: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        automaton(pattern)


# ---- numbers of texts, and what is refused ---------------------------------------------------------------------------


def test_two_texts_of_one_number_are_refused() -> None:
    """A text that is known to have the number of the empty one."""
    other = "!0IC=VloaY"
    assert texts.hash_of(other.encode()) == 0
    with pytest.raises(InputError, match="have one number"):
        texts.number(other)
    with pytest.raises(LibraryError, match="the operator failed in step 0"):
        compiled()["texts"].run({"x": words([other]), "y": np.array("")})


def test_half_a_character_is_refused() -> None:
    with pytest.raises(InputError, match="half a character"):
        texts.encode(words(["\ud800"]))


def test_texts_are_no_numbers() -> None:
    x = ir.input_("x", (3,), types.text)
    with pytest.raises(DTypeError):
        x + x
    with pytest.raises(DTypeError, match="text"):
        ir.host("concatenate", [x, ir.input_("y", (3,), types.i64)], x.shape)
    assert text.formatted(ir.input_("b", (3,), types.bool_)).dtype.is_text


def test_a_text_of_too_many_parts() -> None:
    many = words(["," * 1024])
    with pytest.raises(InputError, match="1025 parts"):
        interp.run(EVERYTHING, {"x": many, "y": np.array("")})
    with pytest.raises(LibraryError, match="the operator failed"):
        compiled()["texts"].run({"x": many, "y": np.array("")})


def test_arrays_that_hold_no_texts() -> None:
    module = compiled()["texts"]
    with pytest.raises(InputError, match="x: expected an array of texts, found int64"):
        module(np.arange(3), np.array("a"))
    with pytest.raises(ValueError, match=r'input "x" holds objects: .* found int'):
        module(words([1, "a"]), np.array("a"))  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no UTF-8"):
        module(np.array([b"\xff"]), np.array("a"))
    with pytest.raises(InputError, match="numbers"):
        compiled()["numbers"](*[words(["a"])] * 5)


def test_texts_are_refused_on_gpus() -> None:
    with pytest.raises(UnsupportedError, match="not supported on GPUs"):
        luminal.compile(EVERYTHING, target="metal")


def test_what_is_known_when_compiling_is_computed_then() -> None:
    x = ir.constant(words(["a,b", "c"]))
    parts, _ = graph(lambda: text.split(x, ",")).results
    assert parts.shape == (2, 2)


# ---- a model, from C -------------------------------------------------------------------------------------------------


def labels() -> onnx.ModelProto:
    nodes = [
        helper.make_node("StringConcat", ["x", "mark"], ["marked"]),
        helper.make_node("LabelEncoder", ["marked"], ["label"], domain="ai.onnx.ml", keys_strings=["a!", "é!"],
                         values_int64s=[1, 2], default_int64=-1),
        helper.make_node("LabelEncoder", ["label"], ["name"], domain="ai.onnx.ml", keys_int64s=[1, 2],
                         values_strings=["one", "zwei"], default_string="?"),
    ]  # fmt: skip
    mark = helper.make_tensor("mark", TensorProto.STRING, [], [b"!"])
    given = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    results = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("name", TensorProto.STRING, ["n"]),
    ]
    return helper.make_model(
        helper.make_graph(nodes, "labels", [given], results, [mark]),
        ir_version=9,
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)],
    )


PROGRAM = r"""
#include <cstdio>
#include "labels.hpp"

int main() {
    labels::Library library;
    labels::Context context(library);
    const lm_text words[] = {{"a", 1}, {"\xc3\xa9", 2}, {nullptr, 0}};
    const auto found = context.main({words, {3}});
    for (std::size_t i = 0; i < 3; ++i) {
        std::printf("%lld %.*s\n", static_cast<long long>(found.label[i]), static_cast<int>(found.name[i].size),
                    found.name[i].data);
    }
}
"""


def test_a_model_of_texts_from_python_and_cpp(tmp_path: Path) -> None:
    module = luminal.compile(labels(), dims={"n": (0, 10)})
    assert isinstance(module, Module)
    label, name = module(np.array(["é", "", "a"]))
    assert label.tolist() == [2, -1, 1]
    assert name.tolist() == ["zwei", "?", "one"]
    folder = module.export(tmp_path / "labels", python_module=False)
    (tmp_path / "main.cpp").write_text(PROGRAM)
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "main.cpp", f"-I{folder}", f"-I{folder}/include",
               f"-L{folder}", "-llabels", f"-Wl,-rpath,{folder}", "-o", "main"]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True)
    printed = subprocess.run(["./main"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert printed == "1 one\n2 zwei\n-1 ?\n"


def test_a_model_of_texts_is_compared_with_onnxruntime() -> None:
    report = luminal.diff(labels(), dims={"n": (0, 10)})
    assert report.ok, report
