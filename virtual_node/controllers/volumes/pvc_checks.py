"""Checks before a pod uses a claim in the lower cluster, and before a lower claim is created."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.problems import Problem, claim_problem
from virtual_node.controllers.volumes.caches import VolumeCaches
from virtual_node.controllers.volumes.pvc_requests import ClaimRequests
from virtual_node.translate.storage import pv
from virtual_node.translate.storage import pvc as translate
from virtual_node.translate.storage.shared import is_guest


@dataclass(eq=False, repr=False)
class ClaimChecks:
    """Checks of claims, answered from the caches if possible."""

    context: ClusterContext
    caches: VolumeCaches
    requests: ClaimRequests
    _last_events: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By upper claim: reason and message of its last event."""

    def record_event(self, upper: Object, reason: str, message: str) -> None:
        """Record why an upper claim cannot be used, unless its last event was the same."""
        if self._last_events.get(upper.key) != (reason, message):
            self._last_events[upper.key] = (reason, message)
            self.context.warn(upper, reason, message)

    def forget(self, key: str) -> None:
        """Forget the last event of an upper claim that is gone."""
        self._last_events.pop(key, None)

    def lower(self, key: str, upper: Object | None) -> Object | None:
        """Return our lower claim for an upper claim, from the cache; None: there is none.

        Args:
            key: namespace and name of the upper claim.
            upper: the upper claim; None: it is gone.
        """
        lower = self.caches.lower_claims.store.get(self.context.lower_key(key))
        if lower is None or is_guest(lower, self.context.cluster_id):
            return None  # ``SharedVolumes`` has the claims of guests
        return lower if self.requests.is_owned(lower, key.partition("/")[0], upper) else None

    def mirrored_volume(self, upper: dict[str, Any]) -> str:
        """Return the name of the lower volume that is mirrored as an upper claim's volume; empty: there is none."""
        mirror = self.caches.upper_volumes.store.get(upper["spec"].get("volumeName") or "")
        return pv.lower_name(mirror.to_dict(), self.context.name) if mirror else ""

    def unusable(self, key: str, claim: Object | None) -> Problem | None:
        """Return why no pod in this cluster can use an upper claim, in the kubelet's wording; None: it can be used."""
        name = key.partition("/")[2]
        if claim is None or claim.metadata.deletion_timestamp is not None:
            state = "not found" if claim is None else "is being deleted"
            return claim_problem("FailedMount", f'persistentvolumeclaim "{name}" {state}')
        volume = (claim.spec or {}).get("volumeName")
        if volume and not self.mirrored_volume(claim.to_dict()):
            return claim_problem(
                "FailedAttachVolume",
                f'persistentvolumeclaim "{name}" is bound to volume "{volume}", '
                f"which lower cluster {self.context.name} does not have",
            )
        return None

    async def lower_claim_problem(self, key: str, claim: Object) -> Problem | None:
        """Return a Problem unless the lower claim of that name was made for this upper claim. May read live.

        Args:
            key: namespace and name of the upper claim.
            claim: the upper claim.
        """
        lower = self.lower(key, claim)
        if lower is not None and lower.labels.get(names.LABEL_UPPER_UID) == claim.uid:
            return None
        if await self.requests.made_for(claim.to_dict()) is not None:
            return None
        text = f'persistentvolumeclaim "{claim.name}" has no claim in lower cluster {self.context.name} yet'
        return claim_problem(*(self._last_events.get(key) or ("FailedMount", text)))

    def clone_source_problem(self, upper: dict[str, Any]) -> str:
        """Return why a claim's data source is not in the lower cluster; empty: it is there, or there is none."""
        if what := translate.foreign_source(upper):
            return f"{what} is not mirrored to lower cluster {self.context.name}; only claims can be cloned there"
        for name in translate.source_claims(upper):
            key = f"{upper['metadata']['namespace']}/{name}"
            source = self.caches.upper_claims.store.get(key)
            lower = self.lower(key, source)
            if source is None or lower is None or lower.labels.get(names.LABEL_UPPER_UID) != source.uid:
                return (
                    f'persistentvolumeclaim "{name}", which is to be cloned, '
                    f"has no claim in lower cluster {self.context.name}"
                )
        return ""
