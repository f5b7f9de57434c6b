"""The ``kubelet_*`` series of one virtual node, which dashboards and alerts for kubelets read.

A kubelet's series that describe a container runtime, its cgroups or its PLEG are left out, because a virtual node has
none. The counts follow the statuses of the upper pods, so a scrape does not visit the pods.

Source: pkg/kubelet/metrics and pkg/kubelet/metrics/collectors/volume_stats.go of Kubernetes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import prometheus_client
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from clusterset.model.pod.conditions import claim_names
from controller_runtime.objects import Object

_START_BUCKETS = (
    0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
_STATUSES = {
    "containerStatuses": "container",
    "initContainerStatuses": "init_container",
    "ephemeralContainerStatuses": "ephemeral_container",
}
"""A kubelet's label ``container_type``, by field of a pod's status."""
_MOST_ENDINGS, _LONGEST_REASON, _OTHER = 500, 64, "other"
"""Limits of the series of terminated containers, because a lower cluster may report any exit code and reason."""
_CLAIM = ("namespace", "persistentvolumeclaim")


class _ClaimName(msgspec.Struct):
    name: str
    namespace: str


class _Volume(msgspec.Struct, rename="camel"):
    pvc_ref: _ClaimName | None = None
    capacity_bytes: float | None = None
    available_bytes: float | None = None
    used_bytes: float | None = None
    inodes: float | None = None
    inodes_free: float | None = None
    inodes_used: float | None = None


class _Pod(msgspec.Struct):
    volume: list[_Volume] = []


class VolumeStats(msgspec.Struct):
    """The volumes in a Summary of the virtual node."""

    pods: list[_Pod] = []


class _Seen(NamedTuple):
    """The values of an upper pod that the series count."""

    since: float
    """Loop time at which the pod was first seen; negative: it ran already, or its start is recorded."""
    is_running: bool
    running: int
    exited: int
    has_claims: bool
    ended: Mapping[tuple[str, str], int]
    """How often containers have terminated, by type and name; those that have not are absent."""


class NodeSeries:
    """Counts the pods of one virtual node.

    Args:
        node_name: The virtual node.
        certificate_expires: Returns the Unix time at which the serving certificate expires; None: there is none.
        work: Measures the steps for its pods.
    """

    def __init__(
        self, node_name: str, *, certificate_expires: Callable[[], float | None], work: Histogram
    ) -> None:
        self._node_name = node_name
        self._certificate_expires = certificate_expires
        self._work = work
        self._pods: dict[str, _Seen] = {}
        self._running_pods = self._running = self._exited = self._with_claims = 0
        self._renewal_errors = 0
        self._endings: Counter[tuple[str, str, str]] = Counter()
        """Terminations by type of the container, exit code and reason."""
        self._starts = Histogram(
            "kubelet_pod_start_duration_seconds",
            "Seconds from seeing a pod for the first time until it is running.",
            buckets=_START_BUCKETS,
            registry=None,
        )

    @property
    def has_claims(self) -> bool:
        """Report whether a pod of the virtual node has a volume with a claim."""
        return self._with_claims > 0

    def saw(self, pod: Object) -> None:
        """Record the state of an upper pod that is bound to the virtual node."""
        before = self._pods.get(pod.uid)
        status = pod.status or {}
        states = [
            (kind, container, container.get("state") or {})
            for field, kind in _STATUSES.items()
            for container in status.get(field) or ()
        ]
        is_running = status.get("phase") == "Running"
        now = asyncio.get_running_loop().time()
        since = (
            before.since if before is not None else now if status.get("phase", "Pending") == "Pending" else -1
        )
        if is_running and since >= 0:
            self._starts.observe(now - since)
            since = -1
        has_claims = before.has_claims if before is not None else _has_claims(pod)
        self.gone(pod)
        seen = _Seen(
            since,
            is_running,
            sum("running" in state for _, _, state in states),
            sum("terminated" in state for _, _, state in states),
            has_claims,
            {
                (kind, container.get("name") or ""): ends
                for kind, container, _ in states
                if (ends := _ends(container))
            },
        )
        if before is not None:  # otherwise the containers may have ended before this process started
            for kind, container, _ in states:
                what = kind, container.get("name") or ""
                if (ends := seen.ended.get(what, 0)) > (known := before.ended.get(what, 0)):
                    self._note_endings(kind, container, ends - known)
        self._pods[pod.uid] = seen
        self._add(seen, 1)

    def gone(self, pod: Object) -> None:
        """Forget a pod."""
        if (seen := self._pods.pop(pod.uid, None)) is not None:
            self._add(seen, -1)

    def renewal_failed(self) -> None:
        """Count a serving certificate that was not renewed."""
        self._renewal_errors += 1

    def page(self, volumes: VolumeStats) -> CollectorRegistry:
        """Return the metrics of the process and of this virtual node."""
        return _Page([*self._families(), *_of_volumes(volumes)])

    def _add(self, seen: _Seen, sign: int) -> None:
        self._running_pods += sign * seen.is_running
        self._running += sign * seen.running
        self._exited += sign * seen.exited
        self._with_claims += sign * seen.has_claims

    def _note_endings(self, kind: str, container: Mapping[str, Any], number: int) -> None:
        """Count terminations of a container by the cause of the last one, which is all that its status has."""
        states = (container.get("state") or {}, container.get("lastState") or {})
        terminated = next((state["terminated"] or {} for state in states if "terminated" in state), {})
        reason = str(terminated.get("reason") or "")[:_LONGEST_REASON]
        ending = kind, str(terminated.get("exitCode", 0))[:_LONGEST_REASON], reason
        if ending not in self._endings and len(self._endings) >= _MOST_ENDINGS:
            ending = kind, _OTHER, _OTHER
        self._endings[ending] += number

    def _families(self) -> Iterator[Metric]:
        node = GaugeMetricFamily(
            "kubelet_node_name", "The virtual node's name. The count is always 1.", labels=["node"]
        )
        node.add_metric([self._node_name], 1)
        containers = GaugeMetricFamily(
            "kubelet_running_containers", "Number of containers by state.", labels=["container_state"]
        )
        containers.add_metric(["running"], self._running)
        containers.add_metric(["exited"], self._exited)
        yield node
        yield GaugeMetricFamily("kubelet_running_pods", "Number of pods that run.", self._running_pods)
        yield containers
        ended = CounterMetricFamily(
            "kubelet_terminated_containers_total",
            "Cumulative number of container terminations.",
            labels=["container_type", "exit_code", "reason"],
        )
        for ending, number in self._endings.items():
            ended.add_metric(ending, number)
        yield ended
        yield from self._starts.collect()
        yield from self._work.collect()
        if (expires := self._certificate_expires()) is not None:
            text = "Seconds until the serving certificate expires; negative: it has expired."
            yield GaugeMetricFamily(
                "kubelet_certificate_manager_server_ttl_seconds", text, expires - time.time()
            )
        # A counter of prometheus_client would have the suffix ``_total``, which a kubelet's has not.
        errors = Metric(
            "kubelet_server_expiration_renew_errors", "Serving certificates that were not renewed.", "unknown"
        )
        errors.add_sample(errors.name, {}, self._renewal_errors)
        yield errors


def _ends(container: Mapping[str, Any]) -> int:
    """Return how often a container has terminated: before each restart, and now."""
    return int(container.get("restartCount") or 0) + ("terminated" in (container.get("state") or {}))


def _has_claims(pod: Object) -> bool:
    return bool(claim_names({"metadata": {"name": pod.name}, "spec": pod.spec or {}}))


_OF_VOLUMES = {
    "capacity_bytes": "Capacity in bytes of the volume.",
    "available_bytes": "Number of available bytes in the volume.",
    "used_bytes": "Number of used bytes in the volume.",
    "inodes": "Maximum number of inodes in the volume.",
    "inodes_free": "Number of free inodes in the volume.",
    "inodes_used": "Number of used inodes in the volume.",
}


def _of_volumes(stats: VolumeStats) -> Iterator[Metric]:
    # Pods that share a claim report the same volume.
    volumes = {
        (volume.pvc_ref.namespace, volume.pvc_ref.name): volume
        for pod in stats.pods
        for volume in pod.volume
        if volume.pvc_ref is not None
    }
    for field, text in _OF_VOLUMES.items():
        family = GaugeMetricFamily(f"kubelet_volume_stats_{field}", text, labels=_CLAIM)
        for claim, volume in volumes.items():
            if (value := getattr(volume, field)) is not None:
                family.add_metric(claim, value)
        if family.samples:
            yield family


class _Page(CollectorRegistry):
    """The metrics of the process, followed by other families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from prometheus_client.REGISTRY.collect()
        yield from self._families
