"""Deletion costs that keep a ReplicaSet's division over lower clusters when the ReplicaSet scales down. No IO.

A ReplicaSet deletes pods with a lower cost first. Annotation ``pod-deletion-cost`` holds this cost; a second annotation
of ours holds the value that we wrote, because a cost that a user wrote is never changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from clusterset.model import division, names
from controller_runtime.objects import Object
from descheduler.view import pods

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
        (pod for pod in found if is_ours(pod) and pods.is_active(pod) and (pod.spec or {}).get("nodeName")),
        key=lambda pod: (pods.created(pod), pod.name),
    )
    by_cluster: dict[str, list[Object]] = defaultdict(list)
    for pod in mine:
        by_cluster[cluster_of((pod.spec or {})["nodeName"])].append(pod)
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
