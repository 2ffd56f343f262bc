"""The log, and what notebooks show."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch

import luminal
from luminal import log
from luminal.core import ir, ops, types
from luminal.core.errors import InputError
from luminal.module import Module

SCRIPT = """
import luminal
from luminal.core import ir, ops, types

x = ir.input_("x", (3,), types.f32)
luminal.compile(ir.Graph("negative", (x,), (("y", ir.unary(ops.RECIP, x)),)))
"""


def said(level: str, **switches: str) -> list[str]:
    """What a compilation logs at a level: of each line the logger, the level, and the first two words."""
    env = {**os.environ, "LUMINAL_LOG": level, **switches}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    return [" ".join(re.split(r"[:\s]+", line)[4:8]) for line in done.stderr.splitlines()]


def test_levels() -> None:
    assert said("") == []
    stages = said("info")
    first = [" ".join(line.split()[:3]) for line in stages]
    assert "luminal.compile INFO import" in first and "luminal.compile INFO compile" in first
    everything = said("DEBUG", LUMINAL_NO_CACHE="1")
    assert set(first) < {" ".join(line.split()[:3]) for line in everything}
    assert any(line.startswith("luminal.compile DEBUG compile ") for line in everything)  # passes
    assert any(line.startswith("luminal.build DEBUG in ") for line in everything)  # commands


def test_one_handler_whatever_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("luminal")
    before = [*logger.handlers]
    monkeypatch.setenv("LUMINAL_LOG", "error")
    try:
        for _ in range(3):
            log.configure()
        assert len(logger.handlers) == len(before) + 1 and logger.level == logging.ERROR
        monkeypatch.setenv("LUMINAL_LOG", "loud")
        with pytest.raises(InputError, match="LUMINAL_LOG='loud': expected one of debug, info, warning, error"):
            log.configure()
    finally:
        logger.handlers = before
        logger.setLevel(logging.NOTSET)
        log._handled.cache_clear()


def words(html: str) -> str:
    """The text of a piece of HTML, which is well-formed."""
    return re.sub(r"\s+", " ", "".join(ElementTree.fromstring(f"<div>{html}</div>").itertext()))


def test_what_notebooks_show_of_a_model_and_its_reports() -> None:
    x = ir.input_("x<1>", (3,), types.f32)
    module = luminal.compile(ir.Graph("shown", (x,), (("y", ir.unary(ops.RECIP, x)),)))
    assert isinstance(module, Module)
    shown = words(module._repr_html_())
    assert "'shown'" in shown and "x<1>" in shown and "float32" in shown and "[3]" in shown and "map0" in shown
    profile = module.profile(torch.ones(3), runs=1, threads=1, peak=False)
    assert "map0" in words(profile._repr_html_())
    report = luminal.diff(torch.nn.ReLU().eval(), (torch.ones(3),))
    assert "torch" in words(report._repr_html_())
