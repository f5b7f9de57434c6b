"""Writes deletion costs of pods that are divided over lower clusters (``view/deletion_costs.py``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from clusterset.model import names
from controller_runtime import log, resources
from controller_runtime.client.client import Client, PatchType
from controller_runtime.errors import Conflict, Forbidden, Invalid, NotFound
from controller_runtime.objects import Object
from controller_runtime.util.backoff import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from descheduler.view import deletion_costs, pods
from descheduler.view.cluster import ClusterView

_SETTLE = 1.0
"""Seconds for which changes of a ReplicaSet's pods are collected, so that costs are computed once per burst."""
_RETRY = 1.0
_WORKERS = 2
_BATCH = 100
"""Number of a ReplicaSet's pods that are written before the next ReplicaSet's, so that one user cannot delay others."""
_ASPECTS: tuple[Callable[[Object], object], ...] = (
    lambda pod: (pod.spec or {}).get("nodeName"),
    pods.is_active,
    lambda pod: pod.annotations,
    lambda pod: pod.metadata.owner_references,
)


@dataclass(eq=False)
class DeletionCosts:
    """Keeps the division of pods over lower clusters while their ReplicaSet scales down."""

    client: Client
    view: ClusterView

    def __post_init__(self) -> None:
        self._log = log.get_logger(component="deletion-costs")
        self._controller: Controller[str] = Controller(
            "deletion-costs",
            self._reconcile,
            workers=_WORKERS,
            backoff=ExponentialBackoff(0.5, 60.0),
            flow=lambda key: key.partition("/")[0],
        )

    async def run(self) -> None:
        """Write deletion costs when pods change, until cancelled."""
        with self.view.pods.add_handler(
            on_add=lambda pod, _initial: self._changed(pod), on_update=self._updated, on_delete=self._changed
        ):
            await self._controller.run()

    def _updated(self, old: Object, new: Object) -> None:
        # Most updates are of the status, which matters only when a pod has finished.
        if any(aspect(old) != aspect(new) for aspect in _ASPECTS):
            self._changed(old)
            self._changed(new)

    def _changed(self, pod: Object) -> None:
        for key in pods.by_division(pod):
            self._controller.queue.add_after(key, _SETTLE)

    async def _reconcile(self, key: str) -> Result | None:
        # Only virtual nodes: users can bind pods to any node name, so the number of clusters would be unlimited.
        found = {
            pod.name: pod
            for pod in self.view.pods.store.by_index(pods.INDEX_DIVISION, key)
            if self.view.is_on_virtual_node(pod)
        }
        costs = deletion_costs.new_costs(list(found.values()), self.view.lower_cluster)
        is_complete = len(costs) <= _BATCH
        for name, cost in itertools.islice(costs.items(), _BATCH):
            try:
                is_complete &= await self._write(found[name], cost)
            except (Forbidden, Invalid) as error:
                # Stop: other pods would be refused for the same reason, a missing right or annotations of maximum size.
                # Otherwise, with more pods than a batch, the requests would be repeated every second.
                self._log.warning("deletion costs not written", replica_set=key, error=str(error))
                return None
        return None if is_complete else Result(requeue_after=_RETRY)

    async def _write(self, pod: Object, cost: int) -> bool:
        """Write a pod's deletion cost; return False if the pod has changed.

        Raises:
            ApiError: the request failed.
        """
        annotations = dict.fromkeys(
            (names.ANNOTATION_DELETION_COST, names.ANNOTATION_DELETION_COST_WRITTEN), str(cost)
        )
        metadata = {"uid": pod.uid, "resourceVersion": pod.resource_version, "annotations": annotations}
        try:
            await self.client.patch(
                resources.PODS,
                pod.name,
                {"metadata": metadata},
                namespace=pod.namespace,
                patch_type=PatchType.MERGE,
            )
        except (Conflict, NotFound):
            return False
        return True
