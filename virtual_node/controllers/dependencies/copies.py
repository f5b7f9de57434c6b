"""Creates, updates, holds and deletes lower copies of upper objects. Never touches unmanaged objects.

The caller (``config_maps_and_secrets``) decides which objects have a copy, and when.

A lower pod must never read a ConfigMap or Secret that we did not create. So for every reference of a lower
pod, an object of ours exists under that name for as long as the pod may read it. If the upper cluster has no
such object (an optional reference, an image pull secret, a deleted object), our object is a placeholder
without data, which an optional reference treats as a missing object. When the upper object appears, its
content is written to the placeholder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from controller_runtime.cache.informer import Informer
from controller_runtime.client.reads import find
from controller_runtime.errors import AlreadyExists, Conflict, Invalid
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.util.keyed_locks import KeyedLocks
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base import peers
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.object_key import KINDS, ObjectKey
from virtual_node.controllers.base.preconditions import delete_only, patch_only
from virtual_node.controllers.base.problems import Problem, admin_access, name_taken
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.translate.base import ownership
from virtual_node.translate.objects import copies, resource_claims
from virtual_node.translate.pods import service_account, token_secrets

_SHARED_AGAIN = 600.0
"""Seconds until the next check of a copy that pods of another process may use. This process gets no event
when those pods are deleted."""


@dataclass(eq=False, repr=False)
class Copies:
    """Writes the copies in one lower cluster."""

    context: ClusterContext
    namespaces: Namespaces
    lower: Mapping[str, Informer]
    """By kind, the lower objects that carry our ownership label."""
    _locks: KeyedLocks[ObjectKey] = field(default_factory=KeyedLocks)
    """One writer per copy."""
    _in_step: dict[ObjectKey, tuple[Object | None, Object | None]] = field(default_factory=dict)
    """By upper object: its state (None: missing, so the copy is a placeholder), and the copy that
    equalled it at the last comparison, so that further pods with this reference need no comparison. A
    copy of None was just written and is not in the cache yet."""

    def forget(self, key: ObjectKey) -> None:
        """Compare the copy again at the next call."""
        self._in_step.pop(key, None)

    async def follow(self, key: ObjectKey, source: Object) -> Problem | None:
        """Make the lower copy equal to its upper object; return a Problem if its name is taken or it is refused.

        Raises:
            ApiError: a cluster refuses or does not answer; the caller retries.
        """
        if key.kind in resource_claims.KINDS and resource_claims.wants_admin_access(source.to_dict()):
            return admin_access(str(key))
        return await self._make(key, source)

    async def hold(self, key: ObjectKey, *, keep_content: bool) -> Problem | None:
        """Occupy the lower name of a missing upper object; return a Problem if the name is taken.

        Args:
            key: the missing upper object.
            keep_content: leave an existing copy as it is, as a kubelet keeps the files of a mandatory volume
                when their Secret is deleted. Otherwise the copy is emptied.

        Raises:
            ApiError: as ``follow``.
        """
        copy = self._cached(key)
        if keep_content and copy is not None and self._is_owned(copy, key):
            return None
        return await self._make(key, None)

    async def remove(self, key: ObjectKey, *, is_needed: Callable[[], bool]) -> Result | None:
        """Delete a copy that none of our pods needs; return a requeue while pods of another process may need it.

        Args:
            key: the upper object.
            is_needed: reports whether one of our pods has referenced the object meanwhile; then the copy
                stays.

        Raises:
            ApiError: a cluster refuses or does not answer; the caller retries.
        """
        self.forget(key)
        namespace, _ = self._lower_name(key)
        async with self._locks.of(key):
            copy = self._cached(key)
            if copy is None or not self._is_owned(copy, key):
                return None
            # Other processes do not need a copy of a deleted upper object. Our watch of it may be behind, so
            # read live.
            if await peers.have_pods_in(self.context, namespace) and await self._upper_exists(key):
                return Result(requeue_after=_SHARED_AGAIN)
            if is_needed():
                return None
            await delete_only(self.context.lower, KINDS[key.kind], copy)
            return None

    async def _make(self, key: ObjectKey, source: Object | None) -> Problem | None:
        if self._is_up_to_date(key, source):
            return None
        async with self._locks.of(key):
            # The previous holder of the lock may have written the copy.
            return None if self._is_up_to_date(key, source) else await self._write(key, source)

    async def _write(self, key: ObjectKey, source: Object | None) -> Problem | None:
        desired = self._desired(key, source)
        resource = KINDS[key.kind]
        existing = self._cached(key)
        current = existing
        if current is None:
            problem = (
                None if source is None else self.context.cannot_grow(copies.without_values(source), None)
            )
            if problem := problem or await self.namespaces.ensure(key.namespace):
                return problem
            current = await self.namespaces.create_inside(resource, desired)
            if current is None:
                self._in_step[key] = (source, None)
                return None
        if not self._is_owned(current, key, source):
            return name_taken(f"{key.kind} {current.key}", self.context.name)
        patch = copies.copy_patch(
            current.to_dict(), desired, source.to_dict() if source is not None else None
        )
        if patch is None:
            if existing is not None:
                self._in_step[key] = (source, existing)
            return None
        if (
            source is not None
            and (full := self.context.cannot_grow(copies.without_values(source), current)) is not None
        ):
            return full
        if not await self._is_ours_to_change(key, source):
            return None  # our cache is behind; the missing event requeues this key
        await self._change(resource, current, desired, patch)
        return None

    async def _change(
        self, resource: Resource, current: Object, desired: dict[str, Any], patch: dict[str, Any]
    ) -> None:
        """Patch a copy, or replace it if it cannot be patched."""
        lower = self.context.lower
        if not copies.must_be_replaced(current.to_dict(), desired):
            with contextlib.suppress(
                Invalid
            ):  # immutable or of another type: the new content needs a new object
                await patch_only(lower, resource, current, patch)
                return
        await lower.delete(resource, current.name, namespace=current.namespace, uid=current.uid)
        try:
            await lower.create(resource, desired, namespace=current.namespace)
        except AlreadyExists as error:
            # Another client was faster, or pods still use the old claim; the next reconcile checks the owner.
            raise Conflict(error.message, code=409, reason="Conflict") from error

    def _desired(self, key: ObjectKey, source: Object | None) -> dict[str, Any]:
        namespace, name = self._lower_name(key)
        options = next(iter(self.context.options.values()))
        if source is None:
            desired = copies.placeholder(key.kind, upper_namespace=key.namespace, options=options)
        else:
            desired = copies.lower_copy(source.to_dict(), options)
        desired["metadata"]["name"] = name
        desired["metadata"]["namespace"] = namespace
        if name != key.name:
            desired["metadata"].setdefault("annotations", {})[names.ANNOTATION_SOURCE] = key.name
        return desired

    async def _is_ours_to_change(self, key: ObjectKey, source: Object | None) -> bool:
        """Report whether the upper cluster confirms the state in our cache, so that the copy may be written.

        Reads live if the copy changed and the cached upper object did not, because then either the copy was
        edited, or another process knows a later state of the upper object.
        """
        if source is None:
            return not await self._upper_exists(key)
        was_up_to_date = key in self._in_step and self._in_step[key][0] is source
        return not was_up_to_date or await peers.is_current(self.context.upper, KINDS[key.kind], source)

    def _is_up_to_date(self, key: ObjectKey, source: Object | None) -> bool:
        return self._in_step.get(key) == (source, self._cached(key))

    def _cached(self, key: ObjectKey) -> Object | None:
        return self.lower[key.kind].store.get("/".join(self._lower_name(key)))

    def _is_owned(self, copy: Object, key: ObjectKey, source: Object | None = None) -> bool:
        if token_secrets.token_owner(self._lower_name(key)[1], copy.labels):
            return False  # a token Secret: ours, but not a copy
        uid = source.uid if source is not None else ""
        return ownership.is_owned_by(copy, self.context.cluster_id, key.namespace, upper_uid=uid)

    def _lower_name(self, key: ObjectKey) -> tuple[str, str]:
        """Return namespace and name of an object's copy. The root CA's copy is renamed: each cluster has a root CA."""
        name = key.name
        if key.kind == "ConfigMap" and name == service_account.ROOT_CA:
            name = service_account.root_ca_name(self.context.cluster_id)
        return self.context.lower_namespace(key.namespace), name

    async def _upper_exists(self, key: ObjectKey) -> bool:
        return await find(self.context.upper, KINDS[key.kind], key.name, namespace=key.namespace) is not None
