"""The Open Inference Protocol, version 2, of exported models of any kind (KServe's, which Triton's clients speak)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from luminal.llm.serve import app, tensors
from luminal.llm.serve.embeddings import Embedder, Embeddings, embeds
from luminal.llm.serve.http import Limits, RefusedError, body, parsed, refused
from luminal.llm.serve.metrics import Metrics
from luminal.module import Module, load
from luminal.runtime.loader import LibraryError, TensorSpec
from luminal.version import VERSION

Array = np.ndarray[Any, Any]
_LENGTH = "inference-header-content-length"  # bytes of JSON, where others follow


class Models:
    """The models, each an entry of a library, by name."""

    def __init__(self, models: Mapping[str, Module], limits: Limits) -> None:
        self._models, self._limits = models, limits

    def routes(self) -> list[Route]:
        found = [
            Route("/v2", self.server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.live),
        ]
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/1"):
            found += [
                Route(path, self.described),
                Route(f"{path}/ready", self.ready),
                Route(f"{path}/infer", self.infer, methods=["POST"]),
            ]
        return found

    def _model(self, request: Request) -> Module:
        name = request.path_params["name"]
        if name not in self._models:
            raise RefusedError(404, f"there is no model {name!r}: there are {', '.join(self._models)}")
        return self._models[name]

    async def server(self, request: Request) -> Response:
        return JSONResponse({"name": "luminal", "version": VERSION, "extensions": ["binary_tensor_data"]})

    async def live(self, request: Request) -> Response:
        return JSONResponse({"live": True, "ready": True})

    async def ready(self, request: Request) -> Response:
        self._model(request)
        return JSONResponse({"ready": True})

    async def described(self, request: Request) -> Response:
        model = self._model(request)
        inputs, outputs = ([_tensor(spec) for spec in specs] for specs in (model.entry.inputs, model.entry.outputs))
        name = request.path_params["name"]
        about = {"name": name, "versions": ["1"], "platform": "luminal", "inputs": inputs, "outputs": outputs}
        return JSONResponse(about)

    async def infer(self, request: Request) -> Response:
        try:
            return await self._inferred(request)
        except Exception as error:  # noqa: BLE001  (errors have this protocol's own form)
            found = refused(error)
            return JSONResponse({"error": found.message}, found.status)

    async def _inferred(self, request: Request) -> Response:
        model = self._model(request)
        content = await body(request, self._limits)
        length = request.headers.get(_LENGTH, str(len(content)))
        if not length.isdigit() or int(length) > len(content):
            raise RefusedError(400, f"{_LENGTH}: expected at most the {len(content)} bytes of the body, found {length}")
        asked, rest = parsed(content[: int(length)]), memoryview(content)[int(length) :]
        given = _inputs(asked, rest)
        wanted = _outputs(asked, model.output_names)
        async with asyncio.timeout(self._limits.seconds):
            results = await run_in_threadpool(_run, model, given)
        parts = [tensors.written(name, np.asarray(results[name]), binary) for name, binary in wanted.items()]
        head: dict[str, Any] = {"model_name": request.path_params["name"], "model_version": "1"}
        if isinstance(asked.get("id"), str):
            head["id"] = asked["id"]
        text = json.dumps({**head, "outputs": [described for described, _ in parts]}).encode()
        if not any(wanted.values()):
            return Response(text, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(len(text))}
        return Response(b"".join([text, *(raw for _, raw in parts)]), 200, headers, "application/octet-stream")


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return {"name": spec.name, "datatype": tensors.name_of(spec.dtype), "shape": shape}


def _named(asked: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    rows = asked.get(field, [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) and isinstance(r.get("name"), str) for r in rows):
        raise RefusedError(400, f"{field}: expected a list of tensors, each with a name")
    if len({row["name"] for row in rows}) < len(rows):
        raise RefusedError(400, f"{field}: expected each name once")
    return rows


def _inputs(asked: Mapping[str, Any], rest: memoryview) -> dict[str, Array]:
    found = {}
    for row in _named(asked, "inputs"):
        found[row["name"]], taken = tensors.read(row, rest)
        rest = rest[taken:]
    if len(rest):
        raise RefusedError(400, f"expected binary data of the inputs alone, found {len(rest)} bytes more")
    return found


def _outputs(asked: Mapping[str, Any], names: Sequence[str]) -> dict[str, bool]:
    """The outputs that are asked for, and whether each is to be binary."""

    def flag(of: Mapping[str, Any], name: str, default: bool) -> bool:
        parameters = of.get("parameters")
        return bool(parameters.get(name, default)) if isinstance(parameters, dict) else default

    binary = flag(asked, "binary_data_output", False)
    rows = _named(asked, "outputs")
    unknown = [row["name"] for row in rows if row["name"] not in names]
    if unknown:
        raise RefusedError(400, f"there is no output {unknown[0]!r}: there are {', '.join(names)}")
    if any(flag(row, "classification", False) for row in rows):
        raise RefusedError(400, "outputs as classifications are not supported: ask for the tensor")
    return {row["name"]: flag(row, "binary_data", binary) for row in rows} or dict.fromkeys(names, binary)


def _run(model: Module, given: Mapping[str, Array]) -> dict[str, Array]:
    try:
        return model.run(given)
    except (ValueError, IndexError) as error:  # what the library says of inputs that do not fit
        raise RefusedError(400, str(error)) from error
    except LibraryError as error:
        raise RefusedError(500, str(error)) from error


def application(
    folders: Mapping[str, Path], threads: int, limits: Limits | None = None,
    compiled: Mapping[Path, Module] | None = None,
) -> Starlette:  # fmt: skip
    """A server of the exported models in ``folders``, or of what is ``compiled`` of a folder; of one with several
    entries, each is a model ``NAME.ENTRY``. Those that read tokens and have a tokenizer give embeddings too."""
    limits, metrics = limits or Limits(), Metrics()
    known = compiled or {}
    models: dict[str, Module] = {}
    embedders: dict[str, Embedder] = {}
    for name, folder in folders.items():
        module = known[folder] if folder in known else load(folder, threads=threads)
        if embeds(folder, module):
            embedders[name] = Embedder(folder, module)
        several = len(module.entries) > 1
        models |= {f"{name}.{entry}" if several else name: module[entry] for entry in module.entries}
    routes = [*Models(models, limits).routes(), *Embeddings(embedders, limits).routes()]
    return app.application(list(models), routes, metrics, lambda: "")
