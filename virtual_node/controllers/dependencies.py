"""ConfigMaps and Secrets follow the pods that name them.

``ensure`` is called before a pod is created below: it starts watching what the pod names and has the copies
made. Later changes and deletions above, and meddling below, come through the queue. A copy goes when no pod
of ours needs it any more, or when the upper cluster, asked again, says that its original is gone; an object of the
same name that is not ours is never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from controller_runtime.api import names
from controller_runtime.backoff import ExponentialBackoff
from controller_runtime.controller import Controller, Result
from controller_runtime.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from controller_runtime.informer import Informer
from controller_runtime.objects import Object
from controller_runtime.work_queue import WorkQueue
from virtual_node.controllers import neighbours
from virtual_node.controllers.context import ClusterContext
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.object_watch import KINDS, ObjectKey, ObjectWatches
from virtual_node.controllers.preconditions import patch_only
from virtual_node.controllers.problems import Problem, missing, name_taken, unreadable
from virtual_node.translate import copies, dependencies, ownership, service_account

_UNUSED_GRACE = 60.0
"""Seconds a copy outlives the last pod that named it: the next pod of a Job finds it there."""
_SHARED_AGAIN = 600.0
"""Seconds after which a copy is looked at again that pods of another process may use; their end is no event of ours."""
_WORKERS = 8
ROOT_CA = "kube-root-ca.crt"


class DependencyController:
    """Keeps the lower copies of upper ConfigMaps and Secrets that our pods name."""

    def __init__(
        self,
        context: ClusterContext,
        *,
        namespaces: Namespaces,
        config_maps: Informer,
        secrets: Informer,
        wake: Callable[[str], None],
    ) -> None:
        """Set up.

        Args:
            context: the two clusters.
            namespaces: makes lower namespaces.
            config_maps: lower ConfigMaps that carry our ownership label.
            secrets: lower Secrets that carry our ownership label.
            wake: called with the uid of an upper pod whose dependency has changed.
        """
        self._context = context
        self._namespaces = namespaces
        self._lower = {"ConfigMap": config_maps, "Secret": secrets}
        self._wake = wake
        self._watches = ObjectWatches(context.upper, on_change=self._upper_changed)
        self._users: defaultdict[ObjectKey, set[str]] = defaultdict(set)
        self._needs: dict[str, frozenset[ObjectKey]] = {}
        self._locks: weakref.WeakValueDictionary[ObjectKey, asyncio.Lock] = weakref.WeakValueDictionary()
        self._in_step: dict[ObjectKey, tuple[Object, Object | None]] = {}
        """Originals, and copies that were compared with them and found the same: the thousandth pod that names them
        need not do it again. None: the copy has just been made, and the cache has yet to show it."""
        queue: WorkQueue[ObjectKey] = WorkQueue(
            f"dependencies-{context.name}", rate_limiter=ExponentialBackoff(0.2, 60.0)
        )
        self.controller: Controller[ObjectKey] = Controller(
            f"dependencies-{context.name}", self.reconcile, workers=_WORKERS, queue=queue
        )
        for kind, informer in self._lower.items():
            self._watch_lower(kind, informer)

    async def run(self) -> None:
        """Follow changes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run())
            group.create_task(self._watches.run())

    async def ensure(self, upper: Object, upper_pod: dict[str, Any], namespace: str) -> list[Problem]:
        """Have everything that a pod names there below before the pod is.

        Returns what is missing and mandatory, in the order the pod names it. The pod is woken when that
        changes.
        """
        keys = self._keys(upper.namespace, upper_pod)
        self._needs[upper.uid] = frozenset(keys)
        problems: list[Problem] = []
        for key, need in keys.items():
            self._users[key].add(upper.uid)
            try:
                source = await self._watches.get(key)
            except Forbidden as error:
                problems.append(unreadable(str(key), error))
                continue
            if source is None:
                if need is not None and not need.optional:
                    problems.append(missing(need))
                continue
            problem = await self._copy(key, source)
            if problem is not None:
                problems.append(problem)
        return problems

    def claim(self, upper: Object) -> None:
        """A pod that is below already, from before a restart, still needs what it names.

        Its copies are kept, brought up to date and followed; doing it again does nothing.
        """
        if upper.uid in self._needs:
            return
        keys = self._keys(upper.namespace, upper.to_dict())
        self._needs[upper.uid] = frozenset(keys)
        for key in keys:
            self._users[key].add(upper.uid)
            self.controller.queue.add(key)

    def _keys(
        self, namespace: str, upper_pod: dict[str, Any]
    ) -> dict[ObjectKey, dependencies.Dependency | None]:
        """What a pod needs; None for what it does not name itself."""
        keys: dict[ObjectKey, dependencies.Dependency | None] = {
            ObjectKey(need.kind, namespace, need.name): need for need in dependencies.dependencies(upper_pod)
        }
        if self._context.settings.enable_serviceaccount and service_account.token_requests(upper_pod):
            keys[ObjectKey("ConfigMap", namespace, ROOT_CA)] = None
        return keys

    def keys_of(self, uid: str) -> dict[ObjectKey, frozenset[str]]:
        """The data keys of everything that a pod names and that exists."""
        found = {}
        for key in self._needs.get(uid, frozenset()):
            source = self._watches.peek(key)
            if source is not None:
                found[key] = frozenset([*(source.field("data") or ()), *(source.field("binaryData") or ())])
        return found

    def release(self, uid: str) -> None:
        """The upper pod is gone: what nobody else needs goes after a while."""
        for key in self._needs.pop(uid, frozenset()):
            users = self._users[key]
            users.discard(uid)
            if not users:
                del self._users[key]
                self.controller.queue.add_after(key, _UNUSED_GRACE)

    async def reconcile(self, key: ObjectKey) -> Result | None:
        """Bring one lower copy in step with its upper object, or remove it when it has no user."""
        if key not in self._users:
            self._watches.stop(key)
            self._in_step.pop(key, None)
            return await self._remove(key)
        source = await self._watches.get(key)
        if source is None:
            return await self._remove(key)
        problem = await self._copy(key, source)
        if problem is not None:
            self._context.log.warning("copy is blocked", object=str(key), why=problem.message)
        return None

    def _upper_changed(self, key: ObjectKey) -> None:
        self.controller.queue.add(key)
        for uid in self._users.get(key, ()):
            self._wake(uid)

    def _watch_lower(self, kind: str, informer: Informer) -> None:
        def key_of(copy: Object) -> ObjectKey:
            source = copy.annotations.get(names.ANNOTATION_SOURCE, copy.name)
            upper_namespace = copy.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, copy.namespace)
            return ObjectKey(kind, upper_namespace, source)

        def found(copy: Object, initial: bool) -> None:  # noqa: FBT001 - the informer's signature
            key = key_of(copy)
            if names.LABEL_TOKEN_OF in copy.labels:
                return
            made_by_us = copy.labels.get(names.LABEL_NODE) in self._context.nodes
            # After a restart the pods get time to claim it, then it goes; so does what was to go before we saw it.
            if initial or (made_by_us and (key not in self._users or self._watches.peek(key) is None)):
                self.controller.queue.add_after(key, _UNUSED_GRACE)

        def deleted(copy: Object) -> None:
            self._in_step.pop(key_of(copy), None)
            meddled(copy)

        def meddled(copy: Object) -> None:
            if names.LABEL_TOKEN_OF not in copy.labels and key_of(copy) in self._users:
                self.controller.queue.add(key_of(copy))

        informer.add_handler(on_add=found, on_update=lambda _old, new: meddled(new), on_delete=deleted)

    def _lower_name(self, key: ObjectKey) -> tuple[str, str]:
        """Namespace and name of an object's copy. The root CA's differs: each cluster has its own."""
        name = key.name
        if key.kind == "ConfigMap" and name == ROOT_CA:
            name = service_account.root_ca_name(self._context.cluster_id)
        options = next(iter(self._context.options.values()))
        return options.namespace_map(key.namespace), name

    def _lock(self, key: ObjectKey) -> asyncio.Lock:
        """One writer at a time for one copy; the lock is there while somebody has it or waits for it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def _copy(self, key: ObjectKey, source: Object) -> Problem | None:
        """Have the lower copy there as its original is; a Problem when the name below is not ours."""
        if self._is_in_step(key, source):
            return None
        async with self._lock(key):
            # Whoever had the lock before may have done it.
            return None if self._is_in_step(key, source) else await self._write(key, source)

    def _is_in_step(self, key: ObjectKey, source: Object) -> bool:
        return self._in_step.get(key) == (source, self._cached(key))

    def _cached(self, key: ObjectKey) -> Object | None:
        """An object's copy as the cache has it."""
        return self._lower[key.kind].store.get("/".join(self._lower_name(key)))

    async def _write(self, key: ObjectKey, source: Object) -> Problem | None:
        """Create or patch the lower copy."""
        namespace, name = self._lower_name(key)
        options = next(iter(self._context.options.values()))
        desired = copies.lower_copy(source.to_dict(), options)
        desired["metadata"]["name"] = name
        desired["metadata"]["namespace"] = namespace
        if name != key.name:
            desired["metadata"].setdefault("annotations", {})[names.ANNOTATION_SOURCE] = key.name
        resource = KINDS[key.kind]
        existing = self._cached(key)
        current = existing.to_dict() if existing is not None else None
        if current is None:
            await self._namespaces.ensure(namespace, upper_name=key.namespace)
            try:
                await self._context.lower.create(resource, desired, namespace=namespace)
            except AlreadyExists:
                current = await self._context.lower.get(resource, name, namespace=namespace)
            except NotFound:
                self._namespaces.forget(namespace)
                raise
            else:
                self._in_step[key] = (source, None)
                return None
        if not ownership.is_owned(current["metadata"].get("labels") or {}, self._context.cluster_id):
            return name_taken(f"{key.kind} {namespace}/{name}", self._context.name)
        patch = copies.copy_patch(current, desired)
        if patch is None:
            if existing is not None:
                self._in_step[key] = (source, existing)
            return None
        if not await self._is_ours_to_change(key, source):
            return None  # the change that our cache lacks brings us here again
        uid = current["metadata"]["uid"]
        try:
            await patch_only(self._context.lower, resource, name, patch, uid=uid, namespace=namespace)
        except Invalid:
            # Immutable, or of another type: only a new object can hold the new content.
            await self._context.lower.delete(resource, name, namespace=namespace, uid=uid)
            try:
                await self._context.lower.create(resource, desired, namespace=namespace)
            except AlreadyExists as error:
                # Somebody was quicker: whose it is tells the next look.
                raise Conflict(error.message, code=409, reason="Conflict") from error
        return None

    async def _is_ours_to_change(self, key: ObjectKey, source: Object) -> bool:
        was_in_step = key in self._in_step and self._in_step[key][0] is source
        return not was_in_step or await neighbours.is_current(self._context.upper, KINDS[key.kind], source)

    async def _remove(self, key: ObjectKey) -> Result | None:
        namespace, name = self._lower_name(key)
        async with self._lock(key):
            copy = self._cached(key)
            if copy is None:
                return None
            has_neighbours = await neighbours.have_pods_in(self._context, namespace)
            # What is gone above is of use to nobody; our watch of it may be behind, so we ask.
            if (has_neighbours or key in self._users) and await self._exists_above(key):
                return None if key in self._users else Result(requeue_after=_SHARED_AGAIN)
            with contextlib.suppress(NotFound, Conflict):
                await self._context.lower.delete(KINDS[key.kind], name, namespace=namespace, uid=copy.uid)
            return None

    async def _exists_above(self, key: ObjectKey) -> bool:
        try:
            await self._context.upper.get(KINDS[key.kind], key.name, namespace=key.namespace)
        except NotFound:
            return False
        return True
