"""Node scores of the policies in the published evaluation: larger is better, for every node that has room.

Definitions: Weng and others, "Beware of Fragmentation", USENIX ATC 2023, section 6.1, and the configuration
of its artifact (DotProd with merged GPU dimension, normalised by the largest node).
"""

from __future__ import annotations

from collections.abc import Sequence

from hack.placement.cluster import Cluster, kind, least_allocated
from hack.placement.trace import GPU, UNITS, Task
from multi_scheduler.state.cluster.pod_requirements import Demand

LARGEST_CPU, LARGEST_GPU = 128_000, 8 * UNITS


def best_fit(cluster: Cluster, task: Task, slots: Sequence[int]) -> list[float]:
    """Prefer the smallest weighted sum of free resources after placement."""
    free, gpu = cluster.index.free("cpu"), cluster.index.free(GPU)
    return [
        int(
            100 * (1 - (free[slot] - task.cpu) / LARGEST_CPU / 2 - (gpu[slot] - task.units) / LARGEST_GPU / 2)
        )
        for slot in slots
    ]


def dot_product(cluster: Cluster, task: Task, slots: Sequence[int]) -> list[float]:
    """Prefer the smallest dot product of free and requested resources."""
    free, gpu = cluster.index.free("cpu"), cluster.index.free(GPU)
    cpu_factor = task.cpu / LARGEST_CPU**2 / 2
    gpu_factor = task.units / LARGEST_GPU**2 / 2
    return [int(100 * (1 - free[slot] * cpu_factor - gpu[slot] * gpu_factor)) for slot in slots]


def gpu_packing(cluster: Cluster, task: Task, slots: Sequence[int]) -> list[float]:
    """Prefer GPUs in use, then free GPUs of nodes in use, then free nodes."""
    if not task.units:
        return [0.0] * len(slots)
    devices = cluster.index.devices[GPU].free
    scores = []
    for slot in slots:
        free = devices[slot]
        whole = sum(left == UNITS for left in free)
        if whole == len(free):
            scores.append(max(100 // 3 - whole, whole))
            continue
        used = sorted(left for left in free if left >= task.share)[: task.gpus]
        fresh = sum(left == UNITS for left in used)
        if fresh:
            scores.append(max(100 // 2 - fresh, 100 // 3))
        else:
            scores.append(max(100 - sum(left * 100 // UNITS for left in used) // 10, 100 // 2))
    return [float(score) for score in scores]


def gpu_clustering(cluster: Cluster, task: Task, slots: Sequence[int]) -> list[float]:
    """Prefer nodes with tasks of the same kind only, then nodes with this and other kinds, then idle nodes, then the rest."""
    if not task.units:
        return [0.0] * len(slots)
    gpu, own = cluster.index.free(GPU), kind(task)
    scores = []
    for slot in slots:
        kinds = cluster.kinds[slot]
        base = (75 if len(kinds) == 1 else 50) if own in kinds else (0 if kinds else 25)
        scores.append(float(base + 25 * (LARGEST_GPU - gpu[slot]) // LARGEST_GPU))
    return scores


POLICIES = {
    "LeastAllocated": least_allocated,
    "DotProd": dot_product,
    "GpuClustering": gpu_clustering,
    "GpuPacking": gpu_packing,
    "BestFit": best_fit,
}


def has_room(free: dict[str, int], demand: Demand) -> bool:
    """Report whether the sum over all nodes has room; a virtual node shows a scheduler only this sum."""
    return all(free.get(resource, 0) >= count for resource, count in demand.requests.items())
