"""Reads the openb trace (alibaba/clusterdata, cluster-trace-gpu-v2023): nodes and tasks as Kubernetes objects.

All variants of the task list have the same columns: ``openb_pod_list_default``, ``…_gpushare40``, ``…_cpu250``,
``…_multigpu20``, ``…_gpuspec33``. Files may be compressed with gzip.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from multi_scheduler.state.cluster.pod_requirements import Demand, demand

DIRECTORY = Path("hack/placement/data")
GPU = "alibabacloud.com/gpu-milli"
MODEL = "alibabacloud.com/gpu-card-model"
UNITS = 1000
"""Units per GPU."""


@dataclass(frozen=True, slots=True)
class Task:
    """One row of the task list."""

    cpu: int
    """CPU in thousandths."""
    memory: int
    """Memory in MiB."""
    gpus: int
    share: int
    """Thousandths of each GPU."""
    models: str
    """Models of GPU that the task may run on, joined by ``|``. Empty: any."""

    @property
    def units(self) -> int:
        """Return the requested thousandths of GPUs in total."""
        return self.gpus * self.share


def _rows(path: Path) -> list[dict[str, str]]:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return list(csv.DictReader(io.StringIO(data.decode())))


def read_tasks(path: Path) -> list[Task]:
    """Return the tasks of a task list, ordered by name."""
    tasks = []
    for row in sorted(_rows(path), key=lambda row: row["name"]):
        gpus = int(float(row["num_gpu"] or 0))
        share = min(int(float(row.get("gpu_milli") or UNITS)), UNITS) if gpus else 0
        models = "|".join(one for one in (row.get("gpu_spec") or "").split("|") if one) if gpus else ""
        tasks.append(
            Task(
                int(float(row["cpu_milli"])),
                int(float(row["memory_mib"])),
                gpus if share else 0,
                share,
                models,
            )
        )
    return tasks


def read_nodes(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a node list as Kubernetes Nodes."""
    return [
        {
            "metadata": {"name": row["sn"], "labels": {MODEL: row["model"]} if row["model"] else {}},
            "status": {
                "allocatable": {
                    "cpu": f"{row['cpu_milli']}m",
                    "memory": f"{row['memory_mib']}Mi",
                    "pods": "1000",
                    **({GPU: str(int(row["gpu"]) * UNITS)} if int(row["gpu"]) else {}),
                }
            },
        }
        for row in _rows(path)
    ]


def arrivals(tasks: list[Task], capacity: int, ratio: float, seed: int) -> list[Task]:
    """Return tasks in random order with requests that add up to a ratio of the capacity.

    The protocol of the published evaluation: shuffle the whole list, remove random tasks while their requests exceed
    the ratio, then draw further tasks from the list with replacement until the next one would exceed it.
    """
    generator = random.Random(seed)  # noqa: S311 - a simulation is to be repeatable
    chosen = list(tasks)
    generator.shuffle(chosen)
    requested, wanted = sum(task.units for task in chosen), ratio * capacity
    while requested > wanted:
        requested -= chosen.pop(generator.randrange(len(chosen))).units
    while True:
        task = generator.choice(tasks)
        if requested + task.units > wanted:
            return chosen
        requested += task.units
        chosen.append(task)


@cache
def demand_of(task: Task) -> Demand:
    """Return the requirements that the multi-scheduler reads from the task's pod."""
    requests = {"cpu": f"{task.cpu}m", "memory": f"{task.memory}Mi"}
    affinity = {}
    if task.units:
        requests[GPU] = str(task.units)
    if task.models:
        expression = {"key": MODEL, "operator": "In", "values": sorted(set(task.models.split("|")))}
        term = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    pod = {
        "metadata": {"namespace": "trace"},
        "spec": {"containers": [{"name": "task", "resources": {"requests": requests}}], "affinity": affinity},
    }
    return demand(pod)
