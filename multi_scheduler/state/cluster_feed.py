"""Keeps the index of a lower cluster current: informers of its nodes, pods and volumes, reduced to the needed fields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Gauge

from clusterset.model import names
from clusterset.model.declared_features import declared
from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import condition, is_finished
from controller_runtime import log, resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.matching import REQUIRED
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, CacheFull, ConfigError, Forbidden, Unauthorized
from controller_runtime.objects import Object
from controller_runtime.process import lifecycle
from controller_runtime.util import event_loop
from multi_scheduler.state.admission import Admission
from multi_scheduler.state.cluster import limits
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Placed, host_ports, required_terms

_UNKNOWN = Gauge(
    "virtual_node_extender_unknown_rules",
    "1 while quotas, limit ranges, priority classes or namespaces of a lower cluster cannot be read.",
    ["cluster", "resource"],
)
_REFUSALS = (401, 403, 404)
_LOOK_RULES = 5.0
_COUNTED = 1.0
"""Seconds until the quota controller no longer counts a deleted or finished pod."""


class AdmissionFeed:
    """Informers of one lower cluster's admission rules."""

    def __init__(self, client: Client, admission: Admission) -> None:
        """Create the informers and register handlers; the caller must run both ``run`` and the ``informers``."""
        self._cluster = client.cluster
        self._admission = admission
        quotas = Informer(client, resources.RESOURCE_QUOTAS, transform=Object.with_only)
        quotas.on_change(
            lambda quota: admission.upsert_quota(quota.to_dict()),
            lambda quota: admission.remove_quota(quota.namespace, quota.name),
        )
        ranges = Informer(client, resources.LIMIT_RANGES, transform=Object.with_only)
        ranges.on_change(
            lambda one: admission.upsert_range(one.to_dict()),
            lambda one: admission.remove_range(one.namespace, one.name),
        )
        classes = Informer(
            client,
            resources.PRIORITY_CLASSES,
            transform=lambda one: one.without("description", "preemptionPolicy").with_only(),
        )
        classes.on_change(
            lambda one: admission.upsert_class(one.to_dict()), lambda one: admission.remove_class(one.name)
        )
        namespaces = Informer(
            client,
            resources.NAMESPACES,
            transform=lambda one: one.with_fields(spec={}, status={}).with_only(
                labels=lambda _key: True, annotations=names.is_reserved
            ),
        )
        namespaces.on_change(
            lambda one: admission.upsert_namespace(one.to_dict()),
            lambda one: admission.remove_namespace(one.name),
        )
        self.namespaces = namespaces
        self.informers = (quotas, ranges, classes, namespaces)
        self._is_settled = False
        self._log = log.get_logger(component="extender")

    async def run(self) -> None:
        """Report unreadable rules until cancelled."""
        self._is_settled = False  # the informers may have been cleared since the last run
        while True:
            await asyncio.sleep(_LOOK_RULES)
            self.look()

    def left(self, namespace: str) -> None:
        """Record that a lower pod was deleted or finished."""
        if self._admission.has_quotas(namespace):
            self._admission.left(namespace, counted_by=event_loop.now() + _COUNTED)

    @property
    def is_settled(self) -> bool:
        """Report whether each informer has synced or failed; a missing right counts as failed, so it delays nothing."""
        if not self._is_settled:  # cached, because it is read for every pod and virtual node
            self._is_settled = all(
                informer.has_synced or informer.last_error is not None for informer in self.informers
            )
        return self._is_settled

    def look(self) -> None:
        """Apply the rules that can be read, and ignore the others; log when this changes."""
        for informer in self.informers:
            plural, error = informer.resource.plural, informer.last_error
            is_refused = isinstance(error, ApiError) and error.code in _REFUSALS
            _UNKNOWN.labels(self._cluster, plural).set(int(is_refused))
            if is_refused and plural not in self._admission.unknown:
                self._admission.unknown.add(plural)
                self._log.warning(
                    "admission rules of the lower cluster cannot be read, so pods that they refuse may be sent there. "
                    "`virtual-node lower-cluster register` grants the right",
                    cluster=self._cluster,
                    resource=plural,
                    error=str(error),
                )
            elif error is None and plural in self._admission.unknown:
                self._admission.unknown.discard(plural)
                self._log.info(
                    "admission rules of the lower cluster can be read again",
                    cluster=self._cluster,
                    resource=plural,
                )


