"""The informers for claims, volumes and storage classes of both clusters, and the pods that use each claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import INDEX_CLAIM, ClusterContext
from virtual_node.translate.storage.binder_pod import LABEL_BINDER_OF, upper_claims
from virtual_node.translate.storage.shared import LABEL_SHARED, is_guest

INDEX_GUEST = "guest"
"""Index of lower volumes that stand for another cluster's volumes, by lower claim (namespace/name)."""

INDEX_FREE = "free"
"""Index of volumes that no claim is bound to; its only value is ``FREE``."""
FREE = "free"


class VolumeCaches:
    """Informers of claims, volumes, classes and placeholders."""

    def __init__(self, context: ClusterContext) -> None:
        """Create the informers of one lower cluster."""
        upper, lower = context.upper, context.lower
        ours = f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id}"
        self.upper_claims = context.upper_informer(
            resources.PERSISTENT_VOLUME_CLAIMS,
            indexers={context.index_lower_key: lambda claim: (context.lower_key(claim.key),)},
        )
        self.lower_claims = context.lower_informer(resources.PERSISTENT_VOLUME_CLAIMS)
        """Only claims that we made."""
        self.upper_volumes = Informer(
            upper,
            resources.PERSISTENT_VOLUMES,
            label_selector=f"{names.LABEL_LOWER_CLUSTER}={context.name}",
            indexers={INDEX_FREE: _free},
        )
        """Only upper mirrors of this lower cluster's volumes; indexed by ``INDEX_FREE``."""
        self.lower_volumes = Informer(
            lower,
            resources.PERSISTENT_VOLUMES,
            indexers={INDEX_GUEST: lambda volume: _guest_claims(volume, context.cluster_id)},
        )
        self.upper_classes = context.upper_informer(resources.STORAGE_CLASSES)
        self.binders = context.lower_informer(
            resources.PODS,
            selector=f"{ours},{LABEL_BINDER_OF}",
            name="volume-binders",
            indexers={INDEX_CLAIM: lambda placeholder: upper_claims(placeholder.annotations)},
        )
        """Placeholder pods in the lower cluster, indexed by upper claim (namespace/name)."""
        declared = ",".join(sorted(storage.name for storage in context.config.volumes.shared))
        self.shared = (
            Informer(
                upper,
                resources.PERSISTENT_VOLUMES,
                label_selector=f"{LABEL_SHARED} in ({declared})",
                name="shared-volumes",
            )
            if declared
            else None
        )
        """Mirrors of all lower clusters' volumes on shared storage; None: this cluster declares no shared storage."""

    def all(self) -> Iterator[Informer]:
        """Yield every informer."""
        yield from (
            self.upper_claims,
            self.lower_claims,
            self.upper_volumes,
            self.lower_volumes,
            self.upper_classes,
            self.binders,
        )
        if self.shared is not None:
            yield self.shared


def _guest_claims(volume: Object, cluster_id: str) -> tuple[str, ...]:
    reference = (volume.spec or {}).get("claimRef") or {}
    key = f"{reference.get('namespace')}/{reference.get('name')}"
    return (key,) if is_guest(volume, cluster_id) else ()


def _free(volume: Object) -> tuple[str, ...]:
    return () if (volume.spec or {}).get("claimRef") else (FREE,)


class ClaimUsers:
    """Uids of upper pods by upper claim (namespace/name)."""

    def __init__(self) -> None:
        self._claims: dict[str, Sequence[str]] = {}
        self._users: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._blocked: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def add(self, uid: str, keys: Sequence[str]) -> None:
        """Register a pod as a user of its claims."""
        self._claims[uid] = keys
        for key in keys:
            self._users[key][uid] = None

    def block(self, uid: str, key: str) -> None:
        """Register that a pod waits for a lower claim."""
        self._blocked[key][uid] = None

    def of(self, key: str) -> Collection[str]:
        """Return the uids of pods that use a claim."""
        return self._users.get(key, ())

    def unblock(self, key: str) -> Collection[str]:
        """Return the uids of pods that waited for the lower claim, and forget that they waited."""
        return self._blocked.pop(key, ())

    def remove(self, uid: str) -> Sequence[str]:
        """Forget a pod and return its claims; other pods that use or wait for these claims stay registered."""
        keys = self._claims.pop(uid, ())
        for key in keys:
            for pods in (self._users, self._blocked):
                if key in pods:
                    pods[key].pop(uid, None)
                    if not pods[key]:
                        del pods[key]
        return keys
