"""The annotator's process: the view of the lower clusters, leader election, and the writer while this process leads.

The writer computes annotations of nodes, and writes them to virtual nodes and, with ``--lower-nodes``, to lower nodes.

Values are free resources by measured usage and by requests, the requests, and pressure; changed values are written.
Except for pressure, the keys are those of kube-safe-scheduler's annotators. CPU is in millicores, everything else in
its base unit. A virtual node gets the sums over its lower nodes, the deviation of these sums, and the mean pressure.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import msgspec
from prometheus_client import Counter

from clusterset.model import names
from controller_runtime import log, resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Forbidden, NotFound, is_retryable
from controller_runtime.process import lifecycle
from controller_runtime.serving.health import Check
from controller_runtime.serving.server import HealthServer
from multi_scheduler import config, malformed, shared
from multi_scheduler.annotator.program import PROGRAM, AnnotatorSettings
from multi_scheduler.bound_pods import bound_pods
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.shared import LowerClients, Shared
from multi_scheduler.state.cluster.filters import Node
from multi_scheduler.state.lower_state import LowerState
from multi_scheduler.usage import DEVIATION, FORECAST, MEAN, Usage, number

_SMALL = 0.5
"""The change of a smaller value is compared with this value instead, so that small loads cause fewer writes."""
REQUESTED = ("cpu", "memory", "pods", "ephemeral-storage")
"""Resources whose requests are reported."""
_MEASURED = ("cpu", "memory")
_KEYS = tuple(form.format(resource) for form in (MEAN, DEVIATION, FORECAST) for resource in _MEASURED)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Capacity, requests and measured usage of one lower node."""

    allocatable: Mapping[str, int]
    requested: Mapping[str, int]
    usage: Usage | None


def values(nodes: Iterable[Measurement]) -> dict[str, str | None]:
    """Return the annotations for a group of nodes; value None: unknown, so the annotation is removed.

    Deviations are combined as for independent variables. Only nodes with known usage count for measured values.
    """
    found = list(nodes)
    annotations: dict[str, str | None] = dict.fromkeys(_KEYS)
    loads = [
        1 - score
        for one in found
        if one.usage is not None
        and (score := one.usage.score(one.requested.get("pods", 0), one.allocatable)) is not None
    ]
    annotations[names.ANNOTATION_PRESSURE] = f"{sum(loads) / len(loads):.2f}" if loads else None
    for resource in REQUESTED:
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


def differ(old: Mapping[str, str | None], new: Mapping[str, str | None], threshold: float) -> bool:
    """Report whether a value was added, was removed, or changed by more than the relative threshold."""
    return any(_differs(number(old.get(key)), number(value), threshold) for key, value in new.items())


def has_usage(found: Mapping[str, str | None]) -> bool:
    """Report whether annotations contain measured values."""
    return any(found.get(key) is not None for key in (*_KEYS, names.ANNOTATION_PRESSURE))


def _differs(old: float | None, new: float | None, threshold: float) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) > threshold * max(abs(old), _SMALL)


def _whole(value: float) -> str:
    return str(round(max(0.0, value)))


_WRITES = Counter(
    "virtual_node_annotator_writes_total",
    "Nodes whose annotations were written, and attempts that failed.",
    ["cluster", "result"],
)
_log = log.get_logger(component="annotator")


