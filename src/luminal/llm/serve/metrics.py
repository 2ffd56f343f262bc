"""What a server counts, for Prometheus."""

from __future__ import annotations

from luminal.llm.extras import require

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        package = require("prometheus_client", "serve", "a server")
        self._package = package
        self.registry = package.CollectorRegistry()
        self.requests = self._made(package.Counter, "requests", "requests answered", ("route", "status"))
        self.seconds = self._made(package.Histogram, "request_seconds", "time of a request", ("route",), _SECONDS)
        self.prompt_tokens = self._made(package.Counter, "prompt_tokens", "tokens of prompts")
        self.reused_tokens = self._made(package.Counter, "reused_tokens", "tokens of prompts that slots held already")
        self.generated_tokens = self._made(package.Counter, "generated_tokens", "tokens of answers")
        self.cancelled = self._made(package.Counter, "cancelled", "answers that nobody wanted any more")
        self.running = self._made(package.Gauge, "running", "answers that are being made")
        self.waiting = self._made(package.Gauge, "waiting", "answers that wait for a slot")
        self.first_token = self._made(
            package.Histogram, "first_token_seconds", "time to the first token of an answer", (), _SECONDS
        )

    def _made(self, kind: type, name: str, what: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = ()):  # type: ignore[no-untyped-def]
        options = {"buckets": buckets} if buckets else {}
        return kind(f"luminal_{name}", what, labels, registry=self.registry, **options)

    def text(self) -> bytes:
        """All of them, in Prometheus' format."""
        found: bytes = self._package.generate_latest(self.registry)
        return found

    @property
    def media_type(self) -> str:
        return str(self._package.CONTENT_TYPE_LATEST)
