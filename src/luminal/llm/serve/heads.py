"""Connections whose requests must begin in time: uvicorn waits for the rest of a head for ever."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def timed(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol, which closes a connection where the head of a request takes longer than ``seconds``."""

    class Timed(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._late = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._on_time()
            elif self._late is None:  # the head of another request on this connection has begun
                self._late = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._on_time()
            super().connection_lost(exc)

        def _on_time(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Timed