@dataclass(eq=False)
class Writer:
    """Writes a node's values when they differ from the last write, or ``refresh`` seconds after it."""

    upper: Client
    shared: Shared
    directory: NodeDirectory
    lower_nodes: bool
    """Whether the lower nodes are annotated, too."""
    refresh: float
    """Seconds after which unchanged annotations are written again."""
    threshold: float
    """Relative change of a value that causes a write."""
    _written: dict[tuple[str, str], tuple[float, dict[str, str | None]]] = field(default_factory=dict)
    """Time and values of the last write by lower cluster and node; the upper cluster has no name here."""

    async def run(self, interval: float) -> None:
        """Write until cancelled, with ``interval`` seconds between two comparisons of a cluster's nodes."""
        tasks: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                # First the pause, so that the sources have been read: a missing value would remove an annotation.
                await asyncio.sleep(interval)
                # One task for each cluster, because a lower cluster may answer slowly.
                for cluster in self.shared.state.clusters:
                    if cluster not in tasks or tasks[cluster].done():
                        tasks[cluster] = group.create_task(
                            self._annotate(cluster), name=f"annotate {cluster}"
                        )

    async def _annotate(self, cluster: str) -> None:
        try:
            await self.write(cluster)
        except Exception as error:  # noqa: BLE001 - a lower cluster may send anything
            malformed.note(cluster, error)

    async def write(self, cluster: str) -> None:
        """Write changed annotations of a cluster's nodes; stop at an error that other nodes of the cluster would get, too."""
        lower = self.shared.state.clusters[cluster]
        if lower.feed.trouble():
            return  # the caches may be outdated
        measured = {node.name: (node, _measure(lower, node)) for node in lower.index.nodes()}
        for virtual in self.directory.of(cluster):
            pool = virtual.pool.items()
            chosen = [one for node, one in measured.values() if pool <= node.labels.items()]
            key = "", virtual.name
            if not await self._write(self.upper, key, values(chosen), virtual.annotations):
                return
        for key in [key for key in self._written if key[0] == cluster and key[1] not in measured]:
            del self._written[key]  # a deleted node, or a new node of its name without annotations
        for name, (_, one) in measured.items() if self.lower_nodes else ():
            key = cluster, name
            if not await self._write(lower.client, key, values([one]), lower.feed.annotations(name)):
                return

    async def _write(
        self, client: Client, key: tuple[str, str], found: dict[str, str | None], present: Mapping[str, str]
    ) -> bool:
        """Patch a node if its values changed enough; return whether requests for other nodes may succeed.

        ``found`` are the values, and ``present`` are the annotations of the node.
        """
        (_, name), now = key, asyncio.get_running_loop().time()
        at, before = self._written.get(key, (-math.inf, {}))
        if now - at < self.refresh and not differ(before, found, self.threshold):
            return True
        stamp = timestamps.rfc3339(datetime.now(UTC)) if has_usage(found) else None
        stamped = {**found, names.ANNOTATION_USAGE_AT: stamp}
        if names.ANNOTATION_USAGE_AT not in present and not has_usage(before):
            # Usage in the annotations is from another program: keep it.
            stamped = {key: value for key, value in stamped.items() if value is not None}
        try:
            await client.patch(resources.NODES, name, {"metadata": {"annotations": stamped}})
        except NotFound:  # the node was just deleted
            self._written.pop(key, None)
        except ApiError as error:
            _WRITES.labels(client.cluster, "failed").inc()
            _log.warning("node not annotated", cluster=client.cluster, node=name, error=str(error))
            # Without the right or a connection, the other nodes would fail, too.
            return not isinstance(error, Forbidden) and not is_retryable(error)
        else:
            _WRITES.labels(client.cluster, "written").inc()
            self._written[key] = now, found
        return True


def _measure(lower: LowerState, node: Node) -> Measurement:
    there = lower.index.on(node.name).values()
    requested = {
        resource: sum(placed.requests.get(resource, 0) for placed in there) for resource in REQUESTED
    }
    return Measurement(node.allocatable, requested, lower.measured.usage.usage(node.name))


async def run(options: AnnotatorSettings) -> None:
    """Take part in leader election and annotate nodes while leading, until cancelled.

    Raises:
        ConfigError: a setting or file is wrong and the user must correct it.
    """
    await config.run(
        options, PROGRAM.name, lambda given: shared.run(given, PROGRAM.name, partial(_work, given))
    )


async def _work(options: AnnotatorSettings, upper: Client, lower: LowerClients) -> None:
    # Only agents use the usage of real upper nodes and the bound pods, and the annotator has no right to read them.
    config = msgspec.structs.replace(options.config, upper_usage=None)
    shared = Shared(config, upper, bound_pods(upper))
    directory = NodeDirectory(upper, config, effect="it gets no annotations")
    lower.inform(directory)
    lower.inform(shared)

    async def write() -> None:
        # Created for every term of leadership, because another process may have written since the last term.
        await Writer(
            upper,
            shared,
            directory,
            lower_nodes=options.lower_nodes,
            refresh=options.refresh,
            threshold=options.threshold / 100,
        ).run(options.interval)

    checks: dict[str, Check] = {
        "nodes": directory.unread,
        # One readable lower cluster is enough, as others may be unreachable.
        "view": lambda: (
            "no lower cluster has been read yet"
            if all(cluster.feed.trouble() for cluster in shared.state.clusters.values())
            else None
        ),
    }
    async with contextlib.AsyncExitStack() as stack:
        if options.health_addr:
            await stack.enter_async_context(HealthServer(options.health_addr, checks=checks))
        await stack.enter_async_context(lifecycle.collecting_garbage())
        async with asyncio.TaskGroup() as group:
            group.create_task(directory.run(), name="nodes")
            group.create_task(shared.state.run_lower(measures=True), name="view")
            await options.election.lead(upper, write, name=PROGRAM.name, namespace=options.namespace)
