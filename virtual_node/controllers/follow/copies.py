"""Creates, updates and deletes the lower copy of one followed object. Never touches unmanaged objects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from controller_runtime.errors import Conflict
from controller_runtime.objects import Object
from virtual_node.controllers.base import peers
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import delete_only, patch_only
from virtual_node.controllers.base.problems import Problem, followed_contested, followed_name_taken
from virtual_node.controllers.follow.kinds import Kind
from virtual_node.controllers.follow.repairs import Repairs
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.translate.base import ownership
from virtual_node.translate.follow.copies import copy_of, copy_patch
from virtual_node.translate.follow.view import selected_nodes

INDEX_UPPER = "upper"
_SETTLE = 10.0
"""Seconds for which a copy must have been stricter than wanted before a looser ``spec`` is written, because the states
of the two clusters do not arrive at the same time."""


def upper_key(copy: Object) -> Iterable[str]:
    """Return the key of the upper object that a copy was created for."""
    name = copy.annotations.get(names.ANNOTATION_SOURCE, copy.name)
    return (f"{ownership.upper_namespace(copy)}/{name}",)


@dataclass(eq=False, repr=False)
class FollowedCopies:
    """Writes the copies of one kind in one lower cluster."""

    context: ClusterContext
    kind: Kind
    namespaces: Namespaces
    _compared: dict[str, Object] = field(default_factory=dict)
    """Upper objects, by key, in the state with which their copies were last compared."""
    _strict_since: dict[str, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    """Loop time since which a copy has been stricter than its upper object, and the last wanted ``spec``, by upper key."""
    _repairs: Repairs = field(default_factory=Repairs)
    _unused: dict[str, dict[str, str]] = field(default_factory=dict)
    """Lower uids of copies that may be deleted because none of our pods uses them, by upper key and lower namespace."""

    def __post_init__(self) -> None:
        """Create without any IO; the caller runs ``lower``."""
        self._node = min(self.context.nodes)
        self.lower = self.context.lower_informer(self.kind.resource, indexers={INDEX_UPPER: upper_key})

    def forget(self, key: str) -> None:
        """Forget the state kept for an upper object."""
        self._compared.pop(key, None)
        self._strict_since.pop(key, None)
        self._repairs.forget(key)

    def forget_unused(self, key: str) -> None:
        """Forget which copies of an upper object may be deleted as unused, because the object is gone."""
        self._unused.pop(key, None)

    def of(self, key: str) -> Object | None:
        """Return the copy of an upper object from the cache; None also if the name belongs to another object."""
        namespace, name = self._lower_name(key)
        copy = self.lower.store.get(f"{namespace}/{name}")
        return copy if copy is not None and self._is_ours(copy, key) else None

    def misplaced(self, key: str) -> list[Object]:
        """Return copies of an upper object in other lower namespaces than the configured one."""
        namespace, name = self._lower_name(key)
        found = self.lower.store.by_index(INDEX_UPPER, key)
        return [copy for copy in found if copy.name == name and copy.namespace != namespace]

    def renamed(self, key: str) -> list[Object]:
        """Return copies of an upper object with other names that select pods of our virtual nodes.

        Such a copy's name was derived when another virtual node was the first one. The lower cluster refuses to evict
        pods with two PodDisruptionBudgets.
        """
        namespace, name = self._lower_name(key)
        found = self.lower.store.by_index(INDEX_UPPER, key)
        return [
            copy
            for copy in found
            if (copy.namespace, copy.name) != (namespace, name)
            and selected_nodes(copy.spec) & self.context.nodes.keys()
        ]

    async def ensure(self, upper: Object, spec: dict[str, Any]) -> Problem | float | None:
        """Create or patch a copy.

        Returns a Problem (its name or namespace is not ours, or another program keeps changing it), the seconds until
        the next try, or None: nothing is left to do for now.

        Raises:
            ApiError: the lower cluster refuses; the caller retries.
        """
        key = upper.key
        namespace, name = self._lower_name(key)
        desired = copy_of(
            upper.to_dict(),
            name=name,
            namespace=namespace,
            cluster_id=self.context.cluster_id,
            spec=spec,
            rules=self.context.rules.policy.of(upper.namespace).metadata,
        )
        self._unused.get(key, {}).pop(namespace, None)
        existing = self.lower.store.get(f"{namespace}/{name}")
        was_compared = self._compared.get(key) is upper
        if (full := self.context.cannot_grow(upper, existing)) is not None:
            return full
        if existing is None:
            if problem := await self.namespaces.ensure(upper.namespace):
                return problem
            return await self._create(upper, desired)
        if not self._is_ours(existing, key, uid=upper.uid):
            return self._taken(existing.key)
        current = existing.to_dict()
        patch = copy_patch(current, desired)
        if patch is None:
            self._strict_since.pop(key, None)
        else:
            if wait := self._must_wait(key, current, spec):
                return wait
            resource = self.kind.resource
            if was_compared:
                if not await peers.is_current(self.context.upper, resource, upper):
                    return None  # our cache is behind; the missing event requeues this key
                if wait := self._repairs.wait(key, desired):
                    return followed_contested(resource.kind, existing.key, self.context.name, again=wait)
            await patch_only(self.context.lower, resource, existing, patch)
            self._strict_since.pop(key, None)
        self._compared[key] = upper
        return None

    def may_remove_unused(self, key: str, copy: Object) -> bool:
        """Report whether to delete a copy that none of our pods uses.

        A copy with another uid than at the first call was recreated by another process, for pods that have no lower
        pods yet. It is not deleted, because that process would recreate it again and again.
        """
        return self._unused.setdefault(key, {}).setdefault(copy.namespace, copy.uid) == copy.uid

    async def delete(self, copy: Object) -> None:
        """Delete a copy by uid."""
        await delete_only(self.context.lower, self.kind.resource, copy)

    async def _create(self, upper: Object, desired: dict[str, Any]) -> Problem | None:
        """Create a copy; return a Problem if another object has its name."""
        resource = self.kind.resource
        if (found := await self.namespaces.create_inside(resource, desired)) is not None:
            if not self._is_ours(found, upper.key, uid=upper.uid):
                return self._taken(found.key)
            # Ours, and not in the cache yet; the caller retries.
            raise Conflict(f"{resource.kind} {found.key} already exists", code=409, reason="Conflict")
        self._compared[upper.key] = upper
        return None

    def _must_wait(self, key: str, current: dict[str, Any], spec: dict[str, Any]) -> float:
        """Return the seconds for which a change is delayed because it allows more; 0: it is not delayed."""
        if not self.kind.is_looser(current.get("spec") or {}, spec):
            return 0.0
        now = asyncio.get_running_loop().time()
        since, last = self._strict_since.get(key, (now, spec))
        if self.kind.is_looser(last, spec):
            # A value that was wanted for a moment must not be written at the end of an earlier delay.
            since = now
        self._strict_since[key] = since, spec
        return max(0.0, since + _SETTLE - now)

    def _is_ours(self, copy: Object, key: str, *, uid: str = "") -> bool:
        namespace, _, name = key.partition("/")
        is_owned = ownership.is_owned_by(copy, self.context.cluster_id, namespace, upper_uid=uid)
        return is_owned and copy.annotations.get(names.ANNOTATION_SOURCE, name) == name

    def _taken(self, lower_key: str) -> Problem:
        return followed_name_taken(self.kind.resource.kind, lower_key, self.context.name)

    def _lower_name(self, key: str) -> tuple[str, str]:
        namespace, _, name = key.partition("/")
        return self.context.lower_namespace(namespace), self.kind.lower_name(name, self._node)
