"""Lower namespaces: made when a pod first needs one, kept in step, removed when nobody needs them any more.

Namespaces that we made carry the ownership label; those that were there before are left as they are, for ever.
One of ours goes when its upper namespace is gone and nothing in it is anybody else's; a volume claim counts as
somebody's even if we made it, for it holds data.
"""

from __future__ import annotations

import contextlib

from controller_runtime import resources
from controller_runtime.api import names, namespace_map
from controller_runtime.backoff import ExponentialBackoff
from controller_runtime.controller import Controller, Result
from controller_runtime.errors import AlreadyExists, Conflict, NotFound
from controller_runtime.informer import Informer
from controller_runtime.objects import Object
from controller_runtime.work_queue import WorkQueue
from virtual_node.config import NamespaceConfig
from virtual_node.controllers.context import ClusterContext
from virtual_node.controllers.leftovers import Leftovers, UnknownError
from virtual_node.controllers.preconditions import patch_only
from virtual_node.translate import namespaces as translate

_OURS_ENDING = 5.0
"""Seconds between two looks while our own pods in a namespace end."""
_OTHERS_THERE = 600.0
"""Seconds between two looks while somebody else's objects keep a namespace alive."""


class Namespaces:
    """Sees to it that a namespace exists below before anything is created in it, and goes after everything has."""

    def __init__(
        self, context: ClusterContext, *, upper: Informer, lower: Informer, config: NamespaceConfig
    ) -> None:
        """Set up.

        Args:
            context: the two clusters.
            upper: all namespaces of the upper cluster.
            lower: namespaces of the lower cluster that carry our ownership label.
            config: what the user says about namespaces.
        """
        self._context = context
        self._upper = upper
        self._lower = lower
        self._config = config
        self._leftovers = Leftovers(context.lower, context.cluster_id)
        self._known: set[str] = set()
        self._said: dict[str, str] = {}
        queue: WorkQueue[str] = WorkQueue(
            f"namespaces-{context.name}", rate_limiter=ExponentialBackoff(1.0, 300.0)
        )
        self.controller: Controller[str] = Controller(
            f"namespaces-{context.name}", self.reconcile, workers=1, queue=queue
        )
        self._watch()

    async def run(self) -> None:
        """Follow changes until cancelled."""
        await self._upper.wait_synced()
        await self._lower.wait_synced()
        await self.controller.run()

    def allowed(self, upper_namespace: str) -> bool:
        """Whether pods of that upper namespace may go to this lower cluster."""
        return namespace_map.allowed(upper_namespace, self._config.allowed)

    async def ensure(self, namespace: str, *, upper_name: str) -> None:
        """Create a namespace below unless it is there.

        Args:
            namespace: the lower one.
            upper_name: the upper one that it stands for.

        Raises:
            ApiError: the lower cluster refuses.
        """
        if namespace in self._known:
            return
        lower = self._context.lower
        try:
            await lower.get(resources.NAMESPACES, namespace)
        except NotFound:
            upper = self._upper.store.get(upper_name)
            body = translate.lower_namespace(
                upper.to_dict() if upper is not None else None,
                name=namespace,
                upper_name=upper_name,
                cluster_id=self._context.cluster_id,
            )
            with contextlib.suppress(AlreadyExists):
                await lower.create(resources.NAMESPACES, body)
                self._context.log.info("namespace created below", namespace=namespace)
        self._known.add(namespace)

    def forget(self, namespace: str) -> None:
        """The lower cluster says that the namespace is gone: look again next time."""
        self._known.discard(namespace)

    async def reconcile(self, namespace: str) -> Result | None:
        """Bring one lower namespace of ours in step with its upper one, or remove it."""
        lower = self._lower.store.get(namespace)
        if lower is None or lower.metadata.deletion_timestamp is not None:
            self._known.discard(namespace)
            return None
        upper = self._upper.store.get(lower.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, namespace))
        if upper is not None:
            patch = translate.namespace_patch(upper.to_dict(), lower.to_dict())
            if patch is not None:
                await patch_only(self._context.lower, resources.NAMESPACES, namespace, patch, uid=lower.uid)
            return None
        return await self._remove(lower)

    async def _remove(self, lower: Object) -> Result | None:
        if not self._config.remove or await self._exists_above(lower):
            return None
        try:
            found = await self._leftovers.find(lower.name)
        except UnknownError as error:
            self._say(lower.name, f"cannot be seen to be empty: {error}")
            return Result(requeue_after=_OTHERS_THERE)
        if found.others:
            self._say(lower.name, f"holds objects that are not ours: {', '.join(found.others[:5])}")
            return Result(requeue_after=_OTHERS_THERE)
        if found.pods:
            return Result(requeue_after=_OURS_ENDING)
        if await self._exists_above(lower):
            return None  # made again while we looked, which takes seconds: new pods may be there by now
        with contextlib.suppress(NotFound, Conflict):
            await self._context.lower.delete(resources.NAMESPACES, lower.name, uid=lower.uid)
            self._context.log.info("namespace removed below", namespace=lower.name)
        self._known.discard(lower.name)
        return None

    async def _exists_above(self, lower: Object) -> bool:
        """Ask, for a cache may be behind: after an outage it learns late of namespaces that are in use already."""
        name = lower.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, lower.name)
        try:
            await self._context.upper.get(resources.NAMESPACES, name)
        except NotFound:
            return False
        return True

    def _say(self, namespace: str, why: str) -> None:
        if self._said.get(namespace) != why:
            self._said[namespace] = why
            self._context.log.info("namespace is kept below", namespace=namespace, why=why)

    def _watch(self) -> None:
        add = self.controller.queue.add

        def upper_changed(namespace: Object) -> None:
            add(self._context.lower_namespace(namespace.name))

        def lower_changed(namespace: Object) -> None:
            add(namespace.name)

        self._upper.add_handler(on_update=lambda _old, new: upper_changed(new), on_delete=upper_changed)
        self._lower.add_handler(
            on_add=lambda namespace, _initial: lower_changed(namespace),
            on_update=lambda _old, new: lower_changed(new),
            on_delete=lower_changed,
        )
