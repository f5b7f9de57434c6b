"""Lets the lower scheduler choose a node for new volumes, before the pod that uses them is bound in the upper cluster.

kube-scheduler binds a pod only after its claims are bound, but a lower WaitForFirstConsumer claim is bound
only after a pod uses it, so each would wait for the other. Therefore a placeholder pod is created in the
lower cluster. It has the pod's resources, selectors and claims, and is deleted as soon as its claims are
bound, normally before it starts. If no lower node fits, the upper scheduler must choose another virtual node.

The upper pod that waits for a claim is found without a LIST per claim and without caching a namespace's pods. Every
user can annotate claims with a selected node, and create pods that no scheduler can place. So all claims of a namespace
share one LIST for some seconds, and only the name of the oldest pod per claim is kept.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from clusterset.admission import Refusal
from clusterset.model import names
from clusterset.model.autoscaling import MARGIN_SECONDS
from clusterset.model.pod.conditions import claim_names
from controller_runtime import resources
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.translation_budget import TooLargeError, TranslationBudget, json_size
from controller_runtime.client.client import find
from controller_runtime.errors import AlreadyExists, Forbidden, Invalid
from controller_runtime.objects import Object, ObjectMeta, from_dict
from controller_runtime.store import Store
from controller_runtime.util.event_loop import run_apart
from controller_runtime.util.keyed import KeyedLocks
from virtual_node.controllers.base.context import INDEX_CLAIM, ClusterContext
from virtual_node.controllers.base.preconditions import delete_only
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.volumes.caches import VolumeCaches
from virtual_node.translate.base import ownership
from virtual_node.translate.pods import lower_pod
from virtual_node.translate.storage import binder_pod as translate

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


_PATIENCE = 20.0
"""Seconds for which the lower scheduler must report that no node fits before the upper scheduler must choose
another virtual node for the claim, unless the lower cluster can add a node."""


@dataclass(eq=False, repr=False)
class VolumeBinder:
    """Creates and deletes placeholder pods, one for each waiting upper pod."""

    context: ClusterContext
    caches: VolumeCaches
    namespaces: Namespaces
    is_guest: Callable[[Object], bool] = lambda _claim: False
    """Reports whether the volume of an upper claim is on shared storage, and of another cluster. Every lower node reaches it, and
    its lower claim is created after the pod is bound, so no placeholder uses it."""

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._waiting = WaitingPods(self.context, self.caches.upper_claims.store)

    def on_change(self, changed: Callable[[str], None]) -> None:
        """Register a callback that gets the upper claims (namespace/name) of every placeholder that changes."""

        def requeue_claims(pod: Object) -> None:
            for key in translate.upper_claims(pod.annotations):
                changed(key)

        self.caches.binders.on_change(requeue_claims, requeue_claims)

    async def bind(self, key: str, node: str) -> str:
        """Advance the binding of a claim's volume, and return why it is impossible; empty: it is in progress.

        Args:
            key: the upper claim.
            node: the virtual node that the upper scheduler has selected.
        """
        placeholder = self._of(key)
        consumer = await self._waiting.oldest(key)
        if placeholder is not None:
            if (
                consumer is None
                or placeholder.labels.get(translate.LABEL_BINDER_OF) != consumer["metadata"]["uid"]
            ):
                await self._remove(placeholder)
                return ""
            message = translate.unschedulable(
                placeholder.to_dict(), now=datetime.now(UTC), patience=self._patience(node)
            )
            if message:
                await self._remove(placeholder)
            return message
        if consumer is None or not self._are_ours(consumer):
            return ""
        return await self._create(consumer, node)

    def _patience(self, node: str) -> float:
        """Return for how many seconds a placeholder may be unschedulable: as for pods, until a new lower node can be there."""
        config = self.context.nodes.get(node)
        growth = config.autoscaling if config is not None else None
        return _PATIENCE if growth is None else max(_PATIENCE, growth.provision_seconds + MARGIN_SECONDS)

    async def done(self, key: str) -> None:
        """Delete the placeholder of a bound or deleted claim, unless the placeholder has another unbound claim."""
        placeholder = self._of(key)
        if placeholder is None:
            return
        for claim in translate.claims_of(placeholder.annotations):
            found = self.caches.lower_claims.store.get(f"{placeholder.namespace}/{claim}")
            if found is None or found.metadata.deletion_timestamp is not None:
                continue
            if (found.status or {}).get("phase") != "Bound":
                return
        await self._remove(placeholder)

    async def abandon(self, key: str) -> None:
        """Delete the placeholder of a claim for which another node was selected; it would keep the lower claim from being deleted."""
        if (placeholder := self._of(key)) is not None:
            await self._remove(placeholder)

    async def refusal(self, key: str, node: str) -> str | None:
        """Return why this cluster cannot provide a volume for the pod that waits for a claim.

        Empty: the cluster can provide it. None: no unbound upper pod references the claim.

        Args:
            key: the upper claim.
            node: the virtual node that the upper scheduler has selected.
        """
        consumer = await self._waiting.oldest(key)
        return None if consumer is None else (await self._placeholder(consumer, node))[1]

    async def beside(self, key: str) -> list[str]:
        """Return the other claims (namespace/name) of the unbound upper pod that waits for a claim."""
        consumer = await self._waiting.oldest(key)
        namespace = key.partition("/")[0]
        found = [] if consumer is None else [f"{namespace}/{name}" for name in claim_names(consumer)]
        return [other for other in found if other != key]

    def _are_ours(self, consumer: dict[str, Any]) -> bool:
        """Report whether each claim of a placeholder has a lower claim made for it; a placeholder must use no other claim."""
        for name in self._claims_of(consumer):
            key = f"{consumer['metadata']['namespace']}/{name}"
            upper = self.caches.upper_claims.store.get(key)
            lower = self.caches.lower_claims.store.get(self.context.lower_key(key))
            if upper is None or lower is None or lower.labels.get(names.LABEL_UPPER_UID) != upper.uid:
                return False
        return True

    def _claims_of(self, consumer: dict[str, Any]) -> list[str]:
        """Return the claims of a pod that its placeholder uses."""
        namespace, store = consumer["metadata"]["namespace"], self.caches.upper_claims.store
        found = ((name, store.get(f"{namespace}/{name}")) for name in claim_names(consumer))
        return [name for name, claim in found if claim is None or not self.is_guest(claim)]

    async def _create(self, consumer: dict[str, Any], node: str) -> str:
        """Create the placeholder; return why the policy, the node pool or the lower cluster forbids it, empty: none does."""
        body, why = await self._placeholder(consumer, node)
        if why:
            return why
        namespace = body["metadata"]["namespace"]
        try:
            with self.namespaces.in_use(namespace):
                uid = await self.namespaces.uid(namespace)
                # As for a lower pod. Otherwise a controller of the lower cluster that selects its labels would adopt it.
                body["metadata"]["ownerReferences"] = [ownership.controller_reference(namespace, uid)]
                await self.context.lower.create(resources.PODS, body, namespace=namespace)
        except AlreadyExists:
            return ""
        except (Forbidden, Invalid) as error:
            # A quota, Pod Security or a webhook, which would refuse the pod, too.
            return f"it refuses the placeholder pod: {error.message}"
        self.context.log.info(
            "placeholder pod created for volumes",
            pod=f"{consumer['metadata']['namespace']}/{consumer['metadata']['name']}",
        )
        return ""

    async def _placeholder(self, consumer: dict[str, Any], node: str) -> tuple[dict[str, Any], str]:
        """Return the placeholder of a pod, and why the lower cluster refuses that pod; empty: it does not."""
        claims = self._claims_of(consumer)
        try:
            return await run_apart(
                functools.partial(self._translated, consumer, node, claims), size=json_size(consumer)
            )
        except TooLargeError as error:
            return {}, self.context.rules.too_large(error)

    def _translated(
        self, consumer: dict[str, Any], node: str, claims: Sequence[str]
    ) -> tuple[dict[str, Any], str]:
        """Return the result of ``_placeholder``, without IO.

        Raises:
            TooLargeError: the translation exceeds its budget.
        """
        options, budget = self.context.options[node], TranslationBudget()
        as_bound = {**consumer, "spec": {**consumer["spec"], "nodeName": node}}
        admitted = self.context.rules.admit(as_bound, options, budget)
        if isinstance(admitted, Refusal):
            return {}, admitted.reason
        lower = lower_pod.created(as_bound, options, admitted, budget)
        body = translate.binder_pod(
            lower,
            uid=consumer["metadata"]["uid"],
            cluster_id=self.context.cluster_id,
            claims=claims,
            image=self.context.config.volumes.binder_image,
        )
        return body, ""

    async def _remove(self, placeholder: Object) -> None:
        if placeholder.metadata.deletion_timestamp is not None:
            return
        await delete_only(self.context.lower, resources.PODS, placeholder, grace_period_seconds=0)

    def _of(self, key: str) -> Object | None:
        return next(iter(self.caches.binders.store.by_index(INDEX_CLAIM, key)), None)
