"""Writes the worker's metrics in Prometheus' text format, without a library, because aiohttp is the only dependency."""

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
    """Return the text of ``/metrics``.

    Args:
        held: held jobs.
        version: version of the applied share.
        failures: failures of handlers and jobs since start.
        share_problem: whether the share that was read last is unusable.
        draining: whether the worker is stopping.
        exits: exit code → number of processes that exited with it (sidecar only).
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
