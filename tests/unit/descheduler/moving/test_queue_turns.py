"""Namespaces take turns in the descheduler's queues, so a tenant with many pods does not delay others."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime.workqueue.controller import Controller
from descheduler.moving.record import Record
from descheduler.strategies.stale_cluster import StaleCluster, StaleClusterParams
from descheduler.strategies.unschedulable import Unschedulable, UnschedulableParams
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process

pytestmark = pytest.mark.looptime


async def _first_keys(controller: Controller[str], keys: list[str], workers: int) -> list[str]:
    """Enqueue keys; return those that the given number of workers gets first."""
    for key in keys:
        controller.enqueue(key)
    return [await controller.queue.get() for _ in range(workers)]


@pytest.mark.parametrize(
    ("kind", "params", "controller"),
    [
        (Unschedulable, UnschedulableParams(), "controller"),
        (StaleCluster, StaleClusterParams(), "pods"),
    ],
)
async def test_namespaces_take_turns_in_queues_of_strategies(kind, params, controller):
    strategy = Process(Cluster()).add(kind, params)
    noisy = [f"noisy/p{number}" for number in range(100)]
    taken = await _first_keys(getattr(strategy, controller), [*noisy, "quiet/p"], 2)
    assert taken == ["noisy/p0", "quiet/p"]


async def test_namespaces_take_turns_in_queue_of_recreations():
    """The key of a record has the pod's UID, so its namespace is looked up."""
    recreator = Process(Cluster()).mover.recreator
    fields: dict[str, Any] = {
        "namespace_uid": "n", "pod_name": "p", "old_version": "1", "node": "vn", "reason": "", "force": False,
        "replacement": {},
    }  # fmt: skip
    keys = [f"kube-system/r{number}" for number in range(100)]
    for number, key in enumerate(keys):
        namespace = "quiet" if number == 99 else "noisy"
        recreator._own[key] = Record(namespace=namespace, old_uid=str(number), **fields)
    assert await _first_keys(recreator.controller, keys, 2) == [keys[0], keys[99]]
