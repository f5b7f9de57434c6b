"""The worker's metrics in Prometheus' text format, written by hand: the library depends on aiohttp only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from swarm.worker.jobs.state import Held, Phase

_PREFIX = "virtual_node_swarm_worker_"


def render(
    held: Mapping[str, Held],
    *,
    version: int,
    failures: int,
    share_problem: bool,
    draining: bool,
    exits: Mapping[int, int],
) -> str:
    """The text of ``/metrics``.

    Args:
        held: the jobs that run.
        version: of the share that is applied.
        failures: of handlers and jobs since the start.
        share_problem: whether the share that was read last cannot be used.
        draining: whether the worker stops.
        exits: exit code → processes that ended with it (sidecar only).
    """
    phases = Counter(one.phase for one in held.values())
    lines = [
        *_metric(
            "jobs", "gauge", "Jobs by phase.", {f'{{phase="{one.value}"}}': phases[one] for one in Phase}
        ),
        *_metric("share_version", "gauge", "Version of the share that is applied.", {"": version}),
        *_metric("share_invalid", "gauge", "1 if the latest share cannot be used.", {"": int(share_problem)}),
        *_metric("job_failures_total", "counter", "Failed handlers and jobs that ended.", {"": failures}),
        *_metric("draining", "gauge", "1 while the worker stops all jobs to exit.", {"": int(draining)}),
    ]
    if exits:
        codes = {f'{{code="{code}"}}': number for code, number in sorted(exits.items())}
        lines += _metric("process_exits_total", "counter", "Ended processes by exit code.", codes)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, values: Mapping[str, int]) -> list[str]:
    full = _PREFIX + name
    head = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    return [*head, *(f"{full}{labels} {value}" for labels, value in values.items())]
