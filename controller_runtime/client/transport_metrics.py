"""Metrics of the requests to one API server."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Histogram

_REQUESTS = Counter(
    "rest_client_requests_total", "Requests by cluster, verb and HTTP code.", ["cluster", "verb", "code"]
)
_SECONDS = Histogram(
    "rest_client_request_duration_seconds",
    "Seconds from sending a request to the end of the response; for watches and streams to the first byte.",
    ["cluster", "verb"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
_REJECTED = Counter(
    "rest_client_responses_rejected_total",
    "Responses that exceed a limit: a body, one watch event (line), or the number of JSON values of a body.",
    ["cluster", "limit"],
)


class TransportMetrics:
    """Counts the requests of one client and caches the metrics' children."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._counters: dict[tuple[str, int], Any] = {}
        self._timers: dict[str, Any] = {}

    def count(self, verb: str, code: int) -> None:
        """Count a request by its HTTP status; 0: no answer."""
        counter = self._counters.get((verb, code))
        if counter is None:
            counter = _REQUESTS.labels(self._cluster, verb, str(code) if code else "<error>")
            self._counters[verb, code] = counter
        counter.inc()

    def observe(self, verb: str, seconds: float) -> None:
        """Record the duration of a request."""
        timer = self._timers.get(verb)
        if timer is None:
            timer = self._timers[verb] = _SECONDS.labels(self._cluster, verb)
        timer.observe(seconds)

    def rejected(self, limit: str) -> None:
        """Count a response that exceeds a limit, by the limit's name in ``response_limits.ResponseLimits``."""
        _REJECTED.labels(self._cluster, limit).inc()
