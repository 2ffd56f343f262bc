"""Servers of models that are given by their paths, on uvicorn."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from luminal.core.errors import InputError
from luminal.llm.extras import require
from luminal.llm.model import LanguageModel
from luminal.llm.opening import name_of
from luminal.module import Module

for _package in ("starlette", "uvicorn", "prometheus_client"):
    require(_package, "serve", "a server")

from luminal.llm.serve import app, heads, inference  # noqa: E402  (they need what was asked for)
from luminal.llm.serve.http import Limits  # noqa: E402

__all__ = ["Limits", "application", "plain_models", "run"]

_HEADERS = 64 << 10  # bytes of a request's head
_IDLE = 10  # seconds that a connection without a request stays, or the head of one may take


def application(
    lm: LanguageModel, name: str, limits: Limits | None = None, adapters: Mapping[str, Path] | None = None
) -> Any:
    """The server of a language model with a tokenizer, which owns it from then on; ``adapters`` are folders by what
    clients call the model with each. Raises as ``LanguageModel.load_adapter`` does."""
    given = dict(adapters or {})
    if name in given:
        raise InputError(f"expected an adapter of another name than the model's, found {name!r}")
    for number, folder in enumerate(given.values()):
        lm.load_adapter(number, folder)
    return app.language_model(name, lm, lm.tokenizer, limits, list(given))


def plain_models(
    folders: Sequence[Path], name: str | None, threads: int, limits: Limits | None = None,
    compiled: Mapping[Path, Module] | None = None,
) -> Any:  # fmt: skip
    """The server of exported models of any kind, and of those that are ``compiled``, by the folder of their
    tokenizer."""
    named = {name or name_of(folder): folder for folder in folders}
    if len(named) < len(folders):
        raise InputError(f"expected models of different names, found {', '.join(map(name_of, folders))}")
    return inference.application(named, threads, limits, compiled)


def run(application: Any, host: str, port: int, listening: Callable[[str], None]) -> None:
    """Serves until the process is told to end, by SIGTERM or an interrupt; then takes no more requests, and ends when
    those that are there are answered; a second interrupt ends it at once. After SIGTERM it raises SystemExit(0): the
    process has done what it was told. Raises InputError where it cannot listen. It belongs into the main thread."""
    package = require("uvicorn", "serve", "a server")
    config = package.Config(
        application, host=host, port=port, http=heads.timed(_IDLE), ws="none", lifespan="on", server_header=False,
        access_log=False, log_level="warning", h11_max_incomplete_event_size=_HEADERS, timeout_keep_alive=_IDLE,
    )  # fmt: skip
    server = package.Server(config)
    try:
        sock = config.bind_socket()
    except SystemExit as error:  # uvicorn logs why, and gives up
        raise InputError(f"cannot listen at {host}:{port}") from error
    address, number = sock.getsockname()[:2]
    before = signal.signal(signal.SIGTERM, _told_to_end)  # uvicorn raises the signal again when it has ended
    try:
        listening(f"http://{f'[{address}]' if ':' in address else address}:{number}")
        asyncio.run(server.serve(sockets=[sock]))
    finally:
        signal.signal(signal.SIGTERM, before)
    if not server.started:
        raise InputError("the server could not start")


def _told_to_end(number: int, frame: Any) -> None:
    raise SystemExit(0)
