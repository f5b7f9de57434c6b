"""A Deployment's ReplicaSet on a fake cluster: its controller, its pods, and the fewest pods that were ever Ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from controller_runtime.apimachinery import timestamps
from tests.fakes.apiserver.storage import Commit
from tests.unit.descheduler.bodies import now, pod
from tests.unit.descheduler.cluster import Cluster

HASH = "h1"
_OWNER = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": f"web-{HASH}",
    "uid": "rs",
    "controller": True,
}
_LABELS = {"app": "web", "pod-template-hash": HASH}
_READY = {"type": "Ready", "status": "True"}


class ReplicaSets:
    """The controller of one ReplicaSet, as in kube-controller-manager: it releases, adopts, creates and deletes.

    Attributes:
        ready_after: seconds until a new pod is Ready; None: never.
        is_refused: whether schedulers refuse new pods.
        fewest: the fewest Ready pods of the application since all were Ready.
    """

    def __init__(
        self, cluster: Cluster, *, replicas: int, on: str = "a", ready_after: float | None = 2.0
    ) -> None:
        self.cluster = cluster
        self.ready_after = ready_after
        self.is_refused = False
        self.fewest = replicas
        self._created = 0
        spec: dict[str, Any] = {"replicas": replicas, "strategy": {"rollingUpdate": {"maxSurge": "50%"}}}
        metadata = {"name": "web", "namespace": "default", "uid": "deployment"}
        cluster.put("deployments", {"metadata": metadata, "spec": spec})
        owner = {"kind": "Deployment", "name": "web", "uid": "deployment", "controller": True}
        spec = {"replicas": replicas, "selector": {"matchLabels": _LABELS}}
        own = {"name": _OWNER["name"], "namespace": "default", "uid": "rs", "ownerReferences": [owner]}
        cluster.put("replicasets", {"metadata": own, "spec": spec})
        for _ in range(replicas):
            self._create(on, is_ready=True)
        cluster.observers.append(self._count)

    @property
    def desired(self) -> int:
        """Return ``spec.replicas``."""
        return int(self.cluster.get("replicasets", f"default/web-{HASH}")["spec"]["replicas"])

    def active(self) -> list[dict[str, Any]]:
        """Return the application's pods that are not being deleted."""
        return [found for found in self.cluster.all("pods") if "deletionTimestamp" not in found["metadata"]]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the controller in the block."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            self._claim()
            self._scale()

    def _claim(self) -> None:
        for found in self.active():
            metadata = found["metadata"]
            matches = metadata["labels"].get("pod-template-hash") == HASH
            if bool(metadata.get("ownerReferences")) != matches:
                self.cluster.put(
                    "pods", {**found, "metadata": {**metadata, "ownerReferences": [_OWNER] * matches}}
                )

    def _scale(self) -> None:
        owned = [found for found in self.active() if found["metadata"].get("ownerReferences")]
        for _ in range(self.desired - len(owned)):
            self._create("b", is_ready=False)
        for found in sorted(owned, key=is_ready)[: max(0, len(owned) - self.desired)]:
            self.cluster.delete("pods", f"default/{found['metadata']['name']}")

    def _create(self, on: str, *, is_ready: bool) -> None:
        self._created += 1
        name = f"web-{self._created}"
        refused_at = now() if self.is_refused else None
        phase = "Pending" if self.is_refused else "Running"
        body = pod(name, on=on, phase=phase, refused_at=refused_at, labels=_LABELS, ownerReferences=[_OWNER])
        if is_ready:
            body["status"]["conditions"].append(_READY)
        self.cluster.put("pods", {**body, "metadata": {**body["metadata"], "creationTimestamp": _moment()}})
        if not is_ready and self.ready_after is not None:
            asyncio.get_running_loop().call_later(self.ready_after, self._start, f"default/{name}")

    def _start(self, key: str) -> None:
        found = self.cluster.find("pods", key)
        if found is not None:
            conditions = [*found["status"]["conditions"], _READY]
            self.cluster.put("pods", {**found, "status": {**found["status"], "conditions": conditions}})

    def _count(self, _commit: Commit) -> None:
        self.fewest = min(self.fewest, sum(map(is_ready, self.active())))


def is_ready(found: dict[str, Any]) -> bool:
    """Report whether a pod is Ready."""
    return _READY in found["status"]["conditions"]


def _moment() -> str:
    return timestamps.rfc3339(now())
