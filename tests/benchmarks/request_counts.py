"""Requests that API servers have served per pod, by verb and resource, from their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from hack.sandbox import Cluster, Sandbox

_TOTAL = "apiserver_request_total{"
_SHOWN = 0.02
"""Requests per pod below which a row is not shown. They depend on time, such as leases, and not on pods."""
_TIMED = frozenset({"leases", "nodes", "nodes/status"})
"""Resources that heartbeats write and read, independent of pods."""
_NO_WRITES = ("reviews", "endpoints")
"""Resources whose writes do not count: reviews store nothing, and API servers write their own Endpoints."""
_READS = ("GET", "LIST", "WATCH", "CONNECT")


async def served(cluster: Cluster) -> Counter[str]:
    """Return the requests that the API server has served so far, by ``VERB resource/subresource``."""
    text = (await cluster.kubectl("get", "--raw=/metrics")).stdout
    lines = "\n".join(line for line in text.splitlines() if line.startswith(_TOTAL))
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            of = sample.labels
            resource = "/".join(part for part in (of["resource"], of["subresource"]) if part)
            if of["resource"] and resource not in _TIMED:
                found[f"{of['verb']} {resource}"] += int(sample.value)
    return found


async def served_by(sandbox: Sandbox) -> dict[str, Counter[str]]:
    """Return the same for each API server, by cluster."""
    return {cluster.name: await served(cluster) for cluster in sandbox.clusters}


def per_pod(before: Mapping[str, int], after: Mapping[str, int], pods: int) -> dict[str, float]:
    """Return the requests per pod between two results of ``served``, without rows that pods do not cause."""
    grown = {row: (count - before.get(row, 0)) / pods for row, count in after.items()}
    return {row: count for row, count in grown.items() if count >= _SHOWN}


def writes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the requests between two results of ``served`` that may have changed objects."""
    return {
        row: count - before.get(row, 0)
        for row, count in after.items()
        if count != before.get(row, 0) and not row.startswith(_READS) and not row.endswith(_NO_WRITES)
    }


def writes_by(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]
) -> dict[str, int]:
    """Return the same for two results of ``served_by``, by cluster and row."""
    return {
        f"{cluster} {row}": count
        for cluster in before
        for row, count in writes(before[cluster], after[cluster]).items()
    }


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Return rows of figures as text.

    Args:
        columns: figures by row, by the column's title.
    """
    rows = sorted({row for column in columns.values() for row in column}, key=_order)
    lines = [" " * 36 + "".join(f"{title:>20}" for title in columns)]
    for row in rows:
        figures = (f"{column[row]:.2f}" if row in column else "" for column in columns.values())
        lines.append(f"{row:<36}" + "".join(f"{figure:>20}" for figure in figures))
    return "\n".join(lines)


def _order(row: str) -> tuple[str, str]:
    verb, _, resource = row.partition(" ")
    return resource, verb
