"""The Node object of one virtual node: registered, kept current, and registered again when it is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from clusterset.config import NodeConfig
from clusterset.model.moving.silence import CORDONED, NO_READY_NODES, UNREACHABLE
from clusterset.model.names import LABEL_EXCLUDE_BALANCERS, LABEL_UPPER_UID
from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import is_finished
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import PatchType
from controller_runtime.errors import AlreadyExists, ApiError, ConfigError, NotFound
from controller_runtime.objects import Object
from controller_runtime.process.program import version
from controller_runtime.util.event_loop import Slicer
from virtual_node import metrics
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import SHORTEST_PAUSE, ClusterContext
from virtual_node.examine.codes import Code
from virtual_node.examine.connections import plain
from virtual_node.examine.facts import Names
from virtual_node.examine.rules.apis import unserved
from virtual_node.translate.base.fields import word
from virtual_node.translate.nodes import node as translate
from virtual_node.translate.nodes.capacity import Capacity
from virtual_node.translate.pods import dns
from virtual_node.translate.storage.shared import node_label

_RELEASE = version()
_READY = "KubeletReady"
_VERSION_SECONDS = 60.0
"""Seconds between two requests for the version of a lower cluster."""
_COALESCE = 0.25
"""Seconds for which lower changes are collected before the Node is patched."""
_RETRY = 2.0
_FIRST_CONTACT = 3.0
"""Maximum seconds to wait for the lower cluster before a virtual node registers NotReady."""
_version = word(64)
"""Reads the lower cluster's version, which becomes the kubelet version of its virtual nodes."""


