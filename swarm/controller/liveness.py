"""Finds pods that provably run no job any more.

The absence of a pod object proves nothing: a forced deletion, or the garbage collection of pods on deleted nodes, removes
the object while its containers keep running. Each of these is proof:

* a final status: finished, and no container running. A kubelet writes it before a pod is deleted; a virtual node writes
  it once the pod is gone in the lower cluster;
* the object is absent, and its node has since been ready, with a renewed Lease, for ``settle`` seconds. Kubelets and
  virtual nodes stop containers of pods without an object as soon as they reach the API server;
* the object is absent and was on no node;
* a user or program confirms it: by taint ``node.kubernetes.io/out-of-service`` on the node, or by annotation
  ``swarm.virtual-node.io/gone`` with the pod's UID on the Swarm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find
from controller_runtime.objects import Object
from controller_runtime.util.buffers import Recent
from swarm.handover import Holder
from swarm.planning import Pod

ANNOTATION_GONE = "swarm.virtual-node.io/gone"
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_MEMORY = 10_000
"""Number of UIDs of finished pods that are remembered."""


@dataclass(eq=False)
class Liveness:
    """Collects proofs that pods run no job. Reads from the API server before it treats a pod object as absent."""

    client: Client
    nodes: Informer
    leases: Informer
    """Informer of namespace ``kube-node-lease``."""
    settle: float
    """Seconds for which a node must be healthy after a pod's object disappeared."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._ended: Recent[str, bool] = Recent(_MEMORY)
        self._absent: dict[str, float] = {}
        """UID → time since which the object is known to be absent and its node healthy."""
        self._renewed: dict[str, tuple[str, float]] = {}
        """Node → ``renewTime`` of its Lease, and when this value was first seen."""
        self.leases.on_change(self._heard)

    def note_end(self, uid: str) -> None:
        """Remember that a pod's last status was final."""
        self._ended[uid] = True

    async def gone(
        self, holders: Iterable[Holder], pods: Collection[Pod], *, namespace: str, confirmed: Collection[str]
    ) -> tuple[set[str], set[str]]:
        """Return UIDs of holders that run no job any more, and UIDs of holders that are absent without proof."""
        present = {pod.uid: pod for pod in pods}
        gone: set[str] = set()
        unknown: set[str] = set()
        for holder in holders:
            pod = present.get(holder.uid)
            if pod is not None:
                self._absent.pop(holder.uid, None)
                if pod.finished:
                    gone.add(holder.uid)
            elif holder.uid in self._ended or holder.uid in confirmed:
                gone.add(holder.uid)
            elif await self._is_absent(holder, namespace):
                (gone if self._has_settled(holder) else unknown).add(holder.uid)
        return gone, unknown

    async def _is_absent(self, holder: Holder, namespace: str) -> bool:
        if holder.uid in self._absent:
            return True
        pod = await find(self.client, resources.PODS, holder.pod, namespace=namespace)
        return pod is None or bool(pod["metadata"]["uid"] != holder.uid)

    def _has_settled(self, holder: Holder) -> bool:
        now = self.clock()
        if not holder.node:
            return True
        node = self.nodes.store.get(holder.node)
        taints = ((node.spec or {}).get("taints") or ()) if node is not None else ()
        if any(taint.get("key") == _OUT_OF_SERVICE for taint in taints):
            return True
        since = self._absent.setdefault(holder.uid, now)
        if node is None or not self._is_healthy(node, now):
            self._absent[holder.uid] = now
            return False
        return now - since >= self.settle

    def _is_healthy(self, node: Object, now: float) -> bool:
        _, seen = self._renewed.get(node.name, ("", float("-inf")))
        # Kubelets renew every 10 s; one missed renewal is tolerated.
        return is_true(node.status, "Ready") and now - seen < 25.0

    def _heard(self, lease: Object) -> None:
        renewed = (lease.spec or {}).get("renewTime") or ""
        known, _ = self._renewed.get(lease.name, ("", 0.0))
        if renewed != known:
            self._renewed[lease.name] = renewed, self.clock()
