"""OpenAI's interface: completions and chats, whole or as events, of one language model."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from luminal.llm.generate import Options, Piece
from luminal.llm.serve import asked
from luminal.llm.serve.asked import Fields
from luminal.llm.serve.http import Events, Limits, RefusedError, attended, body, parsed
from luminal.llm.serve.worker import Ticket, Worker
from luminal.llm.tokens import Tokenizer

_MOST = 16  # tokens of a completion, unless the request says another number: OpenAI's default
_TOP = 20  # likeliest tokens that a request may ask for


@dataclass(frozen=True)
class Job:
    """The answers to one request. ``prompts`` has the tokens of each and its text; of each, ``choices`` are asked."""

    kind: str  # chat or completion
    prompts: Sequence[tuple[list[int], str]]
    choices: int
    options: Options
    echo: bool
    stream: bool
    usage: bool
    identity: str
    created: int
    model: str

    @property
    def head(self) -> dict[str, Any]:
        kind = "text_completion" if self.kind == "completion" else "chat.completion"
        kind += ".chunk" if self.stream and self.kind == "chat" else ""
        return {"id": self.identity, "object": kind, "created": self.created, "model": self.model}

    def asked(self) -> list[tuple[list[int], Options]]:
        return [
            (prompt, asked.seeded(self.options, number)) for prompt, _ in self.prompts for number in range(self.choices)
        ]


class OpenAI:
    """The routes for one model. It has a name for each way in which it may be computed: with an adapter, whose number
    ``names`` has, or without. The first is what requests mean that name none."""

    def __init__(self, names: Mapping[str, int | None], worker: Worker, tokenizer: Tokenizer, limits: Limits) -> None:
        self._names, self._worker, self._tokenizer, self._limits = names, worker, tokenizer, limits

    def routes(self) -> list[Route]:
        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    async def completions(self, request: Request) -> Response:
        return await self._answered(request, self._completion)

    async def chat(self, request: Request) -> Response:
        return await self._answered(request, self._chat)

    async def _answered(self, request: Request, read: Callable[[Fields], Job]) -> Response:
        fields = Fields(parsed(await body(request, self._limits)))
        # Templates, tokens and constraints take time that other clients need not wait for.
        job = await run_in_threadpool(read, fields)
        loop = asyncio.get_running_loop()
        tickets = await run_in_threadpool(self._worker.submit, job.asked(), loop)

        def closed() -> None:  # whatever ends the request: nothing happens where the answers are there
            for ticket in tickets:
                self._worker.cancel(ticket)

        if job.stream:
            return Events(self._events(job, tickets), self._limits.seconds, closed)
        try:
            async with asyncio.timeout(self._limits.seconds):
                whole = await attended(request, self._whole(job, tickets))
        finally:
            closed()
        return Response(status_code=499) if whole is None else JSONResponse(whole)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _completion(self, fields: Fields) -> Job:
        logprobs = fields.integer("logprobs", None)
        if logprobs is not None and not 0 <= logprobs <= _TOP:
            raise fields.wrong("logprobs", f"0 .. {_TOP}", logprobs)
        most = fields.integer("max_tokens", _MOST)
        echo = fields.flag("echo")
        prompts = [
            (self._tokenizer.encode(prompt), prompt) if isinstance(prompt, str) else
            (prompt, self._tokenizer.decode(prompt) if echo else "")
            for prompt in asked.prompts(fields)
        ]  # fmt: skip
        if echo and logprobs is not None:
            raise RefusedError(400, "logprobs of the prompt, which echo shows, are not supported", param="echo")
        return self._job("completion", fields, prompts, most, logprobs, echo)

    def _chat(self, fields: Fields) -> Job:
        top = fields.integer("top_logprobs", None)
        wanted = fields.flag("logprobs")
        if top is not None and not (wanted and 0 <= top <= _TOP):
            raise fields.wrong("top_logprobs", f"0 .. {_TOP}, and logprobs true", top)
        most = fields.integer("max_completion_tokens", fields.integer("max_tokens", None))
        values = dict(fields.object("chat_template_kwargs"))
        taken = sorted({"messages", "prompt", "tools"} & set(values))
        if taken:
            raise fields.wrong("chat_template_kwargs", f"no value for {taken[0]!r}", values)
        tokens = self._tokenizer.chat_tokens(asked.messages(fields), **values)
        return self._job("chat", fields, [(tokens, "")], most, (top or 0) if wanted else None, False)

    def _job(
        self, kind: str, fields: Fields, prompts: list[tuple[list[int], str]], most: int | None, logprobs: int | None,
        echo: bool,
    ) -> Job:  # fmt: skip
        model = fields.text("model")
        model = next(iter(self._names)) if model is None else model
        if model not in self._names:
            message = f"there is no model {model!r}: there is {', '.join(map(repr, self._names))}"
            raise RefusedError(404, message, param="model", code="model_not_found")
        if most is not None and most < 1:
            raise fields.wrong("max_tokens", "1 or more", most)
        options = replace(asked.options(fields, most, logprobs, self._limits), adapter=self._names[model])
        choices = asked.choices(fields, self._limits)
        stream = fields.flag("stream")
        usage = fields.any("stream_options", {})
        if not isinstance(usage, dict):
            raise fields.wrong("stream_options", "an object", usage)
        fields.finish()
        for prompt, _ in prompts:
            asked.checked(prompt, self._limits, self._worker.scheduler.engine.context)
        if len(prompts) * choices > self._limits.choices:
            raise RefusedError(400, f"expected at most {self._limits.choices} answers in all, found more", param="n")
        identity = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{secrets.token_hex(12)}"
        created = int(time.time())
        with_usage = usage.get("include_usage") is True
        return Job(kind, prompts, choices, options, echo, stream, with_usage, identity, created, model)

    # ---- answers -----------------------------------------------------------------------------------------------------

    async def _whole(self, job: Job, tickets: Sequence[Ticket]) -> dict[str, Any]:
        made = []
        for number, ticket in enumerate(tickets):
            pieces = [await ticket.piece()]
            while pieces[-1].finish is None:
                pieces.append(await ticket.piece())
            made.append(self._choice(job, number, pieces))
        return {**job.head, "choices": made, "usage": _usage(job, tickets)}

    def _choice(self, job: Job, number: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        choice: dict[str, Any] = {"index": number, "finish_reason": pieces[-1].finish}
        if job.kind == "chat":
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = (job.prompts[number // job.choices][1] if job.echo else "") + text
        return {**choice, "logprobs": self._logprobs(job, pieces, 0)}

    async def _events(self, job: Job, tickets: Sequence[Ticket]) -> AsyncIterator[dict[str, Any]]:
        """Events of all answers as their pieces come."""
        waiting = {asyncio.ensure_future(ticket.piece()): number for number, ticket in enumerate(tickets)}
        shown = [0] * len(tickets)  # characters of each, of which logprobs say the place
        # A field that is there with nothing in it is told from one that is not.
        last = {"usage": None} if job.usage else {}
        try:
            for number in range(len(tickets)):
                beginning = job.prompts[number // job.choices][1] if job.echo else ""
                if job.kind == "chat" or beginning:
                    delta = {"role": "assistant", "content": ""} if job.kind == "chat" else beginning
                    first = await asyncio.shield(next(task for task, n in waiting.items() if n == number))
                    assert isinstance(first, Piece)
                    yield {**job.head, "choices": [_delta(job, number, delta, None, None)], **last}
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number, piece = waiting.pop(task), task.result()
                    if piece.finish is None:
                        waiting[asyncio.ensure_future(tickets[number].piece())] = number
                    logprobs = self._logprobs(job, [piece], shown[number])
                    shown[number] += len(piece.text)
                    if piece.text or logprobs is not None or piece.finish is not None:
                        delta = {"content": piece.text} if job.kind == "chat" else piece.text
                        yield {**job.head, "choices": [_delta(job, number, delta, logprobs, piece.finish)], **last}
            if job.usage:
                yield {**job.head, "choices": [], "usage": _usage(job, tickets)}
        finally:
            for task in waiting:
                task.cancel()

    def _spelled(self, token: int) -> str:
        return self._tokenizer.decode([token], special=True)

    def _logprobs(self, job: Job, pieces: Sequence[Piece], offset: int) -> dict[str, Any] | None:
        if job.options.logprobs is None:
            return None
        if job.kind == "chat":
            return {
                "content": [
                    {
                        **self._entry(piece.token, piece.logprob),
                        "top_logprobs": [self._entry(token, value) for token, value in piece.top],
                    }
                    for piece in pieces
                ],
                "refusal": None,
            }
        places = []
        for piece in pieces:
            places.append(offset)
            offset += len(piece.text)
        return {
            "tokens": [self._spelled(piece.token) for piece in pieces],
            "token_logprobs": [piece.logprob for piece in pieces],
            "top_logprobs": [{self._spelled(token): value for token, value in piece.top} for piece in pieces],
            "text_offset": places,
        }

    def _entry(self, token: int, value: float | None) -> dict[str, Any]:
        text = self._spelled(token)
        return {"token": text, "logprob": value, "bytes": list(text.encode())}


def _delta(job: Job, number: int, delta: Any, logprobs: Any, finish: str | None) -> dict[str, Any]:
    name = "delta" if job.kind == "chat" else "text"
    return {"index": number, name: delta, "logprobs": logprobs, "finish_reason": finish}


def _usage(job: Job, tickets: Sequence[Ticket]) -> dict[str, Any]:
    prompt = sum(len(tokens) for tokens, _ in job.prompts)
    made = sum(len(ticket.answer.made) for ticket in tickets)
    reused = sum(ticket.answer.reused for ticket in tickets)
    return {
        "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": min(reused, prompt)},
    }  # fmt: skip