_log = log.get_logger(component="fit")
_LIMITED = ("cpu", "memory")
_BOUND = "Bound"
_QUIET = 75.0
"""Seconds without an event after which a watch no longer proves that the cluster responds. Bookmarks come every minute."""
_LOOK = 10.0
_PING = 5.0
_TOO_LARGE_PAUSE = 300.0
"""Seconds until a cluster that exceeds its limit of memory is listed again."""


class _ReconnectedError(Exception):
    """Stops the informers, because the client's connection was replaced."""


@dataclass(frozen=True, slots=True)
class LowerPod:
    """A lower pod that names an upper pod in its label. Only the pod with the expected name is the upper pod's."""

    uid: str
    node: str
    """The lower node; empty: none yet."""
    is_finished: bool = False


Changed = Callable[[str, str, LowerPod | None], None]
"""Called when a lower pod changes: UID of the upper pod in its label, its own namespace/name, and the pod; None: deleted."""


@dataclass(eq=False)
class Feed:
    """Informers of one lower cluster."""

    client: Client
    index: ClusterIndex
    admission: Admission
    changed: Changed = lambda _uid, _key, _lower: None
    _lower: dict[str, dict[str, LowerPod]] = field(default_factory=dict)
    """By UID of the upper pod and namespace/name. A lower user may write any UID into the label of an own pod."""
    _unreachable: str = ""
    """Why the cluster's data is unreliable: the error of the last check; empty: it is reliable."""
    _too_large: str = ""
    """Why the cluster is not followed; empty: it is."""
    _volumes: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Bound volumes by name: key of the claim, and required node affinity."""
    _by_claim: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _reconnected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client's connection was replaced."""

    def __post_init__(self) -> None:
        """Create the informers and register handlers; ``run`` starts them."""
        client, index = self.client, self.index
        self._nodes = Informer(client, resources.NODES, transform=shrink_node)
        self._pods = Informer(client, resources.PODS, transform=shrink_pod)
        self._volume_informer = Informer(client, resources.PERSISTENT_VOLUMES, transform=shrink_volume)
        self._rules = AdmissionFeed(client, self.admission)
        self.informers = (self._nodes, self._pods, self._volume_informer, *self._rules.informers)
        self._nodes.on_change(
            lambda node: index.upsert_node(node.to_dict()), lambda node: index.remove_node(node.name)
        )
        self._rules.namespaces.on_change(
            lambda one: index.upsert_namespace(one.name, one.labels),
            lambda one: index.remove_namespace(one.name),
        )
        self._pods.add_handler(
            on_add=lambda pod, _initial: self._pod(pod),
            on_update=self._pod_changed,
            on_delete=self._pod_gone,
        )
        self._volume_informer.on_change(self._volume, self._forget_volume)

    def follow_nodes(self, changed: Callable[[str, Mapping[str, str]], None]) -> None:
        """Call a function with name and annotations of each added or changed node, and without annotations if it is deleted."""
        self._nodes.on_change(
            lambda node: changed(node.name, node.annotations), lambda node: changed(node.name, {})
        )

    def annotations(self, node: str) -> Mapping[str, str]:
        """Return the annotations of a lower node."""
        found = self._nodes.store.get(node)
        return found.annotations if found is not None else {}

    async def run(self) -> None:
        """Follow the cluster until cancelled.

        When it exceeds its limit of memory, its state is discarded for five minutes. When its client has another
        connection, it is read again.
        """
        self.client.on_reconnect(self._reconnected.set)
        while True:
            self._reconnected.clear()
            try:
                async with asyncio.TaskGroup() as group:
                    for informer in self.informers:
                        group.create_task(informer.run())
                    group.create_task(self._rules.run())
                    group.create_task(self._check_cluster())
                    group.create_task(self._end_when_reconnected())
            except* CacheFull as errors:
                self._too_large = str(next(lifecycle.leaves(errors)))
                _log.error(
                    "lower cluster is not followed", cluster=self.client.cluster, error=self._too_large
                )
            except* _ReconnectedError:
                _log.info("lower cluster is read again", cluster=self.client.cluster)
            for informer in self.informers:
                await informer.clear()
            if self._too_large:
                await event_loop.wait(self._reconnected, _TOO_LARGE_PAUSE)
                self._too_large = ""

    async def _end_when_reconnected(self) -> None:
        await self._reconnected.wait()
        raise _ReconnectedError

    @property
    def has_synced(self) -> bool:
        """Report whether nodes and pods are read, and admission rules are read or refused. Volumes are not waited for."""
        return self._nodes.has_synced and self._pods.has_synced and self._rules.is_settled

    def trouble(self) -> str:
        """Return why the cluster's data is unreliable, for users; empty: it is reliable."""
        if self._too_large:
            return self._too_large
        if not self.has_synced:
            error = self._last_error()
            return str(error) if error else "its nodes and pods are being listed"
        return f"no events for {self._silence():.0f} s: {self._unreachable}" if self._unreachable else ""

    async def _check_cluster(self) -> None:
        """Send requests periodically while the watches do not prove that the cluster responds.

        A quiet or late watch alone does not mean that the cluster is unreachable.
        """
        while True:
            await asyncio.sleep(_LOOK)
            error = self._last_error()
            if error is None and self._silence() < _QUIET:
                self._unreachable = ""
            elif isinstance(error, (Forbidden, Unauthorized)):
                self._unreachable = str(error)
            elif isinstance(error, ApiError) and error.code and self._silence() >= _QUIET:
                # The cluster responds, but has refused the watches for longer than a restart takes.
                self._unreachable = str(error)
            else:
                self._unreachable = await self._ping()

    async def _ping(self) -> str:
        try:
            async with asyncio.timeout(_PING):
                await self.client.ping(timeout=_PING)
        except (ApiError, ConfigError, TimeoutError) as error:
            # ConfigError: a credential expired and the renewal failed.
            return str(error) or f"no answer within {_PING:g} s"
        return ""

    def _silence(self) -> float:
        return max(self._nodes.age, self._pods.age)

    def _last_error(self) -> Exception | None:
        return self._nodes.last_error or self._pods.last_error

    def volume_affinity(self, namespace: str, claim: str) -> Mapping[str, Any] | None:
        """Return ``nodeAffinity.required`` of the lower volume that is bound to a lower claim; None: no such volume."""
        return self._by_claim.get(f"{namespace}/{claim}")

    def lower_pod(self, uid: str, key: str) -> LowerPod | None:
        """Return the lower pod of an upper pod; None: there is none.

        Args:
            uid: UID of the upper pod.
            key: namespace/name that its lower pod has.
        """
        return self._lower.get(uid, {}).get(key)

    def _pod_changed(self, old: Object, new: Object) -> None:
        is_same = old.has_spec_equal(new) and old.has_status_equal(new) and old.labels == new.labels
        if not is_same or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp:
            self._pod(new)

    def _pod(self, pod: Object) -> None:
        spec, status = pod.spec or {}, pod.status or {}
        node, finished = spec.get("nodeName", ""), is_finished(status)
        if not node or finished:
            had_room = self._remove(pod)
            if had_room and finished:
                self._rules.left(pod.namespace)
        else:
            placed = Placed(
                node=node,
                requests=spec["requests"],
                ports=tuple(
                    (address, protocol, number) for address, protocol, number in spec.get("ports") or ()
                ),
                namespace=pod.namespace,
                labels=pod.labels,
                anti_affinity=required_terms(spec, "podAntiAffinity", pod.namespace),
                is_ending=pod.metadata.deletion_timestamp is not None,
                limits=spec.get("limits") or {},
                since=status.get("since", 0.0),
            )
            self._remove(pod)
            self.index.place(pod.uid, placed)
            self.index.touched.add(node)
        self._note(pod, LowerPod(pod.uid, node, finished))

    def _pod_gone(self, pod: Object) -> None:
        self._remove(pod)
        self._rules.left(pod.namespace)
        self._note(pod, None)

    def _remove(self, pod: Object) -> bool:
        placed = self.index.remove(pod.uid)
        if placed is not None:
            self.index.touched.add(placed.node)
        return placed is not None

    def _note(self, pod: Object, lower: LowerPod | None) -> None:
        upper = pod.labels.get(names.LABEL_UPPER_UID, "")
        if not upper:
            return
        key = f"{pod.namespace}/{pod.name}"
        known = self._lower.setdefault(upper, {})
        if lower is not None:
            known[key] = lower
        elif key in known and known[key].uid == pod.uid:
            del known[key]
        if not known:
            del self._lower[upper]
        self.changed(upper, key, lower)

    def _volume(self, volume: Object) -> None:
        self._forget_volume(volume)
        spec, status = volume.spec or {}, volume.status or {}
        claim = spec.get("claimRef") or {}
        required = (spec.get("nodeAffinity") or {}).get("required")
        # Only bound volumes are stored, because a released volume still refers to its former claim.
        if claim and required and status.get("phase") == _BOUND:
            key = f"{claim.get('namespace')}/{claim.get('name')}"
            self._volumes[volume.name] = (key, required)
            self._by_claim[key] = required

    def _forget_volume(self, volume: Object) -> None:
        key, required = self._volumes.pop(volume.name, ("", None))
        if self._by_claim.get(key) is required:
            self._by_claim.pop(key, None)


