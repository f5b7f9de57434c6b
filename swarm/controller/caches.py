"""Caches of the objects that Swarms depend on; a change queues the Swarms that it affects.

Users write these objects, so the memory of each kind is limited for each namespace. Beyond the limit, objects are stubs: a
Swarm that is one is refused, a pod is no worker, and a Lease has no report. ``WorkerPods`` reads the worker pods of each Swarm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import condition, is_finished, is_true
from controller_runtime import resources
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.translation_budget import json_size
from controller_runtime.cache.informer import BoundedInformer, BudgetKey, Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.store import NamespaceBudget, stub
from controller_runtime.workqueue.queue import WorkQueue
from swarm import planning
from swarm.controller.delivery import (
    INDEX_SWARM,
    LABEL_SWARM,
    by_swarm,
    owned_stub,
    shrink_config_map,
    shrink_metadata,
)
from swarm.controller.liveness import Liveness
from swarm.controller.reports import Renewals
from swarm.planning import Pod, Workers
from swarm.spec import SwarmSpec, WorkersSpec

INDEX_NAMESPACE = "namespace"
_LARGEST_SELECTOR = 16 << 10
"""Maximum bytes of a Deployment's selector; with a larger one, it has no workers."""


@dataclass(frozen=True, slots=True)
class WorkerPods:
    """Reads the caches of pods, StatefulSets and Deployments."""

    pods: Informer
    stateful_sets: Informer
    deployments: Informer

    def of(self, namespace: str, workers: WorkersSpec) -> list[Pod]:
        """Return the pods of the workers, including finished ones."""
        includes = self._includes(namespace, workers)
        return [view(pod) for pod in self.pods.store.by_index(INDEX_NAMESPACE, namespace) if includes(pod)]

    def _includes(self, namespace: str, workers: WorkersSpec) -> Callable[[Object], bool]:
        """Return a function that reports whether a pod of the namespace is one of the workers."""
        if workers.stateful_set:
            found = self.stateful_sets.store.get(f"{namespace}/{workers.stateful_set}")
            uid = found.uid if found is not None else None
            return lambda pod: uid is not None and (pod.controller or {}).get("uid") == uid
        if workers.deployment:
            found = self.deployments.store.get(f"{namespace}/{workers.deployment}")
            selector = (found.spec or {}).get("selector") if found is not None else None
            if not selector:
                return lambda _pod: False
            matches = matching.compile_selector(selector)
            return lambda pod: (pod.controller or {}).get("kind") == "ReplicaSet" and matches(pod.labels)
        selects = matching.compile_selector(workers.selector or {})
        return lambda pod: selects(pod.labels)

    def workers(self, namespace: str, parsed: SwarmSpec) -> Workers | None:
        """Return kind, wanted number, first ordinal and grace period of workers; None if their workload is missing."""
        grace = float(parsed.unready_grace_seconds)
        named, kind = parsed.workers.stateful_set or parsed.workers.deployment, parsed.workers.kind
        if kind == planning.PODS:
            return Workers(kind, grace=grace)
        informer = self.stateful_sets if kind == planning.STATEFUL_SET else self.deployments
        found = informer.store.get(f"{namespace}/{named}")
        if found is None:
            return None
        spec = found.spec or {}
        replicas = 0 if found.metadata.deletion_timestamp else spec.get("replicas", 1)
        return Workers(kind, replicas, (spec.get("ordinals") or {}).get("start", 0), grace)


def view(pod: Object) -> Pod:
    """Return a pod reduced to the relevant fields.

    A pod is finished if its phase is final and no container is reported as running. The pod garbage collector of
    Kubernetes sets the phase of pods on lost nodes without knowing whether their containers have exited.
    """
    spec, status = pod.spec or {}, pod.status or {}
    containers = status.get("containerStatuses") or ()
    running = any("running" in (container.get("state") or {}) for container in containers)
    return Pod(
        name=pod.name,
        uid=pod.uid,
        node=spec.get("nodeName") or "",
        ip=status.get("podIP") or "",
        ready=is_true(status, "Ready"),
        deleting=pod.metadata.deletion_timestamp is not None,
        finished=is_finished(status) and not running,
        labels=pod.labels,
    )


def shrink_pod(pod: Object) -> Object:
    """Drop the fields that ``view`` does not read."""
    spec, status = pod.spec or {}, pod.status or {}
    kept: dict[str, Any] = {field: status[field] for field in ("phase", "podIP") if field in status}
    kept["conditions"] = ready_only(status)
    kept["containerStatuses"] = [
        {"state": {kind: {} for kind in container.get("state") or ()}}
        for container in status.get("containerStatuses") or ()
    ]
    shrunk = pod.without("spec", "status").with_fields(spec={"nodeName": spec.get("nodeName")}, status=kept)
    return shrunk.with_only(labels=lambda _key: True, owners=lambda one: bool(one.get("controller")))


def pod_stub(pod: Object) -> Object:
    """Return a shrunk pod without its labels and owner, so that it is no worker; jobs that it runs stay in the record."""
    return stub(pod).with_fields(spec=pod.spec, status=pod.status)


def shrink_workload(workload: Object) -> Object:
    """Drop the fields of a StatefulSet or Deployment that are not read, and a selector that a user made too large."""
    spec = workload.spec or {}
    fields = ["replicas", "ordinals"]
    if workload.kind == resources.DEPLOYMENTS.kind and json_size(spec.get("selector")) <= _LARGEST_SELECTOR:
        fields.append("selector")
    kept = {field: spec[field] for field in fields if field in spec}
    return workload.without("spec", "status").with_fields(spec=kept).with_only()


def ready_only(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a list with type and status of the Ready condition; empty if there is none."""
    found = condition(status, "Ready")
    return [{"type": "Ready", "status": found.get("status")}] if found else []


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
            resources.LEASES, owned_stub, **own, transform=shrink_metadata, name="acknowledgements"
        )
        self.nodes = Informer(client, resources.NODES, transform=_shrink_node, name="nodes")
        self.heartbeats = Informer(client, resources.LEASES, namespace=names.NODE_LEASES, name="heartbeats")
        self.renewals = Renewals(self.leases, needed=(self.swarms, self.pods, self.config_maps))

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
