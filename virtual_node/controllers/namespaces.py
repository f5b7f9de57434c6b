"""Lower namespaces: created when a pod first needs one, kept in sync, deleted when no longer needed.

Namespaces that we created carry the ownership label and the name of their upper namespace. Others are used
only if the configuration adopts them, and are never changed. A namespace that we created is deleted when its
upper namespace is gone and it contains no objects of other owners. A PersistentVolumeClaim always counts as
an object of another owner, even if we made it, because it holds data.

Deleting a namespace deletes its contents, so no object may be missed. Every namespaced resource in discovery
is listed, as metadata only. If a resource cannot be listed, the contents count as unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clusterset.model import namespace_map
from clusterset.model.namespace_map import NEVER_MIRRORED
from controller_runtime import resources
from controller_runtime.client.client import Client, find_object
from controller_runtime.client.collection import METADATA_ONLY, SIZE, ListPages
from controller_runtime.errors import (
    NAMESPACE_TERMINATING,
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    ResponseTooLarge,
    ResponseTooSlow,
    Unavailable,
    is_namespace_gone,
)
from controller_runtime.objects import Object, from_dict
from controller_runtime.resources import Resource
from controller_runtime.util.keyed import SharedAnswers
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import create_new, delete_exactly, patch_only
from virtual_node.controllers.base.problems import Problem, namespace_refused
from virtual_node.translate.base import ownership
from virtual_node.translate.objects import namespaces
from virtual_node.translate.objects import namespaces as translate

_OURS_ENDING = 5.0
"""Seconds between two checks while our pods in the namespace terminate."""
_OTHERS_THERE = 600.0
"""Seconds between two checks while other owners' objects, or unknown contents, prevent a namespace's deletion."""
_UID_KNOWN = 10.0
"""Seconds for which the uid of an adopted namespace is used without reading it again, because it is not watched."""
_HOLDS_DATA = ("", "persistentvolumeclaims")
_NAMED = 5
"""The search ends after this many objects of other owners; logs name them."""
_LONGEST_NAME = 300
"""Maximum number of characters kept of each name."""
_DEADLINE = 300.0
"""Seconds for one namespace. A hostile lower cluster may list kinds and pages without end."""


@dataclass(eq=False, repr=False)
class Namespaces:
    """Creates lower namespaces before anything is created in them, and deletes them when they are empty."""

    context: ClusterContext
    caches: ClusterCaches
    _known: dict[str, str] = field(default_factory=dict)
    """Upper namespace by lower namespace, for lower namespaces that may be used."""
    _uids: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By lower namespace: its uid, and the loop time at which it was read."""
    _logged: dict[str, str] = field(default_factory=dict)
    _ensuring: SharedAnswers[tuple[str, bool], Problem | None] = field(
        default_factory=lambda: SharedAnswers(fresh=0)
    )
    """All pods of a burst ask at the same time."""
    _reading: SharedAnswers[tuple[str, int], str] = field(default_factory=lambda: SharedAnswers(fresh=0))
    _doubts: int = 0
    """Number of calls of ``doubt``, so that no read that began before one is used after it."""

    def __post_init__(self) -> None:
        """Register handlers on the informers of namespaces."""
        self._config = self.context.config.namespaces
        self._carried = translate.CarriedLabels(self._config.labels, self.context.rules.policy)
        self._leftovers = Leftovers(self.context.lower, self.context.cluster_id, self._config.generated)
        self.controller = self.context.controller(
            "namespaces", self.reconcile, workers=1, first_delay=1.0, longest_delay=300.0, flow=str
        )
        self._watch()

    async def run(self) -> None:
        """Follow changes until cancelled."""
        await self.caches.upper_namespaces.wait_synced()
        await self.caches.lower_namespaces.wait_synced()
        try:
            await self.controller.run()
        finally:
            await self._ensuring.close()
            await self._reading.close()

    def allowed(self, upper_namespace: str) -> bool:
        """Report whether pods of that upper namespace may run in this lower cluster."""
        return namespace_map.allowed(upper_namespace, self._config.allowed)

    def allows_namespace(self, upper_namespace: str) -> bool:
        """Report whether objects may be created in this lower cluster for pods of that upper namespace."""
        return NEVER_MIRRORED not in {
            upper_namespace,
            self.context.lower_namespace(upper_namespace),
        } and self.allowed(upper_namespace)

    async def ensure(self, upper_name: str, *, is_for_new_pod: bool = False) -> Problem | None:
        """Create an upper namespace's lower namespace unless it exists; return a Problem if it must not be used.

        A namespace that we did not create is used only if ``namespaces.adopt`` allows it. A namespace that
        stands for another upper namespace or another upper cluster is never used.

        Args:
            upper_name: the upper namespace.
            is_for_new_pod: return the problem in any case. Otherwise None if pods of this upper namespace
                already run in the lower one: they are older than an upgrade or a configuration change, and
                still need objects there.

        Raises:
            ApiError: the lower cluster refuses or does not answer. Unavailable: the namespace terminates, for example
                because the upper one was deleted and created again at once.
        """
        if self._known.get(self.context.lower_namespace(upper_name)) == upper_name:
            return None
        question = upper_name, is_for_new_pod
        return await self._ensuring.get(question, partial(self._ensure, *question))

    async def _ensure(self, upper_name: str, is_for_new_pod: bool) -> Problem | None:  # noqa: FBT001
        namespace = self.context.lower_namespace(upper_name)
        lower = await find_object(self.context.lower, resources.NAMESPACES, namespace)
        lower = lower or await self._create(namespace, upper_name)
        if lower.metadata.deletion_timestamp is not None:
            raise Unavailable(
                f"namespace {namespace} is being deleted there (what holds it: "
                f"kubectl --kubeconfig LOWER describe namespace {namespace})",
                status={"details": {"causes": [{"reason": NAMESPACE_TERMINATING}]}},
            )
        return await self._admit(lower, upper_name, is_for_new_pod=is_for_new_pod)

    async def is_usable(self, upper_name: str) -> bool:
        """Report whether an upper namespace's lower namespace exists and may be used; do not create it.

        Raises:
            ApiError: the lower cluster refuses or does not answer.
        """
        namespace = self.context.lower_namespace(upper_name)
        if self._known.get(namespace) == upper_name:
            return True
        lower = await find_object(self.context.lower, resources.NAMESPACES, namespace)
        if lower is None or lower.metadata.deletion_timestamp is not None:
            return False
        return await self._admit(lower, upper_name, is_for_new_pod=False) is None

    async def _admit(self, lower: Object, upper_name: str, *, is_for_new_pod: bool) -> Problem | None:
        """Record and mark a lower namespace that may be used; otherwise return the problem, as ``ensure`` does."""
        self.context.places.note(lower)
        self._note_uid(lower)
        refusal = self.context.rules.namespace_refusal(lower.name, upper_name, _marks(lower))
        if refusal is not None:
            is_used = self.caches.pods.are_in(lower.name, upper_name)
            return None if is_used and not is_for_new_pod else namespace_refused(refusal)
        await self._mark(lower, upper_name)
        self._known[lower.name] = upper_name
        return None

    async def uid(self, namespace: str) -> str:
        """Return the uid of a lower namespace, which its pods have as their controller.

        The garbage collector deletes a pod with a wrong uid. So a namespace that is not watched is read again after some
        seconds, and any namespace after ``doubt``.

        Raises:
            NotFound: it does not exist.
            ApiError: any other error.
        """
        now = asyncio.get_running_loop().time()
        known, read_at = self._uids.get(namespace, ("", 0.0))
        watched = self.caches.lower_namespaces.store.get(namespace)
        if known and (now - read_at < _UID_KNOWN or (watched is not None and watched.uid == known)):
            return known
        doubts = self._doubts
        return await self._reading.get((namespace, doubts), partial(self._read_uid, namespace, doubts))

    async def _read_uid(self, namespace: str, doubts: int) -> str:
        lower = from_dict(await self.context.lower.get(resources.NAMESPACES, namespace))
        if doubts == self._doubts:
            self._note_uid(lower)
        return lower.uid

    def doubt(self, namespace: str) -> None:
        """Read a lower namespace again before its uid is used, because a pod in it was lost."""
        self._uids.pop(namespace, None)
        self._doubts += 1

    def _note_uid(self, lower: Object) -> None:
        self._uids[lower.name] = lower.uid, asyncio.get_running_loop().time()

    async def create_inside(self, resource: Resource, body: Mapping[str, Any]) -> Object | None:
        """Create an object in a lower namespace as ``create_new`` does."""
        with self.in_use(body["metadata"]["namespace"]):
            return await create_new(self.context.lower, resource, body)

    @contextlib.contextmanager
    def in_use(self, namespace: str) -> Iterator[None]:
        """Read the lower namespace live at the next ``ensure`` if the block raises that it is gone, or terminates."""
        try:
            yield
        except ApiError as error:
            if is_namespace_gone(error):
                self._forget(namespace)
            raise

    async def _create(self, namespace: str, upper_name: str) -> Object:
        """Create a lower namespace; return the existing one if another client was faster.

        Raises:
            ApiError: as ``ensure``. NotFound: the namespace was deleted meanwhile.
        """
        upper = self.caches.upper_namespaces.store.get(upper_name)
        body = translate.lower_namespace(
            upper.to_dict() if upper is not None else None,
            name=namespace,
            upper_name=upper_name,
            cluster_id=self.context.cluster_id,
            carried=self._carried,
        )
        try:
            created = await self.context.lower.create(resources.NAMESPACES, body)
        except AlreadyExists:
            return from_dict(await self.context.lower.get(resources.NAMESPACES, namespace))
        self.context.log.info("lower namespace created", namespace=namespace)
        return from_dict(created)

    async def _mark(self, lower: Object, upper_name: str) -> None:
        """Restore labels and annotations that mark our namespace, if removed or not written by an earlier release."""
        if not _marks(lower):
            return
        patch = translate.marks_patch(lower, upper_name=upper_name, cluster_id=self.context.cluster_id)
        if patch is not None:
            # Without the right to patch namespaces we continue, because the remaining marks suffice.
            with contextlib.suppress(Forbidden):
                await patch_only(self.context.lower, resources.NAMESPACES, lower, patch)

    async def reconcile(self, namespace: str) -> Result | None:
        """Update one lower namespace of ours from its upper namespace, or delete it."""
        lower = self.caches.lower_namespaces.store.get(namespace)
        if lower is None:
            self._forget(namespace)
            await self._left(namespace)
            return None
        if lower.metadata.deletion_timestamp is not None:
            self._forget(namespace)
            return None
        found = (self.caches.upper_namespaces.store.get(name) for name in self._upper_names(lower))
        upper = next((one for one in found if one is not None), None)
        if upper is not None:
            await self._mark(lower, upper.name)
            patch = translate.namespace_patch(upper.to_dict(), lower.to_dict(), self._carried)
            if patch is not None:
                # The resourceVersion makes the patch fail if the lower administrator has just set a label.
                patch["metadata"]["resourceVersion"] = lower.resource_version
                await patch_only(self.context.lower, resources.NAMESPACES, lower, patch)
            return None
        return await self._remove(lower)

    def _forget(self, namespace: str) -> None:
        self._known.pop(namespace, None)
        self.doubt(namespace)

    async def _left(self, namespace: str) -> None:
        """Restore the label of a lower namespace of ours that left the cache, or forget it if it is gone. Reads live."""
        live = await find_object(self.context.lower, resources.NAMESPACES, namespace)
        marks = () if live is None else _marks(live)
        upper_name = next((name for cluster_id, name in marks if cluster_id == self.context.cluster_id), "")
        if live is None or not upper_name:
            self.context.places.forget(namespace)
        else:
            await self._mark(live, upper_name)

    async def _remove(self, lower: Object) -> Result | None:
        if not self._config.remove or await self._upper_exists(lower):
            return None
        try:
            found = await self._leftovers.find(lower.name, upper_name=translate.upper_name(lower))
        except UnknownError as error:
            self._say(lower.name, f"cannot be seen to be empty: {error}")
            return Result(requeue_after=_OTHERS_THERE)
        if found.others:
            self._say(lower.name, f"holds objects that are not ours: {', '.join(found.others[:5])}")
            return Result(requeue_after=_OTHERS_THERE)
        if found.pods:
            return Result(requeue_after=_OURS_ENDING)
        if await self._upper_exists(lower):
            return None  # recreated during the listing, which takes seconds, so new pods may exist
        with contextlib.suppress(NotFound, Conflict):
            await delete_exactly(self.context.lower, resources.NAMESPACES, lower)
            self.context.log.info("lower namespace deleted", namespace=lower.name)
        self._forget(lower.name)
        return None

    async def _upper_exists(self, lower: Object) -> bool:
        """Report whether an upper namespace exists. Reads live: after an outage a cache may miss namespaces."""
        for name in self._upper_names(lower):
            if await find_object(self.context.upper, resources.NAMESPACES, name) is not None:
                return True
        return False

    def _upper_names(self, lower: Object) -> list[str]:
        """Return the upper namespaces in a lower namespace's ownership marks, first the one that maps to it."""
        found = translate.upper_names(lower)
        return sorted(found, key=lambda name: self.context.lower_namespace(name) != lower.name)

    def _say(self, namespace: str, why: str) -> None:
        if self._logged.get(namespace) != why:
            self._logged[namespace] = why
            self.context.log.info("lower namespace kept", namespace=namespace, why=why)

    def _watch(self) -> None:
        add = self.controller.queue.add

        def upper_changed(namespace: Object) -> None:
            add(self.context.lower_namespace(namespace.name))

        def lower_changed(namespace: Object) -> None:
            add(namespace.name)

        self.caches.upper_namespaces.add_handler(
            on_update=lambda _old, new: upper_changed(new), on_delete=upper_changed
        )
        self.caches.lower_namespaces.on_change(lower_changed, lower_changed)


