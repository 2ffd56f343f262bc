"""One thread that owns an engine, and the requests of all clients for it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from luminal.core.errors import InputError, LuminalError
from luminal.llm.generate import Answer, Options, Piece, Scheduler
from luminal.llm.serve.metrics import Metrics

_LOG = logging.getLogger("luminal.serve")


class BusyError(LuminalError):
    """There are more requests than may wait."""


class StoppedError(LuminalError):
    """The server takes no more requests, or the thread of its model has failed."""


class Ticket:
    """A request for one answer. Its pieces come to a queue of the event loop that asked for it; they are as many as the
    answer has tokens at most, so a client that reads slowly makes nobody wait."""

    def __init__(self, answer: Answer, loop: asyncio.AbstractEventLoop) -> None:
        self.answer = answer
        self.made = time.perf_counter()
        self._loop = loop
        self._queue: asyncio.Queue[Piece | Exception] = asyncio.Queue()

    def deliver(self, item: Piece | Exception) -> None:
        """From the worker's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def piece(self) -> Piece:
        """The next piece. Raises what ended the answer where there is none."""
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item


class Worker:
    """Makes answers, as many at a time as the engine has slots; up to ``waiting`` more wait their turn."""

    def __init__(self, scheduler: Scheduler, waiting: int, metrics: Metrics) -> None:
        self.scheduler = scheduler
        self._metrics = metrics
        self._most = waiting
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._cancelled: list[Ticket] = []
        self._running: dict[int, Ticket] = {}  # by the identity of the answer
        self._stopping = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="luminal-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """Take no more requests, make the answers that are asked for, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def problem(self) -> str:
        """Why there will be no answers; empty where there will be."""
        if self._failure is not None:
            return f"the model's thread has failed: {self._failure}"
        return "the server is stopping" if self._stopping else "" if self._thread.is_alive() else "not started"

    def submit(self, prompts: Sequence[tuple[Sequence[int], Options]], loop: asyncio.AbstractEventLoop) -> list[Ticket]:
        """Ask for answers, all or none. Raises InputError for what does not fit, BusyError where too many wait,
        StoppedError where there will be no answer."""
        self._check(len(prompts))  # before the work of making a constraint
        tickets = [Ticket(self.scheduler.answer(prompt, options), loop) for prompt, options in prompts]
        with self._changed:
            self._check(len(prompts))
            self._waiting.extend(tickets)
            self._measure()
            self._changed.notify()
        return tickets

    def _check(self, count: int) -> None:
        if self.problem:
            raise StoppedError(self.problem)
        free = self.scheduler.engine.slots - len(self._running)
        if len(self._waiting) + count > self._most + max(free, 0):
            raise BusyError(f"{len(self._waiting)} requests wait already, and {self._most} may: try again later")

    def cancel(self, ticket: Ticket) -> None:
        """Nobody wants the rest of an answer."""
        if ticket.answer.finish is None:
            with self._changed:
                self._cancelled.append(ticket)
                self._changed.notify()

    def _run(self) -> None:
        try:
            while self._admit():
                self._step()
        except Exception as error:  # noqa: BLE001  (the engine cannot be used any more: nobody may wait for it)
            _LOG.exception("the model's thread ends")
            with self._changed:
                self._failure = error
                tickets = [*self._running.values(), *self._waiting]
                self._running.clear()
                self._waiting.clear()
            for ticket in tickets:
                ticket.deliver(StoppedError(self.problem))

    def _admit(self) -> bool:
        """Waits until there is something to do; false at the end."""
        with self._changed:
            while not (self._waiting or self._running or self._stopping):
                self._changed.wait()
            for ticket in self._cancelled:
                self.scheduler.remove(ticket.answer)
                self._running.pop(id(ticket.answer), None)
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
            self._metrics.cancelled.inc(len(self._cancelled))
            self._cancelled.clear()
            while self._waiting and self.scheduler.free:
                ticket = self._waiting.popleft()
                try:
                    self.scheduler.add(ticket.answer)
                except Exception as error:  # noqa: BLE001  (it belongs to this answer, which nobody else would end)
                    _LOG.exception("an answer could not begin")
                    self.scheduler.remove(ticket.answer)
                    ticket.deliver(error)
                    continue
                self._running[id(ticket.answer)] = ticket
                self._metrics.prompt_tokens.inc(len(ticket.answer.prompt))
                self._metrics.reused_tokens.inc(ticket.answer.reused)
            self._measure()
            return bool(self._running or self._waiting or not self._stopping)

    def _measure(self) -> None:
        self._metrics.waiting.set(len(self._waiting))
        self._metrics.running.set(len(self._running))

    def _step(self) -> None:
        if not self._running:
            return
        try:
            found = self.scheduler.step()
        except Exception as error:  # noqa: BLE001  (whatever the engine raises belongs to those who wait for it)
            _LOG.exception("a step of the model failed")
            self.scheduler.clear()
            for ticket in self._running.values():
                ticket.deliver(error)
            self._running.clear()
            self._measure()
            return
        for answer, piece in found:
            ticket = self._running[id(answer)]
            if isinstance(piece, InputError) or piece.finish is not None:
                del self._running[id(answer)]
            if isinstance(piece, Piece):
                self._metrics.generated_tokens.inc()
                if len(answer.made) == 1:
                    self._metrics.first_token.observe(time.perf_counter() - ticket.made)
            ticket.deliver(piece)
        self._measure()
