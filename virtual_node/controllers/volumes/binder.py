"""Has the lower scheduler choose a node for new volumes, before the pod that wants them is bound above.

kube-scheduler binds a pod only after its claims are bound, a WaitForFirstConsumer claim below is bound only once it
has a consumer: each would wait for the other. So a placeholder takes the pod's place below. It asks for the same
resources, selectors and claims, is deleted as soon as its claims are bound (which is before it starts), and makes way
for the pod. When no lower node can take it, the upper scheduler is told to choose another virtual node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.api.policy.decision import summary, violations
from controller_runtime.api.policy.scheduling import keep_off_control_plane
from controller_runtime.errors import AlreadyExists, Conflict, NotFound
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.volumes.caches import VolumeCaches
from virtual_node.controllers.volumes.waiting_pods import WaitingPods
from virtual_node.translate.pods import lower_pod, node_pools, volumes
from virtual_node.translate.storage import binder_pod as translate

_PATIENCE = 20.0
"""Seconds a lower scheduler may say that nothing fits before the upper one is told."""


class VolumeBinder:
    """Makes and removes placeholders; one for each upper pod that waits."""

    def __init__(self, context: ClusterContext, caches: VolumeCaches) -> None:
        self._context = context
        self._caches = caches
        self._waiting = WaitingPods(context, caches.upper_claims.store)

    def on_change(self, changed: Callable[[str], None]) -> None:
        """Be told the claims (namespace/name above) of every placeholder that changes."""

        def tell(pod: Object) -> None:
            namespace = pod.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, "")
            for claim in _claims(pod):
                changed(f"{namespace}/{claim}")

        self._caches.binders.add_handler(
            on_add=lambda pod, _initial: tell(pod), on_update=lambda _old, new: tell(new), on_delete=tell
        )

    async def bind(self, key: str, node: str) -> str:
        """Have a claim's volume bound; returns why that cannot be, empty while it is under way.

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
            said = translate.unschedulable(placeholder.to_dict(), now=datetime.now(UTC), patience=_PATIENCE)
            if said:
                await self._remove(placeholder)
            return said
        if consumer is None or not self._are_ours(consumer):
            return ""
        return await self._create(consumer, node)

    async def done(self, key: str) -> None:
        """A claim needs no placeholder any more, for it is bound or going; it goes when none of its claims does."""
        placeholder = self._of(key)
        if placeholder is None:
            return
        for claim in _claims(placeholder):
            found = self._caches.lower_claims.store.get(f"{placeholder.namespace}/{claim}")
            if found is None or found.metadata.deletion_timestamp is not None:
                continue
            if (found.status or {}).get("phase") != "Bound":
                return
        await self._remove(placeholder)

    async def refusal(self, key: str, node: str) -> str | None:
        """Return why this cluster takes no volume for the pod that waits for a claim.

        Empty: the volume can be made. None: no upper pod that is not bound yet names the claim.

        Args:
            key: the upper claim.
            node: the virtual node that the upper scheduler has selected.
        """
        consumer = await self._waiting.oldest(key)
        return None if consumer is None else self._placeholder(consumer, node)[1]

    def _are_ours(self, consumer: dict[str, Any]) -> bool:
        """Whether each claim of a pod has a lower one that was made for it: the placeholder must use no other."""
        namespace = consumer["metadata"]["namespace"]
        lower_namespace = self._context.lower_namespace(namespace)
        for name in volumes.claim_names(consumer):
            upper = self._caches.upper_claims.store.get(f"{namespace}/{name}")
            lower = self._caches.lower_claims.store.get(f"{lower_namespace}/{name}")
            if upper is None or lower is None or lower.labels.get(names.LABEL_UPPER_UID) != upper.uid:
                return False
        return True

    async def _create(self, consumer: dict[str, Any], node: str) -> str:
        """Make the placeholder; why that is of no use, empty when it was made."""
        body, why = self._placeholder(consumer, node)
        if why:
            return why
        with contextlib.suppress(AlreadyExists):
            await self._context.lower.create(resources.PODS, body, namespace=body["metadata"]["namespace"])
            self._context.log.info(
                "placeholder for volumes",
                pod=f"{consumer['metadata']['namespace']}/{consumer['metadata']['name']}",
            )
        return ""

    def _placeholder(self, consumer: dict[str, Any], node: str) -> tuple[dict[str, Any], str]:
        """Return the placeholder of a pod, and why the lower cluster cannot take that pod; empty: it can."""
        options = self._context.options[node]
        as_bound = {**consumer, "spec": {**consumer["spec"], "nodeName": node}}
        lower = lower_pod.lower_pod(as_bound, options)
        rules = self._context.policy.of(consumer["metadata"]["namespace"])
        if found := violations(lower, rules):
            return {}, f"lower cluster {self._context.name} does not take the pod: {summary(found)}"
        lower["spec"] = keep_off_control_plane(lower["spec"], rules)
        body = translate.binder_pod(
            lower,
            uid=consumer["metadata"]["uid"],
            cluster_id=self._context.cluster_id,
            claims=volumes.claim_names(consumer),
            image=self._context.config.volumes.binder_image,
        )
        pool = self._context.nodes[node].node_selector
        if why := node_pools.contradiction(body["spec"], pool, node_name=node, cluster=self._context.name):
            return {}, why
        node_pools.keep_to(body["spec"], pool)
        return body, ""

    async def _remove(self, placeholder: Object) -> None:
        if placeholder.metadata.deletion_timestamp is not None:
            return
        with contextlib.suppress(NotFound, Conflict):
            await self._context.lower.delete(
                resources.PODS,
                placeholder.name,
                namespace=placeholder.namespace,
                uid=placeholder.uid,
                grace_period_seconds=0,
            )

    def _of(self, key: str) -> Object | None:
        namespace, _, name = key.partition("/")
        for placeholder in self._caches.binders.store.list():
            if placeholder.annotations.get(names.ANNOTATION_UPPER_NAMESPACE) == namespace and name in _claims(
                placeholder
            ):
                return placeholder
        return None


def _claims(placeholder: Object) -> list[str]:
    return [one for one in placeholder.annotations.get(translate.ANNOTATION_CLAIMS, "").split(",") if one]
