"""Caches of the objects that Swarms depend on; a change queues the Swarms that it affects."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from controller_runtime.workqueue.queue import WorkQueue
from swarm.controller.liveness import Liveness
from swarm.controller.owned_objects import INDEX_SWARM, LABEL_SWARM, by_swarm, shrink_config_map
from swarm.controller.reports import Renewals
from swarm.controller.worker_pods import INDEX_NAMESPACE, ready_only, shrink_pod, shrink_workload, view

_BURST = 0.05
"""Seconds from a ConfigMap or Lease change to the reconcile. Acknowledgements come in bursts; the delay lets one
reconcile process a burst."""


class Caches:
    """Informers of the upper cluster."""

    def __init__(self, client: Client, namespace: str | None) -> None:
        nearby = {INDEX_NAMESPACE: lambda found: [found.namespace]}
        own: dict[str, Any] = {"label_selector": LABEL_SWARM, "indexers": {INDEX_SWARM: by_swarm}}
        follow = functools.partial(Informer, client, namespace=namespace)
        self.swarms = follow(resources.SWARMS, indexers=nearby, name="swarms")
        self.pods = follow(resources.PODS, transform=shrink_pod, indexers=nearby, name="pods")
        self.stateful_sets = follow(resources.STATEFUL_SETS, transform=shrink_workload)
        self.deployments = follow(resources.DEPLOYMENTS, transform=shrink_workload)
        self.config_maps = follow(resources.CONFIG_MAPS, **own, transform=shrink_config_map, name="shares")
        self.leases = follow(resources.LEASES, **own, name="acknowledgements")
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
    return node.with_fields(
        spec={"taints": spec.get("taints") or [], "podCIDRs": spec.get("podCIDRs") or []},
        status={"conditions": ready_only(status), "addresses": status.get("addresses") or []},
    )
