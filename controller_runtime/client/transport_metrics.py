"""Metrics of the requests to one API server."""

from __future__ import annotations

import functools
from http import HTTPStatus

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


# Cached, because ``labels`` takes longer than counting.
_counter = functools.cache(_REQUESTS.labels)
_timer = functools.cache(_SECONDS.labels)
_CODES = frozenset(map(int, HTTPStatus))
"""Other codes of a server share a series, because a hostile server could add one with each of its 900."""


class TransportMetrics:
    """Counts the requests of one client."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def count(self, verb: str, code: int) -> None:
        """Count a request by its HTTP status; 0: no answer."""
        name = str(code) if code in _CODES else "other" if code else "<error>"
        _counter(self._cluster, verb, name).inc()

    def observe(self, verb: str, seconds: float) -> None:
        """Record the duration of a request."""
        _timer(self._cluster, verb).observe(seconds)

    def rejected(self, limit: str) -> None:
        """Count a response that exceeds a limit: ``body``, ``line``, ``values`` or ``depth``."""
        _REJECTED.labels(self._cluster, limit).inc()
