"""The node annotator: writes the free resources of nodes, by measured usage and by requests, as annotations.

The keys are those of kube-safe-scheduler's annotators: CPU in millicores, everything else in its base unit. A virtual
node gets the sums over its lower nodes and the deviation of that sum. Lower nodes are annotated only with
``--annotate=LowerNodes``, because this needs write access to lower clusters.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from controller_runtime import log, resources
from controller_runtime.api import names, timestamps
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.node_filter import Node
from multi_scheduler.formulas import pressure
from multi_scheduler.shared import Shared
from multi_scheduler.usage.node_annotations import DEVIATION, FORECAST, MEAN, number
from multi_scheduler.usage.store import Usage

_INTERVAL = 60.0
_REFRESH = 300.0
"""Seconds after which unchanged annotations are written again, so that readers can judge their age."""
_THRESHOLD = 0.05
"""Relative change that causes a write."""
_SMALL = 0.5
"""Smaller values are compared as if they were this value, because differences between small loads do not matter."""
_MEASURED, _REQUESTED = ("cpu", "memory"), ("cpu", "memory", "pods", "ephemeral-storage")
_KEYS = tuple(form.format(resource) for form in (MEAN, DEVIATION, FORECAST) for resource in _MEASURED)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Capacity, requests and measured usage of one lower node."""

    allocatable: Mapping[str, int]
    requested: Mapping[str, int]
    usage: Usage | None


def values(nodes: Iterable[Measurement]) -> dict[str, str | None]:
    """Return the annotations for a group of nodes; value None: unknown, so the annotation is removed.

    Deviations are combined as for independent variables. Measured values are sums over the nodes with known usage.
    """
    found = list(nodes)
    annotations: dict[str, str | None] = dict.fromkeys(_KEYS)
    loads = [load for one in found if (load := _load(one)) is not None]
    annotations[names.ANNOTATION_PRESSURE] = f"{sum(loads) / len(loads):.2f}" if loads else None
    for resource in _REQUESTED:
        offered = sum(one.allocatable.get(resource, 0) for one in found)
        requested = sum(one.requested.get(resource, 0) for one in found)
        annotations[f"requested-{resource}"] = str(requested)
        annotations[f"free-{resource}"] = str(max(0, offered - requested))
    for resource in _MEASURED:
        known = [
            (one.allocatable.get(resource, 0), measured)
            for one in found
            if one.usage is not None
            and (measured := one.usage.cpu if resource == "cpu" else one.usage.memory) is not None
        ]
        if known:
            annotations[MEAN.format(resource)] = _whole(sum(size - one.mean for size, one in known))
            annotations[DEVIATION.format(resource)] = _whole(
                math.sqrt(sum(one.deviation**2 for _, one in known))
            )
            if all(one.forecast is not None for _, one in known):
                ahead = sum(size - (one.forecast or 0.0) for size, one in known)
                annotations[FORECAST.format(resource)] = _whole(ahead)
    return annotations


def _load(node: Measurement) -> float | None:
    """Return a node's load by the pressure agent's formula; None: unknown."""
    usage, pods, cpus = node.usage, node.allocatable.get("pods", 0), node.allocatable.get("cpu", 0)
    if usage is None or usage.pressure is None:
        return None
    share = node.requested.get("pods", 0) / pods if pods else 0.0
    utilisation = usage.cpu.latest / cpus if usage.cpu is not None and cpus else None
    return 1 - pressure.score(share, usage.pressure, utilisation=utilisation, is_pressed=usage.is_pressed)


def differ(old: Mapping[str, str], new: Mapping[str, str | None]) -> bool:
    """Report whether annotations differ enough to be written."""
    return any(_differs(number(old.get(key)), number(value)) for key, value in new.items())


def _differs(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) > _THRESHOLD * max(abs(old), _SMALL)


def _whole(value: float) -> str:
    return str(round(max(0.0, value)))


class Annotator:
    """Writes the annotations periodically."""

    def __init__(
        self,
        upper: Client,
        lower: Mapping[str, Client],
        shared: Shared,
        directory: NodeDirectory,
        *,
        below: bool,
    ) -> None:
        """Mark the shared view as used, so that it is filled; ``run`` writes the annotations.

        Args:
            upper: client of the upper cluster.
            lower: clients of the lower clusters, by name.
            shared: state of the lower clusters.
            directory: finds the virtual nodes of a lower cluster.
            below: annotate lower nodes as well.
        """
        self._upper, self._lower, self._shared, self._directory = upper, lower, shared, directory
        self._below = below
        self._written: dict[tuple[str, str], tuple[float, dict[str, str | None]]] = {}
        self._log = log.get_logger(component="annotator")
        shared.view.is_used = True

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            await self.annotate()

    async def annotate(self) -> None:
        """Write the annotations that changed, one node after the other."""
        for cluster, index in self._shared.indexes.items():
            if self._shared.trouble(cluster):
                continue  # the state of the cluster may be outdated
            measured = {node.name: (node, self._measure(cluster, index, node)) for node in index.nodes()}
            for virtual in self._directory.of(cluster):
                pool = virtual.pool.items()
                chosen = [one for node, one in measured.values() if pool <= node.labels.items()]
                await self._write(self._upper, virtual.name, values(chosen))
            if self._below:
                for name, (_, one) in measured.items():
                    await self._write(self._lower[cluster], name, values([one]))

    def _measure(self, cluster: str, index: ClusterIndex, node: Node) -> Measurement:
        requested = {
            resource: sum(placed.requests.get(resource, 0) for placed in index.on(node.name).values())
            for resource in _REQUESTED
        }
        return Measurement(node.allocatable, requested, self._shared.stores[cluster].usage(node.name))

    async def _write(self, client: Client, name: str, found: dict[str, str | None]) -> None:
        key, now = (client.cluster, name), asyncio.get_running_loop().time()
        at, before = self._written.get(key, (-math.inf, {}))
        known = {name: value for name, value in before.items() if value is not None}
        if now - at < _REFRESH and not differ(known, found):
            return
        stamped = {**found, names.ANNOTATION_USAGE_AT: timestamps.rfc3339(datetime.now(UTC))}
        try:
            await client.patch(resources.NODES, name, {"metadata": {"annotations": stamped}})
        except ApiError as error:
            self._log.warning("node not annotated", cluster=client.cluster, node=name, error=str(error))
            return
        self._written[key] = now, found