def shrink_node(node: Object) -> Object:
    """Reduce a lower node's spec and status to taints, cordon, allocatable resources and declared features."""
    spec, status = node.spec or {}, node.status or {}
    kept = {key: spec[key] for key in ("taints", "unschedulable") if key in spec}
    offered: dict[str, Any] = {"allocatable": status.get("allocatable") or {}}
    if features := declared({"status": status}):
        offered["declaredFeatures"] = sorted(features)
    return node.with_fields(spec=kept, status=offered)


def shrink_volume(volume: Object) -> Object:
    """Reduce a lower volume to its claim, required node affinity and phase."""
    spec, status = volume.spec or {}, volume.status or {}
    claim = spec.get("claimRef") or {}
    required = (spec.get("nodeAffinity") or {}).get("required")
    kept = {
        "claimRef": {key: claim[key] for key in ("namespace", "name") if key in claim},
        "nodeAffinity": {"required": required},
    }
    return volume.with_fields(spec=kept, status={"phase": status.get("phase", "")}).with_only()


def shrink_pod(pod: Object) -> Object:
    """Reduce a lower pod's spec and status to node, requests, limits, ports, anti-affinity, phase and binding time.

    Labels and anti-affinity have limits, because lower users choose both.
    """
    spec, status = pod.spec or {}, pod.status or {}
    requests = {**pod_resources.placed_requests(spec, status), "pods": 1}
    wanted = [(name, count) for name, count in requests.items() if count > 0]
    kept: dict[str, Any] = {"requests": dict(wanted[-limits.MOST_RESOURCES :])}
    if isinstance(node := spec.get("nodeName"), str) and node:
        kept["nodeName"] = node
    if ports := host_ports(spec):
        kept["ports"] = ports[: limits.MOST_PORTS]
    anti = (spec.get("affinity") or {}).get("podAntiAffinity") or {}
    if terms := limits.terms(anti.get(REQUIRED) or ()):
        kept["affinity"] = {"podAntiAffinity": {REQUIRED: terms}}
    most = pod_resources.pod_limits(spec)
    if more := {name: most[name] for name in _LIMITED if most.get(name, 0) > requests.get(name, 0)}:
        kept["limits"] = more
    shrunk = pod.with_fields(
        spec=kept, status={"phase": status.get("phase", ""), "since": _bound_at(pod, status)}
    )
    shrunk = shrunk.without_metadata("annotations", "finalizers", "raw_owner_references")
    return shrunk.with_labels(limits.labels(pod.labels))


def _bound_at(pod: Object, status: Mapping[str, Any]) -> float:
    """Return when a pod was bound, in seconds since the epoch; static pods have only their creation time."""
    scheduled = condition(status, "PodScheduled")
    is_bound = scheduled.get("status") == "True"
    text = scheduled.get("lastTransitionTime") if is_bound else pod.metadata.creation_timestamp
    try:
        return timestamps.parse(text or "").timestamp()
    except ValueError:
        return 0.0
