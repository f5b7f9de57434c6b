"""The kinds of objects of which lower events are copied to the upper objects."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from clusterset.model import names
from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import INDEX_LOWER_KEY, ClusterContext, PodCaches
from virtual_node.translate.base import ownership
from virtual_node.translate.storage.pvc import selected_node


@dataclass(frozen=True, slots=True)
class MirroredKind:
    """The lower objects of a kind that we made, and the upper objects that they stand for."""

    kind: str
    """Such as ``Pod``."""
    lower: Informer
    upper: Collection[Informer]
    """Indexed by ``index_lower_key``."""
    index_lower_key: str
    """Index of upper objects by the namespace and name that their lower object has."""
    upper_of: Callable[[Object], Object | None]
    """Returns the upper object of a lower one; None: not cached."""
    node_of: Callable[[Object], str]
    """Returns the name of the virtual node that an upper object belongs to."""

    def find_upper(self, key: str, uid: str) -> Object | None:
        """Return the upper object of that name and uid; None: not cached."""
        found = (informer.store.get(key) for informer in self.upper)
        return next((upper for upper in found if upper is not None and upper.uid == uid), None)

    def find_lower(self, key: str, uid: str) -> Object | None:
        """Return the lower object of that name and uid; None: it is not ours, or not cached."""
        lower = self.lower.store.get(key)
        return None if lower is None or lower.uid != uid else lower

    def awaits(self, lower_key: str) -> bool:
        """Report whether a lower object of that name that we made may appear in the cache.

        That is if an upper object needs a lower one of this name, and the cache has none for it. So lower users cannot
        make us keep events for names that they choose.
        """
        lower = self.lower.store.get(lower_key)
        known = None if lower is None else lower.labels.get(names.LABEL_UPPER_UID)
        return any(
            upper.uid != known
            for informer in self.upper
            for upper in informer.store.by_index(self.index_lower_key, lower_key)
        )


def pods(caches: PodCaches) -> MirroredKind:
    """Return the pods of our virtual nodes."""

    def node_of(upper: Object) -> str:
        return str((upper.spec or {}).get("nodeName", ""))

    return MirroredKind("Pod", caches.lower, caches.upper.values(), INDEX_LOWER_KEY, caches.upper_of, node_of)


def claims(context: ClusterContext, *, lower: Informer, upper: Informer) -> MirroredKind:
    """Return the PersistentVolumeClaims that we made in the lower cluster."""

    def upper_of(claim: Object) -> Object | None:
        found = upper.store.get(ownership.upper_key(claim))
        if found is None or context.lower_key(found.key) != claim.key:
            return None  # a lower user changed the annotation with the upper namespace
        return found if found.uid == claim.labels.get(names.LABEL_UPPER_UID) else None

    def node_of(claim: Object) -> str:
        selected = selected_node(claim.to_dict())
        return selected if selected in context.nodes else next(iter(context.nodes))

    return MirroredKind("PersistentVolumeClaim", lower, (upper,), context.index_lower_key, upper_of, node_of)


def involved(event: Object) -> tuple[str, str]:
    """Return the key and uid of the object that an event is about; empty if the server sends no valid reference."""
    reference = event.field("involvedObject")
    if not isinstance(reference, dict):
        return "", ""
    key = f"{reference.get('namespace', '')}/{reference.get('name', '')}"
    return key, str(reference.get("uid", ""))
