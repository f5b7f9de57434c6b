"""Caches of the objects that Swarms depend on; a change queues the Swarms that it affects.

Users write these objects, so the memory of each kind is limited for each namespace. Beyond the limit, objects are stubs: a
Swarm that is one is refused, a pod is no worker, and a Lease has no report.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.bounded import BoundedInformer, BudgetKey
from controller_runtime.cache.informer import Informer
from controller_runtime.cache.namespace_budget import NamespaceBudget, stub
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.workqueue.queue import WorkQueue
from swarm.controller.liveness import Liveness
from swarm.controller.owned_objects import (
    INDEX_SWARM,
    LABEL_SWARM,
    by_swarm,
    owned_stub,
    shrink_config_map,
    shrink_lease,
)
from swarm.controller.reports import Renewals
from swarm.controller.worker_pods import (
    INDEX_NAMESPACE,
    pod_stub,
    ready_only,
    shrink_pod,
    shrink_workload,
    view,
)

_BURST = 0.05
"""Seconds from a ConfigMap or Lease change to the reconcile. Acknowledgements come in bursts; the delay lets one
reconcile process a burst."""
SWARM_BYTES = 32 << 20
"""Maximum bytes of all Swarms of a namespace; one has at most 1.5 MB."""
_BYTES, _FREE = 16 << 20, 1024
"""Maximum bytes of all objects of another kind in a namespace, without the first KiB of each: all of a normal object."""


class Caches:
    """Informers of the upper cluster."""

    def __init__(self, client: Client, namespace: str | None) -> None:
        nearby = {INDEX_NAMESPACE: lambda found: [found.namespace]}
        own: dict[str, Any] = {"label_selector": LABEL_SWARM, "indexers": {INDEX_SWARM: by_swarm}}

        def follow(
            resource: Resource,
            shrink: Callable[[Object], Object] = stub,
            *,
            limit: int = _BYTES,
            free: int = _FREE,
            **more: Any,
        ) -> Informer:
            budget: NamespaceBudget[BudgetKey] = NamespaceBudget(limit, free=free, shrink=shrink)
            return BoundedInformer(client, resource, budget=budget, namespace=namespace, **more)

        self.swarms = follow(names.SWARMS, limit=SWARM_BYTES, free=0, indexers=nearby, name="swarms")
        self.pods = follow(resources.PODS, pod_stub, transform=shrink_pod, indexers=nearby, name="pods")
        self.stateful_sets = follow(resources.STATEFUL_SETS, transform=shrink_workload)
        self.deployments = follow(resources.DEPLOYMENTS, transform=shrink_workload)
        self.config_maps = follow(
            resources.CONFIG_MAPS, owned_stub, **own, transform=shrink_config_map, name="shares"
        )
        self.leases = follow(
            resources.LEASES, owned_stub, **own, transform=shrink_lease, name="acknowledgements"
        )
        self.nodes = Informer(client, resources.NODES, transform=_shrink_node, name="nodes")
        self.heartbeats = Informer(client, resources.LEASES, namespace="kube-node-lease", name="heartbeats")
        self.renewals = Renewals(self.leases)

    def all(self) -> list[Informer]:
        """Return all informers."""
        return [cache for cache in vars(self).values() if isinstance(cache, Informer)]

    def connect(self, queue: WorkQueue[str], liveness: Liveness) -> contextlib.ExitStack:
        """Queue a Swarm when an object that it depends on changes, until the result is closed."""

        def near(changed: Object) -> None:
            for swarm in self.swarms.store.index_keys(INDEX_NAMESPACE, changed.namespace):
                queue.add(swarm)

        def own(changed: Object) -> None:
            for swarm in by_swarm(changed):
                queue.add_after(swarm, _BURST)

        def pod_changed(old: Object, new: Object) -> None:
            if view(old) != view(new):
                near(new)

        def pod_ended(pod: Object) -> None:
            if view(pod).finished:
                liveness.note_end(pod.uid)
            near(pod)

        stack = contextlib.ExitStack()
        for informer, handle in (
            (self.swarms, lambda swarm: queue.add(swarm.key)),
            (self.stateful_sets, near),
            (self.deployments, near),
            (self.config_maps, own),
            (self.leases, own),
        ):
            stack.enter_context(informer.on_change(handle, handle))
        stack.enter_context(
            self.pods.add_handler(on_add=lambda pod, _: near(pod), on_update=pod_changed, on_delete=pod_ended)
        )
        return stack


def _shrink_node(node: Object) -> Object:
    """Reduce a Node to the fields that ``liveness`` and ``addresses`` read."""
    spec, status = node.spec or {}, node.status or {}
    shrunk = node.with_fields(
        spec={"taints": spec.get("taints") or [], "podCIDRs": spec.get("podCIDRs") or []},
        status={"conditions": ready_only(status), "addresses": status.get("addresses") or []},
    )
    return shrunk.with_only(labels=lambda key: key == names.LABEL_NODE_TYPE)
