"""Names and literals of the generated C and C++."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from luminal.codegen import interface, names, render
from luminal.codegen.cpp import Names
from luminal.core import symbolic, types
from luminal.runtime import loader
from tests import runtime_example
from tests.runtime_example import INCLUDE, run

ABI = INCLUDE / "luminal" / "abi.h"


def test_identifiers_are_valid_and_different() -> None:
    given = ["input.1", "input_1", "input/1", "1st", "class", "", "__x__", "größe", "stdin", "View"]
    assert names.identifiers(given, interface._HEADER) == [
        "input_1",
        "input_1_2",
        "input_1_3",
        "value_1st",
        "class_value",
        "value",
        "x",
        "gr_e",
        "stdin_value",
        "View_value",
    ]


@pytest.mark.parametrize("text", ["plain", 'quote " and \\', "line\nbreak\0", "größe", "what??/", "\x7f1"])
def test_c_string_says_the_same(text: str) -> None:
    literal = interface.c_string(text)
    assert literal.isascii()
    assert "??" not in literal
    # Python's byte strings have the same octal escapes as C.
    assert ast.literal_eval("b" + literal).decode() == text


def test_comment_cannot_be_left() -> None:
    assert interface.comment("a */ b\nc \\") == "a * / b?c /"


def test_metadata_is_json() -> None:
    size = symbolic.var("batch", 1, 8)
    entry = interface.Entry(
        "forward",
        "forward",
        interface.tensors([("x", types.bf16, [size, 3])]),
        interface.tensors([("y", types.bool_, [2 * size])]),
        {"y": 0},
        64,
    )
    model = interface.Interface("net", interface.dims([("batch", 1, 8)]), (entry,))
    metadata = json.loads(model.metadata_json(constants=[]))
    assert metadata["dims"] == [{"name": "batch", "lower": 1, "upper": 8}]
    assert metadata["entries"][0]["inputs"] == [{"name": "x", "dtype": "bfloat16", "shape": ["batch", 3]}]
    assert metadata["entries"][0]["outputs"][0]["shape"] == ["2*batch"]
    assert metadata["entries"][0]["structure"] == {"y": 0}
    assert metadata["constants"] == []


@pytest.mark.parametrize("dtype", types.ALL.values(), ids=str)
def test_every_type_crosses_the_c_interface(dtype: types.DType) -> None:
    """It has a number, a type of C++, and is numpy's own where the loader names it."""
    (tensor,) = interface.tensors([("x", dtype, [2])])
    assert re.search(rf"\b{tensor.c_dtype} = \d+", (render.INCLUDE / "luminal" / "abi.h").read_text())
    assert tensor.cpp_type
    described = loader.Interface("x", interface.Interface("x", (), (_entry(tensor),)).metadata())
    assert described.entries[0].inputs[0].dtype == (object if dtype.is_text else dtype.numpy)


def test_structs_stand_for_what_cpp_has_not() -> None:
    tensors = interface.tensors([("x", types.i4, []), ("y", types.f16, []), ("z", types.f32, []), ("w", types.f16, [])])
    assert interface.Interface("net", (), (_entry(*tensors),)).structs == [("Float16", 16), ("Int4", 8)]


def _entry(*inputs: interface.Tensor) -> interface.Entry:
    return interface.Entry("run", "run", inputs, (), None, 0)


HOSTILE = [
    "value", "check", "output_shape", "attend", "attend_run", "lm_value", "lm_context", "LM_FLOAT32", "LM_ABI_H", "EOF",
    "ERANGE", "INT8_MAX", "M_PI", "errno", "int", "co_await", "größe", "Größe", "名前", "x" * 300, "x" * 299 + "y", "a",
    "A", "std", "View", "Tensor", "in_", "__file__", "shape", "handle", "result", "ATTEND_H", "data", "linux", "",
]  # fmt: skip


def test_names_that_collide_give_a_header_that_compiles(tmp_path: Path) -> None:
    """Names of helpers, macros, types and keywords, of other letters or none, of any length, of the same letters."""
    state = interface.tensors((name, types.f32, [2]) for name in HOSTILE)
    called = [*HOSTILE, "reset", "get_value", "set_a", "attend_outputs", "value_outputs"]
    methods = interface.entries(called, state)
    made = interface.tensors((name, types.f32, [2]) for name in HOSTILE)
    entries = tuple(interface.Entry(n, m, made, made, None, 0) for n, m in zip(called, methods, strict=True))
    model = interface.Interface("attend", interface.dims((name, 1, 2) for name in HOSTILE), entries, state)
    header = runtime_example.render("header.h.j2", interface=model, abi_header=ABI.read_text(), stack_kib=64)
    (tmp_path / "attend.h").write_text(header)
    (tmp_path / "attend.hpp").write_text(runtime_example.render("wrapper.hpp.j2", interface=model))
    above = "".join(f"#include <{name}>\n" for name in ("cerrno", "climits", "cmath", "complex", "cstdio", "unistd.h"))
    (tmp_path / "a.cpp").write_text(f'{above}#include "attend.hpp"\nattend::Library* library;\n')
    run(["g++", "-std=gnu++17", "-fsyntax-only", tmp_path / "a.cpp"])
    (tmp_path / "a.c").write_text('#include "attend.h"\n')
    run(["gcc", "-std=c99", "-fsyntax-only", tmp_path / "a.c"])


def test_names_of_kernels_are_identifiers() -> None:
    found = Names()
    made = [found.like(name) for name in HOSTILE]
    assert len({*made}) == len(made) and not any(map(names.is_taken, made))
    assert all(re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and len(name) < 120 for name in made)


@pytest.mark.parametrize("name", ["test", "all", "Help", "clean", "install", "time", "printf"])
def test_names_of_the_system_and_of_cmake_are_not_taken(name: str) -> None:
    assert interface.library_name(name) == f"{name}_model"
