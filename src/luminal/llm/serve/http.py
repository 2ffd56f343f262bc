"""What every route needs: bodies within limits, errors as clients expect them, answers that end when nobody listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from luminal.core.errors import InputError
from luminal.llm.serve.worker import BusyError, StoppedError

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a client may ask for. ``body`` is in bytes, times are in seconds: of a whole request, and until its body is
    there. ``prompt`` None is what the context has room for. ``stops`` and ``stop_length`` are of stop strings, which
    are looked for after each token; ``inputs`` are texts of one request for embeddings."""

    body: int = 8 << 20
    prompt: int | None = None
    choices: int = 8
    waiting: int = 64
    stops: int = 16
    stop_length: int = 1000
    inputs: int = 2048
    seconds: float = 600.0
    body_seconds: float = 30.0


class RefusedError(Exception):
    """A request that is answered with an error: its status, kind and message, the parameter at fault, and a code."""

    def __init__(self, status: int, message: str, kind: str = "", param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")


def refused(error: BaseException) -> RefusedError:
    """What a client is told of an error."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, BusyError):
        return RefusedError(429, str(error), "rate_limit_error")
    if isinstance(error, StoppedError):
        return RefusedError(503, str(error))
    if isinstance(error, InputError):
        return RefusedError(400, str(error))
    if isinstance(error, TimeoutError):
        return RefusedError(504, "the request took longer than the server allows", "timeout_error")
    return RefusedError(500, f"the model failed: {error}")


def described(error: RefusedError) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def response_of(error: RefusedError) -> Response:
    headers = {"Retry-After": "1"} if error.status in (429, 503) else {}
    return JSONResponse(described(error), error.status, headers)


async def body(request: Request, limits: Limits) -> bytes:
    """The body of a request. Raises RefusedError where it is too long, or does not come."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.body:
        raise RefusedError(413, f"expected a body of at most {limits.body} bytes, found {length}")
    parts, total = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                total += len(part)
                if total > limits.body:
                    raise RefusedError(413, f"expected a body of at most {limits.body} bytes, found more")
                parts.append(part)
    except TimeoutError as error:
        raise RefusedError(408, f"the body did not come within {limits.body_seconds:g} seconds") from error
    return b"".join(parts)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def parsed(text: bytes) -> dict[str, Any]:
    """A body as an object of JSON. Raises RefusedError where it is none."""
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RefusedError(400, f"expected an object as the body, found {type(found).__name__}")
    return found


async def attended(request: Request, work: Awaitable[T]) -> T | None:
    """The result of ``work``; None, with the work cancelled, where the client goes away before."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Events(Response):
    """Server-sent events, each an object of JSON, then ``[DONE]``. The first event is waited for before the head is
    sent, so that an error before it has a status of its own; a later one is an event. ``closed`` is called in the end,
    which is there too when the client goes away, or takes more than ``seconds`` in all."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[Mapping[str, Any]], seconds: float, closed: Callable[[], None]) -> None:
        super().__init__()
        self._events, self._seconds, self._closed = events, seconds, closed
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await attended(Request(scope, receive), self._timed(scope, receive, send))
        finally:
            self._closed()

    async def _timed(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._seconds), aclosing(self._events) as events:  # type: ignore[type-var]
                await self._sent(events, send)
        except Exception as error:  # noqa: BLE001  (a client is told of whatever ends its answer)
            found = refused(error)
            if not self._begun:
                await response_of(found)(scope, receive, send)
            elif not isinstance(error, TimeoutError):  # a client that takes no more is not waited for
                await self._part(send, f"data: {json.dumps(described(found))}\n\n")
                await self._end(send)

    async def _sent(self, events: AsyncIterator[Mapping[str, Any]], send: Send) -> None:
        async for event in events:
            if not self._begun:
                await self._head(send)
            await self._part(send, f"data: {json.dumps(event, ensure_ascii=False)}\n\n")
        await self._end(send)

    async def _end(self, send: Send) -> None:
        await self._part(send, "data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _head(self, send: Send) -> None:
        self._begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _part(self, send: Send, text: str) -> None:
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


Handler = Callable[[Request], Awaitable[Response]]
