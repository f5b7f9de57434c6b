"""Reads the worker pods of each Swarm from caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clusterset.model.pod.conditions import condition, is_finished, is_true
from controller_runtime import resources
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.translation_budget import json_size
from controller_runtime.cache.informer import Informer
from controller_runtime.cache.namespace_budget import stub
from controller_runtime.objects import Object
from swarm import slots
from swarm.slots import Pod, Workers
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
            return lambda pod: uid is not None and _owner(pod).get("uid") == uid
        if workers.deployment:
            found = self.deployments.store.get(f"{namespace}/{workers.deployment}")
            selector = (found.spec or {}).get("selector") if found is not None else None
            if not selector:
                return lambda _pod: False
            matches = matching.compile_selector(selector)
            return lambda pod: _owner(pod).get("kind") == "ReplicaSet" and matches(pod.labels)
        selects = matching.compile_selector(workers.selector or {})
        return lambda pod: selects(pod.labels)

    def workers(self, namespace: str, parsed: SwarmSpec) -> Workers | None:
        """Return kind, wanted number, first ordinal and grace period of workers; None if their workload is missing."""
        grace = float(parsed.unready_grace_seconds)
        named, kind = parsed.workers.stateful_set or parsed.workers.deployment, parsed.workers.kind
        if kind == slots.PODS:
            return Workers(kind, grace=grace)
        informer = self.stateful_sets if kind == slots.STATEFUL_SET else self.deployments
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
        {"state": {kind: {} for kind in one.get("state") or ()}}
        for one in status.get("containerStatuses") or ()
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


def _owner(pod: Object) -> Mapping[str, Any]:
    return next((one for one in pod.metadata.owner_references if one.get("controller")), {})
