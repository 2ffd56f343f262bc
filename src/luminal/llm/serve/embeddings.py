"""OpenAI's embeddings, of exported models that read tokens and have a tokenizer beside them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from luminal.core.errors import InputError, ModelError
from luminal.llm import tokens
from luminal.llm.serve import asked
from luminal.llm.serve.asked import Fields
from luminal.llm.serve.http import Limits, RefusedError, attended, body, parsed
from luminal.llm.tokens import Tokenizer
from luminal.module import Module

Array = np.ndarray[Any, Any]
_TOKENS, _MASK, _SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
# What sentence-transformers keeps beside a model: of what an embedding is made, and how.
_MODULES, _POOLING = Path("modules.json"), Path("1_Pooling") / "config.json"
_KNOWN = ("Transformer", "Pooling", "Normalize")
_CLS, _MEAN = "pooling_mode_cls_token", "pooling_mode_mean_tokens"


def embeds(folder: Path, module: Module) -> bool:
    """Whether a model reads tokens, and its folder has a tokenizer."""
    return (folder / tokens.FILE).is_file() and len(module.entries) == 1 and _TOKENS in module.input_names


class Embedder:
    """Texts as vectors of length 1: the model's output for a text; or of outputs for each token the first, or their
    mean, as the folder's ``1_Pooling`` says (by default their mean). Raises ModelError for a model of another form."""

    def __init__(self, folder: Path, module: Module) -> None:
        self.tokenizer: Tokenizer = tokens.load(folder)
        self._module = module
        inputs, outputs = module.entry.inputs, module.entry.outputs
        shape = next(spec.shape for spec in inputs if spec.name == _TOKENS)
        others = {spec.name for spec in inputs} - {_TOKENS, _MASK, _SEGMENTS}
        if others or len(shape) != 2:
            raise ModelError(
                f"{str(folder)!r}: embeddings need a model of {_TOKENS} [texts, tokens], and at most {_MASK} and "
                f"{_SEGMENTS}, found {', '.join(module.input_names)}"
            )
        bounds = {dim.name: (dim.lower, dim.upper) for dim in module.interface.dims}
        texts, length = (bounds.get(size, (1, 1)) if isinstance(size, str) else (size, size) for size in shape)
        if texts[0] > 1:
            raise ModelError(f"{str(folder)!r}: embeddings need a model that takes one text, found at least {texts[0]}")
        self._least, self.most = length
        self._types = {spec.name: spec.dtype for spec in inputs}
        self._output = next((spec.name for spec in outputs if len(spec.shape) in (2, 3)), outputs[0].name)
        self._first = _takes_first(folder)

    def check(self, given: list[int]) -> None:
        """Raises InputError for tokens that are more or fewer than the model takes."""
        if not 0 < len(given) <= self.most:
            raise InputError(f"the input has {len(given)} tokens: expected 1 .. {self.most}")
        if len(given) < self._least and _MASK not in self._types:
            raise InputError(f"the input has {len(given)} tokens: expected {self._least}, as the model takes no mask")

    def __call__(self, given: list[int]) -> Array:
        """The embedding of these tokens, float32. Raises InputError as ``check`` does."""
        self.check(given)
        length = max(len(given), self._least)
        rows = {
            _TOKENS: [*given, *[0] * (length - len(given))],
            _MASK: [1] * len(given) + [0] * (length - len(given)),
            _SEGMENTS: [0] * length,
        }
        found = self._module.run({name: np.array([rows[name]], dtype) for name, dtype in self._types.items()})
        value = np.asarray(found[self._output])[0].astype(np.float64)
        if value.ndim == 2:
            value = value[0] if self._first else value[: len(given)].mean(0)
        unit: Array = value / max(float(np.linalg.norm(value)), 1e-12)
        return unit.astype(np.float32)


def _takes_first(folder: Path) -> bool:
    """Whether the first of the outputs for tokens is the embedding, not their mean. Raises ModelError where what
    sentence-transformers keeps in the folder asks for something else."""
    path = folder / _MODULES
    for module in json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []:
        kind = str(module.get("type")).rpartition(".")[2]
        if kind not in _KNOWN:
            raise ModelError(f"{path}: expected {', '.join(_KNOWN)}, found {kind!r}, which is not supported")
    path = folder / _POOLING
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    modes = [mode for mode, used in found.items() if mode.startswith("pooling_mode_") and used is True]
    if modes not in ([], [_CLS], [_MEAN]):
        raise ModelError(f"{path}: expected {_CLS} or {_MEAN}, found {', '.join(modes)}")
    return modes == [_CLS]


@dataclass(frozen=True)
class _Asked:
    """A request: of which model, the tokens of each text, and how an embedding is spelled."""

    name: str
    model: Embedder
    rows: list[list[int]]
    form: str


class Embeddings:
    """The route for these models, by name."""

    def __init__(self, models: Mapping[str, Embedder], limits: Limits) -> None:
        self._models, self._limits = models, limits

    def routes(self) -> list[Route]:
        return [Route("/v1/embeddings", self.embeddings, methods=["POST"])] if self._models else []

    async def embeddings(self, request: Request) -> Response:
        fields = Fields(parsed(await body(request, self._limits)))
        async with asyncio.timeout(self._limits.seconds):
            asked = await run_in_threadpool(self._asked, fields)
            whole = await attended(request, self._embedded(asked))
        return Response(status_code=499) if whole is None else JSONResponse(whole)

    def _asked(self, fields: Fields) -> _Asked:
        name = fields.text("model") or next(iter(self._models))
        model = self._models.get(name)
        if model is None:
            message = f"there is no model {name!r} of embeddings: there is {', '.join(self._models)}"
            raise RefusedError(404, message, param="model", code="model_not_found")
        form = fields.any("encoding_format", "float")
        if form not in ("float", "base64"):
            raise fields.wrong("encoding_format", "float or base64", form)
        prompts = asked.prompts(fields, "input")
        if len(prompts) > self._limits.inputs:
            message = f"input: expected at most {self._limits.inputs} texts, found {len(prompts)}"
            raise RefusedError(400, message, param="input")
        fields.finish()
        size = model.tokenizer.size
        rows = [model.tokenizer.encode(given) if isinstance(given, str) else given for given in prompts]
        if any(not 0 <= token < size for row in rows for token in row):
            raise fields.wrong("input", f"tokens below {size}", "others")
        for row in rows:
            model.check(row)
        return _Asked(name, model, rows, form)

    async def _embedded(self, asked: _Asked) -> dict[str, Any]:
        """The answer. One text at a time, so that nothing more is computed when nobody listens any longer."""
        data = []
        for number, row in enumerate(asked.rows):
            value = _spelled(await run_in_threadpool(asked.model, row), asked.form)
            data.append({"object": "embedding", "index": number, "embedding": value})
        count = sum(map(len, asked.rows))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "model": asked.name, "data": data, "usage": usage}


def _spelled(value: Array, form: str) -> Any:
    if form == "base64":
        return base64.b64encode(value.astype("<f4").tobytes()).decode()
    return value.tolist()
