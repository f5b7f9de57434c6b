"""Metrics of Swarms."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge

from controller_runtime.objects import Object

_JOBS = Gauge(
    "virtual_node_swarm_jobs",
    "Jobs of a Swarm: all, assigned to a worker, acknowledged as running.",
    ["swarm_namespace", "swarm", "state"],
)
_WORKERS = Gauge(
    "virtual_node_swarm_workers",
    "Workers of a Swarm: all, and those that have not acknowledged their newest share.",
    ["swarm_namespace", "swarm", "state"],
)
_MOVED = Counter(
    "virtual_node_swarm_moved_total", "Jobs that moved to another worker.", ["swarm_namespace", "swarm"]
)
_STATES = {"all": "jobCount", "assigned": "assignedCount", "running": "runningCount"}


def observe(swarm: Object, status: Mapping[str, Any]) -> None:
    """Set the metrics from a status."""
    for state, field in _STATES.items():
        _JOBS.labels(swarm.namespace, swarm.name, state).set(status[field])
    behind = [one for one in status["workers"] if one["acknowledgedVersion"] < one["assignedVersion"]]
    _WORKERS.labels(swarm.namespace, swarm.name, "all").set(len(status["workers"]))
    _WORKERS.labels(swarm.namespace, swarm.name, "behind").set(len(behind))


def moved(swarm: Object, jobs: int) -> None:
    """Count jobs that moved to another worker."""
    _MOVED.labels(swarm.namespace, swarm.name).inc(jobs)


def forget(key: str) -> None:
    """Remove the metrics of a deleted Swarm."""
    labels = key.split("/", 1)
    with contextlib.suppress(KeyError):
        _MOVED.remove(*labels)
    for metric, states in ((_JOBS, tuple(_STATES)), (_WORKERS, ("all", "behind"))):
        for state in states:
            with contextlib.suppress(KeyError):
                metric.remove(*labels, state)
