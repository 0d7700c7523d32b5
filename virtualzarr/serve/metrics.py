"""Metrics of the server for Prometheus."""

from __future__ import annotations

from typing import Any

from virtualzarr.errors import import_optional
from virtualzarr.serve.budget import Budget


class Metrics:
    """Counters of one application."""

    def __init__(self, budget: Budget) -> None:
        client: Any = import_optional(
            "prometheus_client",
            "serving needs prometheus-client; install virtualzarr with the extra 'serve'",
        )
        # Not the registry of the process: several applications may be mounted in one.
        self.registry = client.CollectorRegistry()
        common = {"registry": self.registry}
        self._requests = client.Counter(
            "virtualzarr_requests_total", "Requests answered.",
            ["dataset", "face", "kind", "status"], **common,
        )  # fmt: skip
        self._bytes = client.Counter(
            "virtualzarr_sent_bytes_total", "Bytes of bodies sent.",
            ["dataset", "face", "kind"], **common,
        )  # fmt: skip
        self._seconds = client.Histogram(
            "virtualzarr_request_seconds", "Seconds from request to the end of the answer.",
            ["kind"], buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60), **common,
        )  # fmt: skip
        self._cached = client.Counter(
            "virtualzarr_encoded_total", "Encoded chunks by where they came from.",
            ["origin"], **common,
        )  # fmt: skip
        memory = client.Gauge(
            "virtualzarr_memory_bytes", "Bytes counted against --memory.", **common
        )
        memory.set_function(lambda: budget.used)
        waiting = client.Gauge("virtualzarr_waiting", "Requests that wait for memory.", **common)
        waiting.set_function(lambda: budget.waiting)
        self._counters: dict[tuple[str, str, str, int], tuple[Any, Any, Any]] = {}
        self._render = client.generate_latest

    def count(
        self, dataset: str, face: str, kind: str, status: int, nbytes: int, seconds: float
    ) -> None:
        """Count an answer."""
        key = dataset, face, kind, status
        counters = self._counters.get(key)
        if counters is None:
            # Looking them up takes longer than counting; there are few combinations.
            counters = self._counters[key] = (
                self._requests.labels(dataset, face, kind, str(status)),
                self._bytes.labels(dataset, face, kind),
                self._seconds.labels(kind),
            )
        requests, sent, duration = counters
        requests.inc()
        sent.inc(nbytes)
        duration.observe(seconds)

    def count_encoded(self, origin: str) -> None:
        """Count an encoded chunk: from "memory", "disk", or "computed"."""
        self._cached.labels(origin).inc()

    def render(self) -> bytes:
        """Return all counters as Prometheus reads them."""
        text: bytes = self._render(self.registry)
        return text
