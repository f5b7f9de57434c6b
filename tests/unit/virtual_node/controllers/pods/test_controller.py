"""The pod controller where one half of its work fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from clusterset.model.namespace_map import NamespaceMap
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import Forbidden
from controller_runtime.objects import Object, from_dict
from controller_runtime.workqueue.queue import WorkQueue
from tests import objects
from virtual_node.controllers.base.context import INDEX_UID, INDEX_UPPER_UID, PodCaches
from virtual_node.controllers.pods.controller import PodController
from virtual_node.controllers.pods.refusals import Refusals
from virtual_node.metrics import pod_work
from virtual_node.translate.objects.namespaces import Places


def _pod(uid: str, **labels: str) -> Object:
    return from_dict(objects.pod(uid=uid, node="vn", labels=labels))


class _Status:
    """Records status writes to the upper cluster."""

    def __init__(self) -> None:
        self.mirrored: list[str] = []

    async def mirror(self, upper: Object, _lower: Object, _record: Any) -> None:
        self.mirrored.append(upper.uid)


async def test_a_change_that_the_lower_cluster_refuses_does_not_delay_the_status():
    """A lower policy forbids a label: the pod's end is still mirrored, or its Job would wait forever."""
    client: Any = SimpleNamespace(cluster="a", caches=CacheBudget(0, cluster="a"))
    caches = PodCaches(
        upper={"vn": Informer(client, resources.PODS, indexers={INDEX_UID: lambda pod: (pod.uid,)})},
        lower=Informer(
            client,
            resources.PODS,
            indexers={INDEX_UPPER_UID: lambda pod: (pod.labels["virtual-node.io/upper-uid"],)},
        ),
        places=Places("upper", NamespaceMap()),
    )
    context: Any = SimpleNamespace(
        name="a",
        settings=SimpleNamespace(pod_sync_workers=1),
        config=SimpleNamespace(on_unschedulable="Wait"),
        nodes={},
        pod_work={"vn": pod_work()},
    )
    creator: Any = SimpleNamespace(
        adopt=lambda *_: None,
        undo_unanswered=AsyncMock(return_value=None),
        delays=SimpleNamespace(
            refusals=Refusals(lambda _uid, _seconds: None), waits=SimpleNamespace(check=lambda *_: None)
        ),
    )
    status: Any = _Status()

    async def refuse(*_what: Any) -> None:
        raise Forbidden("a policy says no", code=403)

    updater: Any = SimpleNamespace(follow=refuse)
    lower_nodes = Informer(client, resources.NODES)
    pods = PodController(
        context, caches, lower_nodes, WorkQueue("pods"), creator=creator, updater=updater, status=status
    )
    upper, lower = _pod("u-1"), _pod("l-1", **{"virtual-node.io/upper-uid": "u-1"})
    caches.upper["vn"].store.put(upper.key, upper)
    caches.lower.store.put(lower.key, lower)

    with pytest.raises(Forbidden):
        await pods.reconcile("u-1")
    assert status.mirrored == ["u-1"]
