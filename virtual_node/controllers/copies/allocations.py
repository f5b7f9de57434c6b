"""Reports the devices that the lower cluster allocates: on the upper pod, and as an event on a shared upper claim.

The status of the upper claim is not written. Its pools and devices would be names of the lower cluster, which
the upper scheduler would take for devices of the upper cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.controllers.copies.single_objects import ObjectKey
from virtual_node.translate.base import ownership
from virtual_node.translate.objects import resource_claims

_NAMED = 8
"""Maximum number of devices that an event names."""


@dataclass(eq=False, repr=False)
class Allocations:
    """The allocated ResourceClaims of one lower cluster."""

    context: ClusterContext
    caches: ClusterCaches
    dependencies: DependencyController
    """Its ``peek`` returns upper claims."""
    changed: Callable[[str], None]
    """Called with the uid of an upper pod whose devices may have changed."""
    informers: list[Informer] = field(default_factory=list)
    """Claims that the lower cluster generated from our copies of templates, in one informer, which the caller runs. Empty:
    ResourceClaims do not follow pods to this cluster."""
    _stores: list[Informer] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Register handlers for the claims."""
        if not self.caches.claims:
            return
        copies = self.caches.claims[resource_claims.CLAIM]
        generated = self.context.lower_informer(
            resources.RESOURCE_CLAIMS,
            selector=f"{names.LABEL_GENERATED_FOR}={self.context.cluster_id}",
            keep=lambda claim: self.context.places.has(claim.namespace),
            name="generated-claims",
        )
        self.informers, self._stores = [generated], [copies, generated]
        copies.add_handler(on_add=lambda claim, _initial: self._wake(claim), on_update=self._shared_changed)
        generated.on_change(self._wake, lambda _: None)

    def record(self, pod: Object) -> str:
        """Return the annotation's value with the devices of a lower pod; empty: none is allocated."""
        if not self._stores or not (lower_pod := pod.to_dict())["spec"].get("resourceClaims"):
            return ""
        found = {}
        for name, claim in resource_claims.generated_names(lower_pod).items():
            for informer in self._stores:
                if (lower := informer.store.get(f"{pod.namespace}/{claim}")) is not None:
                    found[name] = resource_claims.allocated(lower.to_dict())
        return resource_claims.record(found)

    def _shared_changed(self, old: Object, new: Object) -> None:
        self._wake(new)
        devices = resource_claims.allocated(new.to_dict())
        if not devices or resource_claims.allocated(old.to_dict()):
            return
        key = ObjectKey(resource_claims.CLAIM, ownership.upper_namespace(new), new.name)
        upper = self.dependencies.peek(key)
        if upper is not None and upper.uid == new.labels.get(names.LABEL_UPPER_UID):
            named = ", ".join(
                f"{device['driver']}/{device['pool']}/{device['device']}" for device in devices[:_NAMED]
            )
            more = f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else ""
            message = f"Lower cluster {self.context.name} allocated {named}{more}"
            self.context.recorder.event(upper, "Normal", "DevicesAllocated", message)

    def _wake(self, claim: Object) -> None:
        for consumer in (claim.status or {}).get("reservedFor") or ():
            pod = self.caches.pods.lower.store.get(f"{claim.namespace}/{consumer.get('name')}")
            if pod is not None and (uid := pod.labels.get(names.LABEL_UPPER_UID)):
                self.changed(uid)
