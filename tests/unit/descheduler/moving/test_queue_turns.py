"""Namespaces take turns in the descheduler's queues: a tenant with thousands of pods delays no other."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime.workqueue.controller import Controller
from descheduler.strategies.stale_cluster import StaleCluster, StaleClusterParams
from descheduler.strategies.unschedulable import Unschedulable, UnschedulableParams
from descheduler.view.record import Record
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process

pytestmark = pytest.mark.looptime


async def _taken(controller: Controller[str], keys: list[str], workers: int) -> list[str]:
    """The keys that as many workers get at first."""
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
async def test_namespaces_take_turns_in_the_queues_of_strategies(kind, params, controller):
    """The second worker takes a pod of the other namespace, and one worker stays free for a third one."""
    strategy = Process(Cluster()).add(kind, params)
    noisy = [f"noisy/p{number}" for number in range(100)]
    taken = await _taken(getattr(strategy, controller), [*noisy, "quiet/p"], 2)
    assert taken == ["noisy/p0", "quiet/p"]


async def test_namespaces_take_turns_in_the_queue_of_recreations():
    """Records are named after uids; the namespace is that of the pod."""
    recreator = Process(Cluster()).recreator
    fields: dict[str, Any] = {
        "namespace_uid": "n", "pod_name": "p", "old_version": "1", "node": "vn", "reason": "", "force": False,
        "replacement": {},
    }  # fmt: skip
    keys = [f"kube-system/r{number}" for number in range(100)]
    for number, key in enumerate(keys):
        namespace = "quiet" if number == 99 else "noisy"
        recreator._own[key] = Record(namespace=namespace, old_uid=str(number), **fields)
    assert await _taken(recreator.controller, keys, 2) == [keys[0], keys[99]]
