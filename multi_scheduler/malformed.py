"""Reports unusable data of a lower cluster. Nodes of other lower clusters stay candidates."""

from __future__ import annotations

import time

from prometheus_client import Counter

from controller_runtime import log

_MALFORMED = Counter(
    "virtual_node_malformed_clusters_total",
    "Calculations about a lower cluster that failed because of its data. Its nodes are rejected or get a neutral score.",
    ["cluster"],
)
_QUIET_SECONDS = 600.0
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that malformed pods of tenants can cause."""
_log = log.get_logger(component="multi-scheduler")
_logged: dict[str, float] = {}
"""By cluster: time of the last log message."""


def note(cluster: str, error: Exception) -> str:
    """Count an error that the data of a lower cluster caused, and log it at most every ten minutes; return a text for users."""
    _MALFORMED.labels(cluster).inc()
    now = time.monotonic()
    if now - _logged.get(cluster, -_QUIET_SECONDS) >= _QUIET_SECONDS:
        _logged[cluster] = now
        _log.warning("data of a lower cluster cannot be used", cluster=cluster, error=repr(error)[:500])
    return f"lower cluster {cluster} has data that cannot be used: {type(error).__name__}"
