"""The application: which routes there are, what is counted, how it starts and stops."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from luminal.core.errors import LuminalError
from luminal.llm.engine import Engine
from luminal.llm.generate import Scheduler
from luminal.llm.serve.http import Limits, RefusedError, refused, response_of
from luminal.llm.serve.metrics import Metrics
from luminal.llm.serve.openai import OpenAI
from luminal.llm.serve.worker import Worker
from luminal.llm.tokens import Tokenizer


class Counted:
    """Counts requests by their route and status, and their times."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Only routes that are known: a client must not make counters by asking for paths.
        path = scope["path"] if scope["path"] in self._paths else "other"
        started, status = time.perf_counter(), "499"

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - started)


def language_model(
    name: str, engine: Engine, tokenizer: Tokenizer, limits: Limits | None = None, adapters: Sequence[str] = ()
) -> Starlette:
    """A server of one language model, which owns the engine from its start to its stop. Stopping it, it makes the
    answers that are asked for. ``adapters`` are what clients call the model with each of those that are loaded."""
    limits, metrics = limits or Limits(), Metrics()
    worker = Worker(Scheduler(engine, tokenizer), limits.waiting, metrics)
    names = {name: None, **{other: number for number, other in enumerate(adapters)}}
    routes = OpenAI(names, worker, tokenizer, limits).routes()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.start()
        try:
            yield
        finally:
            await run_in_threadpool(worker.stop)

    return application(list(names), routes, metrics, lambda: worker.problem, lifespan)


def application(
    names: Sequence[str], routes: Sequence[Route], metrics: Metrics, problem: Any, lifespan: Any = None
) -> Starlette:
    """An application of the models ``names``; ``problem()`` says why it cannot answer, if so."""
    created = int(time.time())

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "luminal"}

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [described(name) for name in names]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in names:
            raise RefusedError(404, f"there is no model {name!r}", param="model", code="model_not_found")
        return JSONResponse(described(name))

    async def health(request: Request) -> Response:
        found = problem()
        return JSONResponse({"status": found or "ok"}, 503 if found else 200)

    async def counts(request: Request) -> Response:
        return Response(metrics.text(), media_type=metrics.media_type)

    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            where = f"{request.method} {request.url.path}"
            known = ", ".join(sorted({route.path for route in every}))
            said = f"nothing is at {where}: there are {known}" if error.status_code == 404 else str(error.detail)
            error = RefusedError(error.status_code, said)
        return response_of(refused(error))

    every = [
        *routes,
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/health", health),
        Route("/metrics", counts),
    ]
    kinds: tuple[Any, ...] = (RefusedError, LuminalError, TimeoutError, HTTPException, Exception)
    made = Starlette(routes=every, exception_handlers=dict.fromkeys(kinds, failed), lifespan=lifespan)
    paths = frozenset(route.path for route in every if "{" not in route.path)
    made.add_middleware(Counted, metrics=metrics, paths=paths)
    return made