def _marks(lower: Object) -> list[tuple[str, str]]:
    return namespace_map.marks(lower.labels, lower.annotations)


class UnknownError(Exception):
    """The contents of the namespace cannot be determined; the message says why."""


@dataclass(slots=True)
class Found:
    """The contents of a namespace."""

    others: list[str] = field(default_factory=list)
    """``pods web``, …: some objects of other owners. Claims count as such even if they are ours, because they
    hold data. The namespace is deleted only if this is empty."""
    pods: int = 0
    """Number of our pods."""


@dataclass(eq=False, repr=False)
class Leftovers:
    """Lists the contents of lower namespaces."""

    lower: Client
    cluster_id: str
    """Identity of the upper cluster; objects labelled with it are ours."""
    generated: Sequence[str] = ()
    """``namespaces.generated``."""

    async def find(self, namespace: str, *, upper_name: str) -> Found:
        """Return the contents of an upper namespace's lower namespace; stop after a few objects of other owners.

        Raises:
            UnknownError: something could not be listed, or listing takes too long.
        """
        found = Found()
        seen: set[tuple[str, str]] = set()
        try:
            async with asyncio.timeout(_DEADLINE):
                async for resource in self._resources():
                    kind = (resource.group, resource.plural)
                    if kind in seen:
                        continue
                    seen.add(kind)
                    async for items in self._pages(resource, namespace):
                        self._add(found, resource, items, upper_name)
                        if len(found.others) >= _NAMED:
                            return found
        except ApiError as error:
            raise UnknownError(str(error)) from error
        except TimeoutError as error:
            raise UnknownError(f"listing what it holds takes more than {_DEADLINE:.0f} s") from error
        return found

    def _add(self, found: Found, resource: Resource, items: list[dict[str, Any]], upper_name: str) -> None:
        others = namespaces.others(
            items,
            group=resource.group,
            resource=resource.plural,
            cluster_id=self.cluster_id,
            upper_name=upper_name,
            generated=self.generated,
        )
        kind = (resource.group, resource.plural)
        if kind == _HOLDS_DATA:
            others = [item["metadata"]["name"] for item in items]
        found.others += [f"{resource.qualified} {name}"[:_LONGEST_NAME] for name in others[:_NAMED]]
        if kind == ("", "pods"):
            marks = (ownership.Marks.of(item["metadata"]) for item in items)
            found.pods += sum(ownership.is_owned_by(each, self.cluster_id, upper_name) for each in marks)

    async def _resources(self) -> AsyncIterator[Resource]:
        """Yield every namespaced resource that can be listed, once for each version, in the preferred version first.

        Many groups have kinds that the preferred version lacks, such as AlertmanagerConfig of ``monitoring.coreos.com``.
        """
        groups = [("", "v1", "/api/v1", False)]
        for group in _entries(await self._get("/apis"), "groups"):
            preferred = group["preferredVersion"]["version"]
            versions = dict.fromkeys((preferred, *(each["version"] for each in group.get("versions") or ())))
            groups += [
                (group["name"], version, f"/apis/{group['name']}/{version}", version != preferred)
                for version in versions
            ]
        for group_name, version, path, is_other in groups:
            try:
                listed = await self._get(path)
            except NotFound:
                if not is_other:
                    raise
                continue  # the version was just removed; its objects are in the preferred one
            for entry in _entries(listed, "resources"):
                if entry.get("namespaced") and "list" in entry.get("verbs", ()) and "/" not in entry["name"]:
                    yield Resource(group_name, version, entry["name"], entry["kind"])

    async def _pages(self, resource: Resource, namespace: str) -> AsyncIterator[list[dict[str, Any]]]:
        pages = ListPages({}, size=SIZE)
        while True:
            try:
                page = await self._get(resource.path(namespace=namespace), pages.params)
            except (ResponseTooLarge, ResponseTooSlow) as error:
                pages.shrink(error)
                continue
            except NotFound:
                if not resource.group:
                    raise  # kinds of the core group always exist, so this response is not from an API server
                return
            yield _entries(page, "items")
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            pages.follow(token)
            await asyncio.sleep(pages.pause)

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        headers = None if params is None else METADATA_ONLY
        return await self.lower.read(path, params=params, headers=headers, flow="namespaces")


def _entries(answer: Any, key: str) -> list[dict[str, Any]]:
    """Return the list under that key (null: empty); reject other JSON, such as a proxy's response."""
    if not isinstance(answer, dict) or key not in answer:
        raise UnknownError(f"the lower cluster's answer has no {key!r}")
    entries: list[dict[str, Any]] = answer[key] or []
    return entries
