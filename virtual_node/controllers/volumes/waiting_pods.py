"""Finds the upper pod that waits for a claim, without a LIST per claim and without caching a namespace's pods.

Every user can annotate claims with a selected node, and create pods that no scheduler can place. So all
claims of a namespace share one LIST for some seconds, and only the name of the oldest pod per claim is kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clusterset.model.pod.conditions import claim_names
from controller_runtime import resources
from controller_runtime.apimachinery import matching
from controller_runtime.client.client import find
from controller_runtime.objects import Object, ObjectMeta, from_dict
from controller_runtime.store import Store
from controller_runtime.util.keyed_locks import KeyedLocks
from virtual_node.controllers.base.context import ClusterContext

_PAGE = 100
"""Pods per page; one pod may have more than 1 MiB."""
_FRESH, _PER_SECOND, _LONGEST = 5.0, 10.0, 60.0
"""Seconds for which the result of a LIST is used: at least, per second that the LIST took, and at most."""
_DROPPED = Object(ObjectMeta(), "", "")


Oldest = dict[str, tuple[str, str]]
"""By claim, for existing claims only: creation time and name of the oldest unbound pod that references it."""


class _Listed(NamedTuple):
    """The result of one LIST."""

    by_claim: Oldest
    until: float


@dataclass(eq=False, repr=False)
class WaitingPods:
    """Unbound pods of the upper cluster, by the claims that they reference."""

    context: ClusterContext
    claims: Store
    """The upper claims; references to any other claim are ignored."""
    _listed: dict[str, _Listed] = field(default_factory=dict)
    _locks: KeyedLocks[str] = field(default_factory=KeyedLocks)

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._selects = matching.compile_selector(self.context.config.pod_selector)

    async def oldest(self, key: str) -> dict[str, Any] | None:
        """Return the oldest unbound pod that references a claim; the pod itself is read live.

        None: there is none, or the last LIST, which is used for up to a minute, is outdated.

        Args:
            key: namespace and name of the upper claim.

        Raises:
            ApiError: pods cannot be read.
        """
        namespace, _, name = key.partition("/")
        found = (await self._by_claim(namespace)).get(name)
        if found is None:
            return None
        pod = await find(self.context.upper, resources.PODS, found[1], namespace=namespace)
        if pod is None:
            return None
        phase = (pod.get("status") or {}).get("phase")
        is_unbound = not pod["spec"].get("nodeName") and phase == "Pending"
        return pod if is_unbound and name in self._claims_of(from_dict(pod)) else None

    async def _by_claim(self, namespace: str) -> Oldest:
        now = asyncio.get_running_loop().time
        async with self._locks.of(namespace):
            listed = self._listed.get(namespace)
            if listed is None or listed.until <= now():
                started = now()
                by_claim = await self._list(namespace)
                seconds = min(max(_FRESH, (now() - started) * _PER_SECOND), _LONGEST)
                self._listed = {key: one for key, one in self._listed.items() if one.until > now()}
                listed = self._listed[namespace] = _Listed(by_claim, now() + seconds)
            return listed.by_claim

    async def _list(self, namespace: str) -> Oldest:
        by_claim: Oldest = {}

        def note(pod: Object) -> Object:
            waiting = (pod.metadata.creation_timestamp or "", pod.name)
            for name in self._claims_of(pod):
                # Names of claims that do not exist must not use memory.
                if self.claims.get(f"{namespace}/{name}") is not None:
                    by_claim[name] = min(waiting, by_claim.get(name, waiting))
            return _DROPPED

        await self.context.upper.list(
            resources.PODS,
            namespace=namespace,
            field_selector="spec.nodeName=,status.phase=Pending",
            page_size=_PAGE,
            transform=note,
        )
        return by_claim

    def _claims_of(self, pod: Object) -> list[str]:
        """Return a pod's claims; empty if this cluster does not select the pod or it is being deleted."""
        if pod.metadata.deletion_timestamp is not None or not self._selects(pod.labels):
            return []
        return claim_names({"metadata": {"name": pod.name}, "spec": pod.spec})
