"""The informer of bound upper pods, shared by the agents and by the Events about placements.

Users write pods, so the pods of one namespace use at most ``BYTES_PER_NAMESPACE``. Further ones are stubs (``stub``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from clusterset.model import names
from clusterset.model.pod import pod_resources
from clusterset.model.pod.groups import NATIVE_FIELDS, group_of, is_group_key, native_group
from controller_runtime import resources, store
from controller_runtime.apimachinery.translation_budget import json_size
from controller_runtime.cache.informer import BoundedInformer, BudgetKey, Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from controller_runtime.store import NamespaceBudget

BY_NODE = "node"
"""Name of the index from a node's name to its pods."""
BY_UID = "uid"
"""Name of the index from a UID to its pod."""
BY_GROUP = "group"
"""Name of the index from a pod group's key to its pods."""
BY_NATIVE_GROUP = "native group"
"""Name of the index from namespace/name of a PodGroup of Kubernetes to its pods."""
PENDING = "Pending"
BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
BYTES_PER_NAMESPACE, _FREE = 16 << 20, 4096
"""Maximum bytes of the cached pods of a namespace, without the first 4 KiB of each: all of a normal pod."""
_LARGEST_RESOURCES = 4096
"""Maximum bytes of the resources that a stub keeps of each container; of a pod with more, it has the sum."""
_OF_CONTAINER = ("resources", "restartPolicy")


def pods_budget() -> NamespaceBudget[BudgetKey]:
    """Return a budget for one informer of upper pods."""
    return NamespaceBudget(BYTES_PER_NAMESPACE, free=_FREE, shrink=stub)


def stub(pod: Object) -> Object:
    """Return a pod of bounded size: it needs its resources on its node, and has no group and no constraints."""
    spec, status = pod.spec or {}, pod.status or {}
    small = {name: spec[name] for name in ("nodeName", "priority") if spec.get(name)}
    if spec.get("containers"):
        small |= _resources_of(spec)
    phase = {"phase": status["phase"]} if "phase" in status else {}
    return store.stub(pod).with_fields(spec=small, status=phase)


def _resources_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a pod spec that say what it needs; only the sum if they are large."""
    needed: dict[str, Any] = {name: spec[name] for name in ("overhead", "resources") if spec.get(name)}
    for kind in ("containers", "initContainers"):
        if kind in spec:
            needed[kind] = [
                {"name": "", **{field: one[field] for field in _OF_CONTAINER if field in one}}
                for one in spec[kind]
            ]
    if json_size(needed) <= _LARGEST_RESOURCES:
        return needed
    return {"containers": pod_resources.summed(spec)}


def bound_pods(client: Client) -> Informer:
    """Return an informer of the upper cluster's bound pods that have not finished."""
    return BoundedInformer(
        client,
        resources.PODS,
        budget=pods_budget(),
        field_selector=BOUND,
        transform=shrink,
        indexers={
            BY_UID: lambda pod: [pod.uid],
            BY_NODE: lambda pod: [pod.node_name],
            BY_GROUP: group_key,
            BY_NATIVE_GROUP: lambda pod: [key] if (key := native_key(pod.namespace, pod.spec)) else [],
        },
        name="bound-pods",
    )


async def caught_up(client: Client, informer: Informer) -> None:
    """Return when the informer of bound pods knows all pods that are bound now.

    The list is read without a resourceVersion, so it contains every binding that the API server has confirmed, even if the
    informer's watch is late.

    Raises:
        ApiError: the pods cannot be listed.
    """
    known: set[str] = set()
    news = asyncio.Event()

    def note(pod: Object, _initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        known.add(pod.uid)
        news.set()

    with informer.add_handler(on_add=note):
        uids, _ = await client.list_as(
            resources.PODS, lambda pod: pod.uid, field_selector=BOUND, metadata_only=True
        )
        while not known.issuperset(uids):
            news.clear()
            await news.wait()


def group_key(pod: Object) -> list[str]:
    """Return the key of the pod's group; empty: it has none."""
    group = group_of(pod.namespace, pod.labels, pod.annotations, pod.spec)
    return [group.key] if group is not None else []


def native_key(namespace: str, spec: Mapping[str, Any] | None) -> str:
    """Return namespace/name of a pod's PodGroup of Kubernetes; empty: it has none."""
    name = native_group(spec)
    return f"{namespace}/{name}" if name else ""


def shrink(pod: Object) -> Object:
    """Reduce a pod to its node and priority; a pending pod keeps its spec, by which agents reserve room."""
    phase = (pod.status or {}).get("phase", "")
    if phase == PENDING:
        return with_read_metadata(pod.with_fields(status={"phase": phase}), all_labels=True)
    spec = pod.spec or {}
    kept = {name: spec[name] for name in ("nodeName", "priority", *NATIVE_FIELDS) if spec.get(name)}
    return with_read_metadata(pod.with_fields(spec=kept, status={}))


def with_read_metadata(pod: Object, *, all_labels: bool = False) -> Object:
    """Return a pod with only the metadata that the multi-scheduler reads: groups, own annotations, the controller."""

    def is_read(key: str) -> bool:
        return names.is_reserved(key) or is_group_key(key) or key == names.ANNOTATION_CLUSTER_SELECTOR

    return pod.with_only(
        labels=(lambda _key: True) if all_labels else is_read,
        annotations=is_read,
        owners=lambda one: bool(one.get("controller")),
    )


class Changed(Protocol):
    """Handles a new or changed bound pod."""

    def __call__(self, pod: Object, *, is_new: bool) -> None:
        """Handle the pod; `is_new` tells whether it was not known before."""


@dataclass(eq=False)
class BoundPods:
    """The bound upper pods that have not finished."""

    informer: Informer
    """As ``bound_pods`` creates it; the caller runs it."""

    def on_change(self, changed: Changed, gone: Callable[[str], None]) -> None:
        """Call ``changed`` with every new or changed bound pod, and ``gone`` with the UID of a deleted or finished pod."""
        self.informer.add_handler(
            on_add=lambda pod, _initial: changed(pod, is_new=True),
            on_update=lambda _old, new: changed(new, is_new=False),
            on_delete=lambda pod: gone(pod.uid),
        )

    def has(self, uid: str) -> bool:
        """Report whether the pod with this UID is known to be bound."""
        return self.get(uid) is not None

    def get(self, uid: str) -> Object | None:
        """Return a bound pod by its UID; None: unknown."""
        return next(iter(self.informer.store.by_index(BY_UID, uid)), None)

    def node(self, uid: str) -> str:
        """Return the node of a bound pod; empty: unknown."""
        pod = self.get(uid)
        return node_of(pod) if pod is not None else ""

    def on(self, node: str) -> list[Object]:
        """Return the pods that are bound to a node."""
        return self.informer.store.by_index(BY_NODE, node)

    def of_native_group(self, key: str) -> list[Object]:
        """Return the pods of a PodGroup of Kubernetes that are bound and not finished; ``key``: namespace/name."""
        return self.informer.store.by_index(BY_NATIVE_GROUP, key)

    def of_group(self, key: str) -> list[Object]:
        """Return the members of a pod group that are bound, not finished and not being deleted."""
        found = self.informer.store.by_index(BY_GROUP, key)
        return [pod for pod in found if pod.metadata.deletion_timestamp is None]


def priority_of(pod: Object) -> int:
    """Return the priority of a pod."""
    return int((pod.spec or {}).get("priority") or 0)


def node_of(pod: Object) -> str:
    """Return the upper node of a pod; empty: not bound."""
    return pod.node_name
