"""Deletion costs that keep a ReplicaSet's division over lower clusters when the ReplicaSet scales down.

A ReplicaSet deletes pods with a lower cost first. Annotation ``pod-deletion-cost`` holds this cost; a second annotation
of ours holds the value that we wrote, because a cost that a user wrote is never changed.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterset.model import division, names
from controller_runtime import log, resources
from controller_runtime.client.client import Client
from controller_runtime.errors import Conflict, Forbidden, Invalid, NotFound
from controller_runtime.objects import Object
from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from descheduler import pods
from descheduler.cluster import ClusterView

_FIRST = 1_000_000
"""Cost of the pod that is deleted last. A new pod has the cost 0 until its cost is written, so it is deleted first.
Kubernetes also deletes younger pods first."""
_MOST_WORK = 200_000
"""Maximum product of a ReplicaSet's pods and lower clusters, which takes 0.1 s. Above it, nothing is written."""
_TRIED = 20
"""Number of a ReplicaSet's pods that are searched for a valid division. Users can write thousands of long invalid ones."""


def is_ours(pod: Object) -> bool:
    """Report whether the pod's deletion cost may be changed: there is none, or we wrote it."""
    found = pod.annotations.get(names.ANNOTATION_DELETION_COST)
    return found is None or found == pod.annotations.get(names.ANNOTATION_DELETION_COST_WRITTEN)


def new_costs(found: Sequence[Object], cluster_of: Callable[[str], str]) -> dict[str, int]:
    """Return the deletion costs to write, by pod name. Pods with a correct cost are left out.

    Args:
        found: pods of one ReplicaSet with a division, on virtual nodes.
        cluster_of: returns the lower cluster of a node.
    """
    mine = sorted(
        (pod for pod in found if is_ours(pod) and pods.is_active(pod) and pod.node_name),
        key=lambda pod: (pods.created(pod), pod.name),
    )
    by_cluster: dict[str, list[Object]] = defaultdict(list)
    for pod in mine:
        by_cluster[cluster_of(pod.node_name)].append(pod)
    counts = Counter({cluster: len(there) for cluster, there in by_cluster.items()})
    if len(mine) * len(counts) > _MOST_WORK or (weights := _weights(mine, counts)) is None:
        return {}
    places: dict[str, list[int]] = defaultdict(list)
    for place, cluster in enumerate(division.kept(weights, counts)):
        places[cluster].append(max(1, _FIRST - place))
    changed: dict[str, int] = {}
    for cluster, there in by_cluster.items():
        free = {str(cost): cost for cost in places[cluster]}
        without = [
            pod
            for pod in there
            if not free.pop(pod.annotations.get(names.ANNOTATION_DELETION_COST, ""), None)
        ]
        changed |= {pod.name: cost for pod, cost in zip(without, free.values(), strict=True)}
    return changed


def _weights(found: Sequence[Object], counts: Counter[str]) -> dict[str, int] | None:
    """Return the weights by cluster; None: none of the ``_TRIED`` newest pods has a valid division."""
    for pod in found[: -_TRIED - 1 : -1]:
        try:
            declared = division.parse(pod.annotations)
        except ValueError:
            continue
        if declared is not None:
            # A division by room or price has no weights. Use the numbers of pods, because room and prices change.
            return dict(declared.weights) or division.proportions(counts)
    return None


_SETTLE = 1.0
"""Seconds for which changes of a ReplicaSet's pods are collected, so that costs are computed once per burst."""
_RETRY = 1.0
_WORKERS = 2
_BATCH = 100
"""Number of a ReplicaSet's pods that are written before the next ReplicaSet's, so that one user cannot delay others."""
_ASPECTS: tuple[Callable[[Object], object], ...] = (
    lambda pod: pod.node_name,
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
        costs = new_costs(list(found.values()), self.view.lower_cluster)
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
            await self.client.patch(resources.PODS, pod.name, {"metadata": metadata}, namespace=pod.namespace)
        except (Conflict, NotFound):
            return False
        return True
