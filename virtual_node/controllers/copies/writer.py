"""Creates, updates, holds and deletes lower copies of upper objects. Never touches unmanaged objects.

The callers (``references`` and ``controller``) decide which objects have a copy, and when. Each kind has its functions in
``translate/kinds.py``.

A lower pod must never read a ConfigMap or Secret that we did not create. So for every reference of a lower
pod, an object of ours exists under that name for as long as the pod may read it. If the upper cluster has no
such object (an optional reference, an image pull secret, a deleted object), our object is a placeholder
without data, which an optional reference treats as a missing object. When the upper object appears, its
content is written to the placeholder.

``Repairs`` (``controller_runtime.util.repairs``) limits the repairs of a copy that another program changes again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from clusterset.model.policy.copied_keys import refused
from controller_runtime.apimachinery import readable
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import find_listed
from controller_runtime.errors import AlreadyExists, Conflict, Invalid
from controller_runtime.objects import Object, from_dict
from controller_runtime.util.keyed import KeyedLocks
from controller_runtime.util.repairs import Repairs
from virtual_node.controllers.base.caches import INDEX_UPPER
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import (
    delete_only,
    exists,
    have_pods_in,
    is_current,
    patch_only,
)
from virtual_node.controllers.base.problems import Problem, contested, name_taken, not_mirrored, not_stored
from virtual_node.controllers.copies.surroundings import UnusedCopies
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.translate.base.view import Translation, UntranslatableError, View
from virtual_node.translate.kinds import Body, Demand, Kind

_SETTLE = 10.0
"""Seconds for which a copy must have been stricter than wanted before a looser ``spec`` is written, because the states
of the two clusters do not arrive at the same time."""
_NOT_STORED = 900.0
"""Seconds for which a field that the lower cluster did not store is not sent again. It may be upgraded later."""
_NO_CONTENT: Body = {}


class Outcome(NamedTuple):
    """The result of a write."""

    problem: Problem | None = None
    """Why the copy is not current; None: it is, or will be at the next try."""
    again: float = 0.0
    """Seconds until the next try; 0: none is needed."""


DONE = Outcome()


@dataclass(eq=False, repr=False)
class CopyWriter:
    """Writes the copies of one kind in one lower cluster."""

    context: ClusterContext
    kind: Kind
    namespaces: Namespaces
    view: Callable[[], View]
    """Returns what translations read."""
    lower: Informer
    """The lower objects of the kind that carry our ownership label, indexed by ``INDEX_UPPER``."""
    locks: KeyedLocks[str] = field(default_factory=KeyedLocks)
    """One writer per copy."""
    _compared: dict[str, tuple[Object | None, Object | None]] = field(default_factory=dict)
    """By upper key: the upper object (None: missing, so the copy is a placeholder), and the cached copy that equalled
    it at the last comparison. A copy of None was just written and is not in the cache yet, see ``_written``."""
    _written: dict[str, str] = field(default_factory=dict)
    """By upper key: the version of a copy that the cache did not show. When the cache has read it, the cache is right."""
    _strict_since: dict[str, tuple[float, Body]] = field(default_factory=dict)
    """Loop time since which a copy has been stricter than its upper object, and the last wanted ``spec``, by upper key."""
    _repairs: Repairs = field(default_factory=Repairs)
    _not_stored: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    """By upper key: what the last patch of a copy left different, as JSON, and the loop time until which it is not sent again."""
    _taken: dict[str, str] = field(default_factory=dict)
    """Uids of upper objects for which an unmanaged object had the name at the last try, by key."""
    unused: UnusedCopies = field(default_factory=UnusedCopies)
    """Which copies may be deleted as unused, by the key of the upper object."""

    def forget(self, key: str) -> None:
        """Forget the state kept for an upper object; its copy is compared again at the next write."""
        for memory in (self._compared, self._written, self._strict_since, self._not_stored, self._taken):
            memory.pop(key, None)
        self._repairs.forget(key)

    def depends_on_change(self, key: str) -> None:
        """Record that something else than the upper object changes what its copy contains, so the next write is no repair."""
        self._compared.pop(key, None)

    def lost(self, key: str, copy: Object) -> None:
        """Record that a copy was deleted, so that it is created again although the upper object has not changed."""
        if key in self._compared:
            self._compared[key] = (self._compared[key][0], copy)

    def of(self, key: str, upper: Object | None = None) -> Object | None:
        """Return the copy of an upper object from the cache; None also if the name belongs to another object."""
        namespace, name = self._place(key, upper)
        if not name:
            return next(iter(self._in_place(key)), None)
        copy = self.lower.store.get(f"{namespace}/{name}")
        return copy if copy is not None and self._is_ours(copy, key, upper) else None

    def others(self, key: str, upper: Object | None = None) -> list[Object]:
        """Return further copies of an upper object in the configured lower namespace, which have another name."""
        found, (_, name) = self._in_place(key), self._place(key, upper)
        return [copy for copy in found if copy.name != name] if name else found[1:]

    async def remove_misplaced(self, key: str, has_lower_pods: Callable[[str], bool]) -> bool:
        """Delete unused copies in other lower namespaces than the configured one; report whether a used one is left.

        They were made before the configuration mapped the upper namespace to the current one.

        Args:
            key: the key of the upper object.
            has_lower_pods: reports whether one of our lower pods is in a lower namespace.
        """
        namespace, is_left = self.context.lower_namespace(key.partition("/")[0]), False
        for copy in [copy for copy in self._all(key) if copy.namespace != namespace]:
            if (
                has_lower_pods(copy.namespace)
                or self.kind.is_kept_for_others(copy, self.view())
                or not self.unused.may_remove(key, copy)
                or await have_pods_in(self.context, copy.namespace)
            ):
                is_left = True
            else:
                await self.delete(copy)
        return is_left

    def translate(self, upper: Object) -> Translation:
        """Return the copy of an upper object.

        Raises:
            UntranslatableError: it cannot be copied.
        """
        rules = self.context.rules.policy.of(upper.namespace)
        if keys := refused(self.kind.kind, upper.annotations, rules.metadata):
            listed = readable.some(f"{key} (pattern {pattern})" for key, pattern in keys.items())
            raise UntranslatableError(
                f"{listed} may not be copied. Remove it, or ask the administrator of virtual-node, who can add it to "
                f"{rules.sources['metadata'].removesuffix(', default')}.keep"
            )
        try:
            return self.kind.translate(upper.to_dict(), self.view())
        except UntranslatableError:
            raise
        except Exception as error:  # an API server may send anything
            raise malformed(error) from error

    async def ensure(self, key: str, upper: Object | None, content: Body | None = None) -> Outcome:
        """Make the lower copy equal to its upper object.

        Args:
            key: the key of the upper object.
            upper: the upper object; None: it is missing, and the copy is a placeholder that occupies its lower name.
            content: the translation; None: it is made here if the copy is not up to date.

        Raises:
            ApiError: a cluster refuses or does not answer; the caller retries.
        """
        self.unused.needed(key, self.context.lower_namespace(key.partition("/")[0]))
        if self._is_up_to_date(key, upper):
            return DONE
        async with self.locks.of(key):
            # The previous holder of the lock may have written the copy.
            if self._is_up_to_date(key, upper):
                return DONE
            if upper is not None and content is None:
                try:
                    content = self.translate(upper).content
                except UntranslatableError as error:
                    return Outcome(not_mirrored(error.reason, str(error)))
            above = upper.to_dict() if upper is not None else None
            desired = self.kind.copy(key, above, content or _NO_CONTENT, self.view())
            return await self._write(key, upper, above, desired)

    async def delete(self, copy: Object) -> None:
        """Delete a copy by uid."""
        await delete_only(self.context.lower, self.kind.resource, copy)

    async def release(self, key: str, copy: Object) -> None:
        """Remove the annotations from a copy that say that we always need it."""
        own = {name: None for name in self.kind.annotations(key, self.view()) if name in copy.annotations}
        if own:
            await self._patch(copy, {"metadata": {"annotations": own}})

    async def _write(
        self, key: str, upper: Object | None, above: Body | None, desired: dict[str, Any]
    ) -> Outcome:
        metadata = desired["metadata"]
        existing = current = self.lower.store.get(f"{metadata['namespace']}/{metadata['name']}")
        was_compared = key in self._compared and self._compared[key][0] is upper
        if current is None:
            if was_compared and upper is not None and not await self._is_current(upper):
                return DONE  # another process has deleted the copy; our cache does not show the reason yet
            problem = self._no_room(upper, None) or await self.namespaces.ensure(key.partition("/")[0])
            if problem is not None:
                return Outcome(problem)
            current = await self._create(key, upper, above, desired)
        if current is not None:
            if not self._is_ours(current, key, upper):
                self._taken[key] = upper.uid if upper is not None else ""
                return Outcome(name_taken(self.kind, current.key, self.context.name))
            if existing is None:
                self._written[key] = current.resource_version
                self.lower.expect(current)
            outcome = await self._update(key, upper, above, current, desired, was_compared=was_compared)
            if outcome is not None:
                return outcome
        self._taken.pop(key, None)
        self._strict_since.pop(key, None)
        self._compared[key] = (upper, existing)
        return DONE

    async def _update(
        self,
        key: str,
        upper: Object | None,
        above: Body | None,
        current: Object,
        desired: dict[str, Any],
        *,
        was_compared: bool,
    ) -> Outcome | None:
        """Make an existing copy equal to the desired one and return None; otherwise return why it stays as it is."""
        now = current.to_dict()
        is_replaced = self.kind.must_replace(now, desired)
        patch = {} if is_replaced else self.kind.patch(now, desired, above)
        if patch is None or self._is_not_stored(key, patch):
            return None
        if (full := self._no_room(upper, current)) is not None:
            return Outcome(full)
        if wait := self._must_wait(key, now.get("spec") or {}, desired.get("spec") or {}):
            return Outcome(again=wait)
        if upper is None and await exists(self.context.upper, self.kind.resource, key):
            return DONE  # our cache is behind; the missing event requeues this key
        # If the copy changed and the cached upper object did not, then either the copy was edited, or another process
        # knows a later state of the upper object.
        if upper is not None and (is_replaced or was_compared) and not await self._is_current(upper):
            return DONE
        if was_compared and (wait := self._repairs.wait(key, desired)):
            return Outcome(contested(self.kind.kind, current.key, self.context.name, again=wait))
        if not is_replaced:
            try:
                await self._patch_as_accepted(key, above, current, desired, patch)
            except Invalid:
                # A ConfigMap or Secret is immutable or of another type: the new content needs a new object.
                if self.kind.demand is not Demand.REFERENCES:
                    raise
            else:
                return None
        await self.context.lower.delete(
            self.kind.resource, current.name, namespace=current.namespace, uid=current.uid
        )
        if await self._create(key, upper, above, desired) is not None:
            # The old copy is not gone yet, or another client was faster; the next reconcile checks the owner.
            raise Conflict(f"{self.kind.kind} {current.key} is being replaced", code=409, reason="Conflict")
        return None

    async def _create(
        self, key: str, upper: Object | None, above: Body | None, desired: dict[str, Any]
    ) -> Object | None:
        """Create a copy and return None; if its name is taken, return the existing object."""
        lower, resource, metadata = self.context.lower, self.kind.resource, desired["metadata"]
        where, name = metadata["namespace"], metadata["name"]
        annotations = {one: text for one, text in metadata["annotations"].items() if text is not None}
        desired = {**desired, "metadata": {**metadata, "annotations": annotations}}
        try:
            with self.namespaces.in_use(where):
                is_known = upper is not None and self._taken.get(key) == upper.uid
                if is_known and (found := await find_listed(lower, resource, name, namespace=where)):
                    return found
                self._written[key] = await self._create_first_accepted(above, desired)
        except AlreadyExists:
            return from_dict(await lower.get(resource, name, namespace=where))
        self.context.log.debug("lower copy created", resource=resource.plural, name=f"{where}/{name}")
        return None

    async def _create_first_accepted(self, above: Body | None, desired: dict[str, Any]) -> str:
        """Create a copy as similar to the upper object as the lower cluster accepts; return its resourceVersion."""
        create, resource = self.context.lower.create, self.kind.resource
        namespace, creation = desired["metadata"]["namespace"], self.kind.creation
        if creation is None or above is None:
            return _version(await create(resource, desired, namespace=namespace))
        view = self.view()
        bodies, first_cause = creation.bodies(above, desired, view), ""
        for body in bodies:
            try:
                created = await create(resource, body, namespace=namespace)
            except Invalid as error:
                cause = creation.refusal(error.message)
                if not cause or body is bodies[-1]:
                    raise
                first_cause = first_cause or cause
                continue
            reason, text = creation.event(above, created, first_cause, view) if first_cause else ("", "")
            if reason:
                self.context.warn(above, reason, f"Lower cluster {self.context.name} {text}")
            return _version(created)
        return ""

    async def _patch_as_accepted(
        self, key: str, above: Body | None, current: Object, desired: Body, patch: Body
    ) -> None:
        """Patch a copy, and remember what the lower cluster does not store of it.

        If it refuses a value that ``Creation`` can replace, the copy becomes as similar to the desired one as it accepts.
        """
        creation, now = self.kind.creation, current.to_dict()
        try:
            stored = await self._patch(current, patch)
        except Invalid as error:
            if creation is None or above is None or not creation.refusal(error.message):
                raise
            for body in creation.bodies(above, desired, self.view()):
                other = self.kind.patch(now, body, above)
                if other == patch:
                    continue
                try:
                    stored = now if other is None else await self._patch(current, other)
                except Invalid:
                    continue
                break
            else:
                raise
        self._not_stored.pop(key, None)
        if above is None or not self._may_differ:
            return
        # An API server drops fields that its version does not know, and a webhook may change others.
        if (left := self.kind.patch(stored, desired, above)) is not None:
            self._not_stored[key] = _code(left), asyncio.get_running_loop().time() + _NOT_STORED
            self.context.warn(above, *not_stored(self.kind.kind, current.key, self.context.name, left))

    def _is_not_stored(self, key: str, patch: Body) -> bool:
        """Report whether the lower cluster did not store the last patch, which was the same."""
        code, until = self._not_stored.get(key, (b"", 0.0))
        return until > asyncio.get_running_loop().time() and code == _code(patch)

    @property
    def _may_differ(self) -> bool:
        """Whether a copy may lack a field. NetworkPolicies may not, because they would allow more, and data may not."""
        return self.kind.demand is not Demand.REFERENCES and not self.kind.is_restriction

    async def _patch(self, copy: Object, patch: Body) -> dict[str, Any]:
        return await patch_only(self.context.lower, self.kind.resource, copy, patch)

    def _must_wait(self, key: str, current: Body, wanted: Body) -> float:
        """Return the seconds for which a change is delayed because it allows more; 0: it is not delayed."""
        if not self.kind.is_looser(current, wanted):
            return 0.0
        now = asyncio.get_running_loop().time()
        since, last = self._strict_since.get(key, (now, wanted))
        if self.kind.is_looser(last, wanted):
            # A value that was wanted for a moment must not be written at the end of an earlier delay.
            since = now
        self._strict_since[key] = since, wanted
        return max(0.0, since + _SETTLE - now)

    def _no_room(self, upper: Object | None, copy: Object | None) -> Problem | None:
        if upper is None:
            return None
        shrink = self.kind.shrink
        return self.context.cannot_grow(shrink(upper) if shrink is not None else upper, copy)

    async def _is_current(self, upper: Object) -> bool:
        return await is_current(self.context.upper, self.kind.resource, upper)

    def _is_up_to_date(self, key: str, upper: Object | None) -> bool:
        """Report whether neither a copy nor its upper object has changed, and nothing else decides what the copy contains."""
        copy = self.lower.store.get("/".join(self._place(key, upper)))
        written = self._written.get(key, "")
        return (
            self.kind.demand is Demand.REFERENCES
            and self._compared.get(key) == (upper, copy)
            and (copy is not None or not written or not self.lower.has_read(written))
        )

    def _is_ours(self, copy: Object, key: str, upper: Object | None) -> bool:
        uid = upper.uid if upper is not None else ""
        return self.kind.is_copy_of(copy, key, self.context.cluster_id, uid=uid)

    def _in_place(self, key: str) -> list[Object]:
        namespace = self.context.lower_namespace(key.partition("/")[0])
        return [copy for copy in self._all(key) if copy.namespace == namespace]

    def _all(self, key: str) -> list[Object]:
        return self.lower.store.by_index(INDEX_UPPER, key)

    def _place(self, key: str, upper: Object | None) -> tuple[str, str]:
        """Return namespace and name of an object's copy; an empty name: it cannot be derived."""
        namespace, _, name = key.partition("/")
        above = (
            {"metadata": {"uid": upper.uid, "name": upper.name, "labels": upper.labels}}
            if upper is not None
            else None
        )
        return self.context.lower_namespace(namespace), self.kind.lower_name(name, above, self.view())


def _code(patch: Body) -> bytes:
    return msgspec.json.encode(patch, order="sorted")


def _version(answer: Mapping[str, Any]) -> str:
    return str((answer.get("metadata") or {}).get("resourceVersion") or "")


def malformed(error: Exception) -> UntranslatableError:
    """Return the error of an object with content that made its translation fail."""
    return UntranslatableError(f"the object is malformed: {error!r}"[:500])
