"""Limits the status writes that a lower cluster causes in the upper cluster: of each pod, and in all. No IO.

A hostile lower cluster could change the statuses of its pods hundreds of times per second, and each write is a new
revision of the pod in the upper etcd. A write that is not allowed yet is delayed and not dropped: the pod is reconciled
again, and then its latest status is written.

Both limits are token buckets in the form of a due time (generic cell rate algorithm). A pod that has to wait for the
cluster's bucket reserves its place, so that pods with many changes do not delay the others for longer than one turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controller_runtime.util.rate_limiter import Pacer

POD_BURST, POD_QPS = 30, 1.0
"""A pod of ten containers needs about thirty writes to start, if a kubelet reports each container by itself."""
CLUSTER_BURST, CLUSTER_QPS = 50_000, 200.0
"""Writes of 4 KiB. A pod needs about four of them to start and two to finish, so the burst is 12,000 pods at once. In the
ten minutes for which etcd keeps old revisions, a hostile cluster adds at most 700 MB."""
_UNIT = 4096


@dataclass(slots=True)
class PodTurn:
    """The state of one pod."""

    due: float = 0.0
    """Loop time up to which the pod's writes are used."""
    reserved: float | None = None
    """Loop time of the place in the cluster's bucket; None: none is reserved."""
    cost: float = 0.0
    """What the reserved place costs."""


@dataclass(eq=False)
class StatusRate:
    """The bucket of one lower cluster."""

    _cluster: Pacer = field(default_factory=lambda: Pacer(CLUSTER_QPS, CLUSTER_BURST))

    def wait(self, pod: PodTurn, *, size: int, now: float) -> float:
        """Return for how many seconds a write has to wait; 0: not at all, and it counts as written.

        Args:
            pod: the pod's state, which is changed.
            size: bytes of the request. A large one costs as much as several.
            now: loop time.
        """
        if (ready := pod.due - (POD_BURST - 1) / POD_QPS) > now:
            return ready - now
        cost = max(1.0, size / _UNIT)
        if pod.reserved is None:
            pod.reserved = self._cluster.take(now, cost)
            pod.cost = cost
        elif cost > pod.cost:  # the status has changed since
            self._cluster.take(now, cost - pod.cost)
            pod.cost = cost
        if pod.reserved > now:
            return pod.reserved - now
        pod.reserved = None
        pod.due = max(pod.due, now) + 1 / POD_QPS
        return 0.0