@dataclass(eq=False, repr=False)
class NodeController:
    """Registers the Node, and patches its status on changes and once per ``status_interval``."""

    context: ClusterContext
    config: NodeConfig
    caches: ClusterCaches
    health: HealthController
    addresses: list[dict[str, str]]
    kubelet_port: int
    _dirty: asyncio.Event = field(default_factory=asyncio.Event)
    registered: asyncio.Event = field(default_factory=asyncio.Event)
    uid: str = ""
    error: str = ""
    """Why the Node could not be registered or patched; empty: no error."""
    ready: bool | None = None
    _written_at: float = 0.0
    _not_stored: list[str] | None = None
    """Declared features that the upper API server did not store, because it does not know the field; None: it stored them."""
    _unready_since: float | None = None
    """With autoscaling: loop time since which lower nodes are selected, but none is Ready; None: otherwise."""

    def __post_init__(self) -> None:
        """Register handlers on the caches."""
        self._followed = FollowedCapacity(self.config, self.caches, self.refresh)
        self.capacity = self._followed.sums
        self._mine = Informer(
            self.context.upper,
            resources.NODES,
            field_selector=f"metadata.name={self.config.name}",
            name="own-node",
        )
        self._mine.add_handler(
            on_add=lambda _node, _initial: self.refresh(),
            on_update=lambda _old, new: self._changed_by_others(new),
            on_delete=self._deleted,
        )

    @property
    def node(self) -> dict[str, Any] | None:
        """Return the Node in the upper cluster as last seen; None: not registered, or not seen yet."""
        seen = self._mine.store.get(self.config.name)
        return seen.to_dict() if seen is not None else None

    def refresh(self) -> None:
        """Schedule an update of the Node, because its data may have changed."""
        self._dirty.set()

    async def run(self) -> None:
        """Keep the Node current until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mine.run(), name=f"own node {self.config.name}")
            group.create_task(self._write_loop(), name=f"node status {self.config.name}")

    async def give_up(self, why: str) -> None:
        """Report that the lower cluster is too large for its caches; called after ``run`` has ended."""
        current = self.node
        if current is None:
            return
        conditions = translate.node_conditions(
            ready=False,
            reason=translate.TOO_LARGE,
            message=why,
            now=datetime.now(UTC),
            previous=(current.get("status") or {}).get("conditions") or [],
        )
        await self._patch({"status": {"conditions": conditions}}, subresource="status")

    async def _write_loop(self) -> None:
        await self._first_contact()
        loop = asyncio.get_running_loop()
        interval = self.context.settings.status_interval
        while True:
            self._dirty.clear()
            await self._followed.settle()
            try:
                await self._write(heartbeat=loop.time() - self._written_at >= interval)
            except (ApiError, ConfigError) as error:
                self.error = plain(str(error))
                self.context.log.warning("node status not written", node=self.config.name, error=str(error))
                await asyncio.sleep(_RETRY)
                self._dirty.set()
                continue
            self.error = ""
            due = max(SHORTEST_PAUSE, interval - (loop.time() - self._written_at))
            try:
                async with asyncio.timeout(due):
                    await self._dirty.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(_COALESCE)

    async def _first_contact(self) -> None:
        """Wait up to three seconds for the lower cluster, so that a healthy one registers Ready with its capacity."""
        await self._mine.wait_synced()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_CONTACT):
                await self.caches.lower_nodes.wait_synced()
                await self.caches.foreign_pods.wait_synced()
                while self.health.reachable is None:
                    self._dirty.clear()
                    await self._dirty.wait()

    def _condition(self) -> tuple[bool, str, str]:
        name = self.context.name
        if self.capacity.running_nodes or not self.capacity.selected_nodes:
            self._unready_since = None
        if self.health.reachable is False:
            why = f"Lower cluster {name} does not answer: {self.health.error}"
            return False, UNREACHABLE, why
        if self.health.reachable is None or not self.caches.lower_nodes.has_synced:
            error = self.caches.lower_nodes.last_error
            trouble = f": {plain(str(error))}" if error else ""
            return False, "LowerClusterUnknown", f"Lower cluster {name} has not been read yet{trouble}"
        if not self.capacity.running_nodes and not self._waits_for_nodes():
            total = len(self.caches.lower_nodes.store)
            why = f"None of the {total} nodes of lower cluster {name} that this virtual node selects is Ready"
            return False, NO_READY_NODES, why
        if self.capacity.running_nodes and not self.capacity.ready_nodes:
            # As on a cordoned node: new pods find no room, and kube-controller-manager does not evict those that run.
            why = (
                f"All Ready nodes of lower cluster {name} are cordoned ({self.capacity.running_nodes} nodes)"
            )
            return True, CORDONED if self.config.autoscaling is None else _READY, why
        return True, _READY, f"Lower cluster {name} is ready ({self.capacity.ready_nodes} nodes)"

    def _waits_for_nodes(self) -> bool:
        """Report whether to wait for autoscaling to add a lower node.

        True if no lower node is selected, or if all became unready less than ``provisionSeconds`` ago.
        """
        growth = self.config.autoscaling
        if growth is None or not self.capacity.selected_nodes:
            return growth is not None
        loop = asyncio.get_running_loop()
        if self._unready_since is None:
            self._unready_since = loop.time()
            loop.call_later(growth.provision_seconds, self.refresh)
        return loop.time() - self._unready_since < growth.provision_seconds

    def _desired(self, previous: dict[str, Any]) -> dict[str, Any]:
        ready, reason, message = self._condition()
        if self.ready != ready:
            self.context.log.info("node condition", node=self.config.name, ready=ready, reason=reason)
            self.ready = ready
        capacity, allocatable = self.capacity.totals()
        growth = self.config.autoscaling
        metrics.show_node(
            self.context.name,
            self.config.name,
            ready=ready,
            allocatable=allocatable,
            counting=self.capacity.ready_nodes,
            selected=self.capacity.selected_nodes,
        )
        return translate.node_object(
            name=self.config.name,
            cluster_name=self.context.name,
            labels={
                **({LABEL_EXCLUDE_BALANCERS: "true"} if self.config.exclude_from_load_balancers else {}),
                **{node_label(storage.name): "true" for storage in self.context.config.volumes.shared},
                **self.config.labels,
            },
            upper_id=self.context.cluster_id,
            declared=(previous.get("status") or {}).get("declaredFeatures") or (),
            zones=translate.recorded_zones(previous.get("metadata") or {}),
            provider_id=self.config.provider_id,
            provision_seconds=growth.provision_seconds if growth is not None else None,
            taints=_taints(self.config),
            addresses=self.addresses,
            kubelet_port=self.kubelet_port,
            lower_nodes=self.capacity.nodes(),
            kubelet_version=self.context.lower_version,
            release=_RELEASE,
            capacity=capacity,
            allocatable=allocatable,
            conditions=translate.node_conditions(
                ready=ready,
                reason=reason,
                message=message,
                now=datetime.now(UTC),
                previous=(previous.get("status") or {}).get("conditions") or [],
            ),
        )

    async def _write(self, *, heartbeat: bool) -> None:
        current = self.node
        desired = self._desired(current or {})
        upper = self.context.upper
        if current is None:
            try:
                current = await upper.create(resources.NODES, desired)
                self.context.log.info("node registered", node=self.config.name)
            except AlreadyExists:
                current = await upper.get(resources.NODES, self.config.name)
        uid = str(current["metadata"]["uid"])
        if uid != self.uid and translate.is_real(current):
            raise ConfigError("it is a Node that is not virtual, and it is not changed")
        self.uid = uid
        metadata = translate.node_metadata_patch(current, desired)
        if metadata is not None:
            await self._patch(metadata, subresource=None)
        status = translate.node_status_patch(
            current, desired, heartbeat=heartbeat, not_stored=self._not_stored
        )
        if status is not None:
            written = await self._patch(status, subresource="status")
            self._written_at = asyncio.get_running_loop().time()
            declared = desired["status"].get("declaredFeatures") or []
            is_stored = ((written.get("status") or {}).get("declaredFeatures") or []) == declared
            self._not_stored = None if is_stored else declared
        if not self.registered.is_set():
            self._report_names(current)
        self.registered.set()

    def _report_names(self, node: Mapping[str, Any]) -> None:
        """Write an event, once per start, if the settings change the names that pods search. The domain is not read here."""
        config = self.context.config
        known = Names(renamed=dns.renamed(config.namespaces), servers=config.dns.servers)
        if why := unserved(known, ""):
            text = (
                f"Pods do not find Services of other namespaces by their upper names, because {why}. If they need them: "
                f"'virtual-node lower-cluster dns {self.context.name} --apply', then set dns.servers"
            )
            self.context.recorder.event(node, "Normal", Code.NAMES_DIFFER, text)

    async def _patch(self, patch: dict[str, Any], *, subresource: str | None) -> dict[str, Any]:
        """Send a patch; return the Node after it, or an empty one if it was deleted."""
        try:
            return await self.context.upper.patch(
                resources.NODES,
                self.config.name,
                patch,
                subresource=subresource,
                patch_type=PatchType.STRATEGIC,
            )
        except NotFound:
            self._dirty.set()  # deleted between our read and our write, so register it again
            return {}

    def _changed_by_others(self, new: Object) -> None:
        # The event may come from our own heartbeat, so check only some fields; ``_write`` compares the rest.
        is_excluded = LABEL_EXCLUDE_BALANCERS in new.labels or not self.config.exclude_from_load_balancers
        if (
            not is_excluded
            or not self.config.labels.items() <= new.labels.items()
            or translate.has_pressure(new.status)
        ):
            self.refresh()

    def _deleted(self, _node: Object) -> None:
        self.context.log.warning("node was deleted; registering it again", node=self.config.name)
        self.refresh()


def _taints(node: NodeConfig) -> list[dict[str, str]]:
    if node.taints is None:
        return [{"key": translate.PROVIDER_TAINT, "value": "k8s", "effect": "NoSchedule"}]
    return [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in node.taints]


@dataclass(eq=False, repr=False)
class FollowedCapacity:
    """A virtual node's capacity, which handlers on the informers keep current.

    Every change of a lower node, of an unmanaged pod, or of an own pod on a node that does not count, updates its entry and
    calls ``changed``. The sums are written to the upper cluster at most a few times per second.
    """

    config: NodeConfig
    caches: ClusterCaches
    changed: Callable[[], None]
    _closing: set[str] = field(default_factory=set)
    """Lower nodes that have stopped to count, and on which own pods are not searched yet."""

    def __post_init__(self) -> None:
        """Register handlers on the caches."""
        self.sums = Capacity(
            node_selector=self.config.node_selector,
            reserve=self.config.capacity.reserve,
            autoscaling=self.config.autoscaling,
        )
        self.caches.lower_nodes.on_change(self._node_changed, self._node_gone)
        self.caches.foreign_pods.on_change(self._pod_changed, self._pod_gone)
        self.caches.pods.lower.on_change(self._own_changed, self._own_gone)

    async def settle(self) -> None:
        """Search the own pods on the nodes that have stopped to count, all in one pass; call it before the sums are read."""
        pods = self.caches.pods
        if not self._closing or not all(cache.has_synced for cache in (pods.lower, *pods.upper.values())):
            return
        closing, slicer = self._closing, Slicer()
        self._closing = set()
        for pod in pods.lower.store.list():
            # Handlers have seen what has changed since the list.
            if pod.node_name in closing and pods.lower.store.get(pod.key) is pod:
                self._hold(pod)
            await slicer.tick()

    def _hold(self, pod: Object) -> None:
        upper = self.caches.pods.upper_of(pod)
        if upper is None or upper.node_name != self.config.name or is_finished(pod.status):
            self.sums.release(_upper_uid(pod))
        else:
            self.sums.hold(upper.uid, pod.node_name, pod_resources.pod_requests(upper.spec or {}))

    def _node_changed(self, lower: Object) -> None:
        was_closed = lower.name in self.sums.closed_nodes
        self.sums.upsert_node(lower.to_dict())
        if lower.name in self.sums.closed_nodes and not was_closed:
            self._closing.add(lower.name)
        self.changed()

    def _node_gone(self, lower: Object) -> None:
        self.sums.remove_node(lower.name)
        self.changed()

    def _pod_changed(self, pod: Object) -> None:
        spec = pod.spec or {}
        node_name = spec.get("nodeName", "")
        counts = bool(node_name) and not is_finished(pod.status)
        requests = pod_resources.pod_requests(spec) if counts else {}
        self.sums.upsert_pod(pod.uid, node_name, requests, counts=counts)
        self.changed()

    def _pod_gone(self, pod: Object) -> None:
        self.sums.remove_pod(pod.uid)
        self.changed()

    def _own_changed(self, pod: Object) -> None:
        closed = self.sums.closed_nodes
        if closed and pod.node_name in closed:
            self._hold(pod)
            self.changed()

    def _own_gone(self, pod: Object) -> None:
        if self.sums.release(_upper_uid(pod)):
            self.changed()


def _upper_uid(lower: Object) -> str:
    return lower.labels.get(LABEL_UPPER_UID, "")


@dataclass(eq=False, repr=False)
class HealthController:
    """Pings the lower API server, with at most one ping at a time."""

    context: ClusterContext
    changed: Callable[[], None]
    reachable: bool | None = None
    """None until the first answer or timeout."""
    answered_at: float | None = None
    """Loop time of the last answer; None: none yet."""
    error: str = ""
    _version_at: float = -math.inf

    @property
    def served_certificate(self) -> bytes | None:
        """Return the API server's certificate (DER); None: unknown."""
        return self.context.lower.served_certificate

    async def run(self) -> None:
        """Ping until cancelled."""
        settings = self.context.settings
        while True:
            await self._ping(settings.ping_timeout)
            await asyncio.sleep(settings.ping_interval)

    async def _ping(self, timeout: float) -> None:  # noqa: ASYNC109 - passed to the request
        context = self.context
        before = (self.reachable, self.error, context.lower_version)
        try:
            async with asyncio.timeout(timeout):
                await context.lower.ping(timeout=timeout)
                now = asyncio.get_running_loop().time()
                if not self.reachable or now - self._version_at >= _VERSION_SECONDS:
                    # Several API servers are replaced while all pings get an answer.
                    context.lower_version = _version((await context.lower.version()).get("gitVersion")) or ""
                    self._version_at = now
        except (ApiError, ConfigError, TimeoutError) as error:
            # ConfigError: a credential has expired and cannot be renewed.
            self.reachable = False
            self.error = plain(str(error)) or f"no answer within {timeout:g} s"
        else:
            self.reachable = True
            self.answered_at = asyncio.get_running_loop().time()
            self.error = ""
        metrics.CLUSTER_UP.labels(self.context.name).set(self.reachable)
        if (self.reachable, self.error, context.lower_version) != before:
            if self.reachable:
                context.log.info("lower cluster answers", version=context.lower_version)
            else:
                context.log.warning("lower cluster does not answer", error=self.error)
            self.changed()
