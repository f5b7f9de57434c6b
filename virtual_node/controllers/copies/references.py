"""Copies the ConfigMaps, Secrets and ResourceClaims that pods reference to the lower cluster.

``ensure`` is called before a lower pod is created. It watches the referenced upper objects and creates their
copies (``writer``). Later changes of the upper objects, and changes of the copies by other clients, are
processed through the work queue. A copy is deleted when none of our pods needs it. Until then an object of
ours keeps the lower name in use, even if the upper object does not exist.

Reports the devices that the lower cluster allocates: on the upper pod, and as an event on a shared upper claim.

The status of the upper claim is not written. Its pools and devices would be names of the lower cluster, which
the upper scheduler would take for devices of the upper cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clusterset.model import names
from clusterset.model.overrides import applied
from clusterset.model.pod.resource_claims import as_admitted
from controller_runtime import resources
from controller_runtime.apimachinery.translation_budget import TooLargeError
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import find
from controller_runtime.errors import Forbidden, NotFound, ResponseTooLarge
from controller_runtime.objects import Object
from controller_runtime.store import is_stub
from controller_runtime.workqueue.controller import Controller, Result
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import have_pods_in
from virtual_node.controllers.base.problems import Problem, missing, too_many, unreadable
from virtual_node.controllers.copies.single_objects import ObjectKey, ObjectWatches
from virtual_node.controllers.copies.writer import CopyWriter
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.translate.base import ownership
from virtual_node.translate.kinds import REFERENCED
from virtual_node.translate.objects import references
from virtual_node.translate.pods import dependencies, pod_certificates, service_account

_UNUSED_GRACE = 60.0
"""Seconds for which a copy is kept after its last pod is gone, because the next pod of a Job may use it."""
_SHARED_AGAIN = 600.0
"""Seconds until the next check of a copy that pods of another process may use. This process gets no event
when those pods are deleted."""
_NO_ROOM_RETRY = 300.0
"""Seconds between two checks whether an object that was too large fits its namespace's limit of bytes."""
_WORKERS = 8


@dataclass(eq=False, repr=False)
class DependencyController:
    """Keeps the lower copies of upper objects that our pods reference."""

    context: ClusterContext
    caches: ClusterCaches
    namespaces: Namespaces
    wake: Callable[[str], None]
    """Called with the uid of an upper pod whose dependency has changed."""
    _users: dict[ObjectKey, dict[str, None]] = field(default_factory=dict)
    _named: Counter[str] = field(default_factory=Counter)
    """Number of objects with users, by upper namespace."""
    _needs: dict[str, Mapping[ObjectKey, bool]] = field(default_factory=dict)
    """By uid of an upper pod: the objects it needs, and whether each is optional."""
    _not_pods: set[str] = field(default_factory=set)
    """Uids in ``_needs`` that are not those of pods, see ``ensure_named``."""
    _blocked: set[str] = field(default_factory=set)
    """Uids of pods that had a Problem when ``ensure`` was last called."""

    def __post_init__(self) -> None:
        """Register handlers for the lower objects."""
        caches = self.caches
        self._lower = lower = {"ConfigMap": caches.config_maps, "Secret": caches.secrets, **caches.claims}
        self._writers = {
            kind: CopyWriter(
                self.context,
                REFERENCED[kind],
                namespaces=self.namespaces,
                view=self.context.view,
                lower=informer,
            )
            for kind, informer in lower.items()
        }
        self._limits = self.context.settings.limits
        self._watches = ObjectWatches(self.context.upper, on_change=self._upper_changed, limits=self._limits)
        self.controller: Controller[ObjectKey] = self.context.controller(
            "dependencies", self.reconcile, workers=_WORKERS, flow=lambda key: key.namespace
        )
        for kind, informer in lower.items():
            self._watch_lower(kind, informer)

    async def run(self) -> None:
        """Update copies on changes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run())
            group.create_task(self._watches.run())

    async def ensure(self, upper: Object, upper_pod: dict[str, Any]) -> list[Problem]:
        """Ensure that copies of all objects that a pod references exist, before its lower pod is created.

        Returns a Problem for each object that blocks the pod, such as a missing mandatory one, in the order of the
        pod's references. The pod is requeued when one of these objects changes.
        """
        keys = self._keys(upper.namespace, upper_pod)
        if (problem := self._exceeds(upper.namespace, upper_pod, keys)) is not None:
            return [problem]
        self._note_needs(upper.uid, keys)
        problems = [
            replace(problem, about=(key.kind, key.name))
            for key, need in keys.items()
            if (problem := await self._ensure(key, need)) is not None
        ]
        (self._blocked.add if problems else self._blocked.discard)(upper.uid)
        return problems

    async def ensure_named(self, owner: Object, named: Collection[tuple[str, str]]) -> Problem | None:
        """Ensure copies of the Secrets and ConfigMaps that an object other than a pod references; return the first problem.

        As for a pod, the copies exist until ``forget_pod`` with the owner's uid. A missing object gets a placeholder.

        Args:
            owner: the object.
            named: kinds and names.
        """
        keys: dict[ObjectKey, dependencies.Dependency | None] = {
            ObjectKey(kind, owner.namespace, name): None for kind, name in named
        }
        if self._needs.get(owner.uid, {}).keys() != keys.keys():
            self.forget_pod(owner.uid)
            if (problem := self._exceeds(owner.namespace, {"spec": {}}, keys)) is not None:
                return problem
            self._note_needs(owner.uid, keys)
            self._not_pods.add(owner.uid)
        found = [await self._ensure(key, None) for key in keys]
        return next((problem for problem in found if problem is not None), None)

    def _exceeds(
        self, namespace: str, upper_pod: dict[str, Any], keys: Collection[ObjectKey]
    ) -> Problem | None:
        """Return the Problem of a pod that exceeds a limit, or None, before anything is created for the pod."""
        count = len(keys) + len(service_account.token_requests(upper_pod)) + pod_certificates.count(upper_pod)
        if count > self._limits.references_per_pod:
            return too_many(
                f"The pod references {count} ConfigMaps, Secrets, tokens and certificates",
                f"at most {self._limits.references_per_pod} per pod",
                "limits.referencesPerPod",
            )
        count = self._named[namespace] + sum(key not in self._users for key in keys)
        if count > self._limits.references_per_namespace and any(key not in self._users for key in keys):
            return too_many(
                f"With this pod, pods of namespace {namespace} reference {count} ConfigMaps and Secrets in lower "
                f"cluster {self.context.name}",
                f"at most {self._limits.references_per_namespace} per namespace",
                "limits.referencesPerNamespace",
            )
        return None

    def _too_large(self, key: ObjectKey) -> Problem:
        """Return the Problem of an object whose content does not fit its namespace's limit."""
        return too_many(
            f"With {key}, the ConfigMaps and Secrets that pods of namespace {key.namespace} reference in lower cluster "
            f"{self.context.name} are too large together",
            f"at most {self._limits.bytes_per_namespace} bytes per namespace",
            "limits.bytesPerNamespace",
        )

    async def _ensure(self, key: ObjectKey, need: dependencies.Dependency | None) -> Problem | None:
        try:
            source = await self._watches.get(key)
        except (Forbidden, NotFound, ResponseTooLarge) as error:
            # NotFound: the upper cluster does not serve resource.k8s.io/v1.
            if isinstance(error, NotFound) and key.kind not in references.KINDS:
                raise
            return unreadable(str(key), error)
        if (problem := self._not_served(key)) is not None:
            return problem
        if source is not None and is_stub(source):
            return self._too_large(key)
        if source is not None:
            return (await self._writers[key.kind].ensure(key.path, source)).problem
        if need is not None and not need.optional:
            return missing(need)
        return await self._hold(key)

    def _not_served(self, key: ObjectKey) -> Problem | None:
        """Return the Problem of a claim whose lower cluster does not serve or allow ResourceClaims."""
        informer, error = self._lower[key.kind], self._lower[key.kind].last_error
        is_unknown = key.kind in references.KINDS and not informer.has_synced
        if is_unknown and isinstance(error, Forbidden | NotFound):
            return unreadable(f"{key.kind}s", error, where=f"lower cluster {self.context.name}")
        return None

    def knows(self, uid: str) -> bool:
        """Report whether the dependencies of an upper pod are registered."""
        return uid in self._needs

    def claim(self, upper_pod: dict[str, Any], lower_pod: dict[str, Any]) -> None:
        """Register the dependencies of a lower pod that an earlier process created. Its copies are kept and updated."""
        metadata = upper_pod["metadata"]
        keys = self._keys(metadata["namespace"], as_admitted(upper_pod, lower_pod))
        self._note_needs(metadata["uid"], keys)
        for key in keys:
            self.controller.queue.add(key)

    def _note_needs(self, uid: str, keys: Mapping[ObjectKey, dependencies.Dependency | None]) -> None:
        self._needs[uid] = {key: need is None or need.optional for key, need in keys.items()}
        for key in keys:
            self._named[key.namespace] += key not in self._users
            self._users.setdefault(key, {})[uid] = None

    def _keys(
        self, namespace: str, upper_pod: dict[str, Any]
    ) -> dict[ObjectKey, dependencies.Dependency | None]:
        """Return the objects that a pod needs; the value is None for objects that it does not reference itself."""
        pods: list[dict[str, Any]] = [upper_pod]
        if overrides := self.context.rules.overrides.of(upper_pod):
            # Too large: the pod is not created, or its running lower pod was created without these overrides.
            with contextlib.suppress(TooLargeError):
                pods.append(applied(upper_pod, overrides))
        keys: dict[ObjectKey, dependencies.Dependency | None] = {
            ObjectKey(need.kind, namespace, need.name): need
            for pod in pods
            for need in dependencies.dependencies(pod)
            if need.kind in self._lower
        }
        if self.context.settings.enable_serviceaccount and service_account.token_requests(upper_pod):
            keys[ObjectKey("ConfigMap", namespace, service_account.ROOT_CA)] = None
        return keys

    def peek(self, key: ObjectKey) -> Object | None:
        """Return an upper object that a pod references, as last seen."""
        return self._watches.peek(key)

    def missing_secrets(self, namespace: str, secrets: Iterable[str]) -> list[str]:
        """Return the Secrets of these names that do not exist in an upper namespace, in their order. Pods reference them."""
        return [name for name in secrets if self.peek(ObjectKey("Secret", namespace, name)) is None]

    def data_keys(self, key: ObjectKey) -> frozenset[str]:
        """Return the data keys of an upper object that a pod references; empty if it does not exist.

        The keys are not kept, because those of all objects could take much more memory than the objects.
        """
        source = self._watches.peek(key)
        if source is None:
            return frozenset()
        return source.field_keys("data") | source.field_keys("binaryData")

    def size(self, uid: str) -> int:
        """Return the bytes of all objects that a pod references."""
        found = (self._watches.peek(key) for key in self._needs.get(uid, ()))
        return sum(source.size for source in found if source is not None)

    def version(self, uid: str) -> int:
        """Return a hash of the states of all objects that a pod references."""
        found = ((key, self._watches.peek(key)) for key in self._needs.get(uid, ()))
        return hash(tuple((key, source and (source.uid, source.resource_version)) for key, source in found))

    def forget_pod(self, uid: str) -> None:
        """Forget a pod that is gone; copies that no pod uses any more are deleted after a delay."""
        self._not_pods.discard(uid)
        self._blocked.discard(uid)
        for key in self._needs.pop(uid, ()):
            users = self._users[key]
            users.pop(uid, None)
            if not users:
                del self._users[key]
                self._named -= Counter([key.namespace])
                self.controller.queue.add_after(key, _UNUSED_GRACE)

    async def reconcile(self, key: ObjectKey) -> Result | None:
        """Update one lower copy from its upper object, or delete it when it has no user."""
        if key not in self._users:
            self._watches.stop(key)
            return await self._remove(key)
        if await self._writers[key.kind].remove_misplaced(key.path, self.caches.pods.are_in):
            self.controller.queue.add_after(key, _SHARED_AGAIN)
        source = await self._watches.get(key)
        if source is not None and is_stub(source):
            self._writers[key.kind].forget(key.path)
            too_large = self._too_large(key)
            self.context.warn(source, too_large.event_reason, too_large.message)
            return Result(requeue_after=_NO_ROOM_RETRY)
        if source is None:
            problem = await self._hold(key)
        else:
            problem = (await self._writers[key.kind].ensure(key.path, source)).problem
        if problem is not None:
            self.context.log.warning("copy is blocked", object=str(key), why=problem.message)
        if problem is None or not problem.again:
            return None
        if source is not None:
            self.context.warn(source, problem.event_reason, problem.message)
        return Result(requeue_after=problem.again)

    async def _hold(self, key: ObjectKey) -> Problem | None:
        """Occupy a missing object's lower name, unless the object is mandatory for all its pods."""
        is_optional = {self._needs[uid][key] for uid in self._users.get(key, ())}
        if True not in is_optional:
            # New pods wait for a mandatory object, and running pods keep its copy as it is. The last pod may have gone
            # while the object was read.
            return None
        writer = self._writers[key.kind]
        if False in is_optional and writer.of(key.path) is not None:
            # As a kubelet keeps the files of a mandatory volume when their Secret is deleted.
            return None
        return (await writer.ensure(key.path, None)).problem

    async def _remove(self, key: ObjectKey) -> Result | None:
        """Delete a copy that none of our pods needs; return a requeue while pods of another process may need it."""
        writer, upper = self._writers[key.kind], self.context.upper
        writer.forget(key.path)
        is_shared = await writer.remove_misplaced(key.path, self.caches.pods.are_in)
        async with writer.locks.of(key.path):
            copy = writer.of(key.path)
            # Other processes do not need a copy of a deleted upper object. Our watch of it may be behind, so read live.
            if copy is not None and not (
                await have_pods_in(self.context, copy.namespace)
                and await find(upper, key.resource, key.name, namespace=key.namespace) is not None
            ):
                if key not in self._users:
                    await writer.delete(copy)
                return None
        return Result(requeue_after=_SHARED_AGAIN) if copy is not None or is_shared else None

    def _upper_changed(self, key: ObjectKey) -> None:
        self.controller.queue.add(key)
        for uid in self._users.get(key, ()):
            if uid not in self._not_pods and (key.kind in references.KINDS or self._waits(uid)):
                self.wake(uid)

    def _waits(self, uid: str) -> bool:
        """Report whether a pod, or its debug containers, may wait for an object. For all others only the copy changes."""
        return uid in self._blocked or self.caches.pods.lower_pod(uid) is None

    def _watch_lower(self, kind: str, informer: Informer) -> None:
        def keys_of(copy: Object) -> list[ObjectKey]:
            paths = (path.partition("/") for path in REFERENCED[kind].upper_key(copy))
            return [ObjectKey(kind, namespace, name) for namespace, _, name in paths]

        def found(copy: Object, initial: bool) -> None:  # noqa: FBT001 - the informer's signature
            made_by_us = copy.labels.get(names.LABEL_NODE) in self.context.nodes
            for key in keys_of(copy):
                # After a restart, pods need time to register their use of the copy before it is deleted. A copy that
                # lost its last pod before the informer showed it is checked later, too.
                if initial or (made_by_us and (key not in self._users or self._watches.peek(key) is None)):
                    self.controller.queue.add_after(key, _UNUSED_GRACE)

        def deleted(copy: Object) -> None:
            for key in keys_of(copy):
                self._writers[kind].lost(key.path, copy)
            meddled(copy)

        def meddled(copy: Object) -> None:
            for key in keys_of(copy):
                if key in self._users:
                    self.controller.queue.add(key)

        def updated(old: Object, new: Object) -> None:
            meddled(old)  # the copy may have lost the annotations that name its upper object
            meddled(new)

        informer.add_handler(on_add=found, on_update=updated, on_delete=deleted)


_NAMED = 8
"""Maximum number of devices that an event names."""


@dataclass(eq=False, repr=False)
class Allocations:
    """The allocated ResourceClaims of one lower cluster."""

    context: ClusterContext
    caches: ClusterCaches
    dependencies: DependencyController
    """Its ``peek`` returns upper claims."""
    changed: Callable[[str], None]
    """Called with the uid of an upper pod whose devices may have changed."""
    informers: list[Informer] = field(default_factory=list)
    """Claims that the lower cluster generated from our copies of templates, in one informer, which the caller runs. Empty:
    ResourceClaims do not follow pods to this cluster."""
    _stores: list[Informer] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Register handlers for the claims."""
        if not self.caches.claims:
            return
        copies = self.caches.claims[references.CLAIM]
        generated = self.context.lower_informer(
            resources.RESOURCE_CLAIMS,
            selector=f"{names.LABEL_GENERATED_FOR}={self.context.cluster_id}",
            keep=lambda claim: self.context.places.has(claim.namespace),
            name="generated-claims",
        )
        self.informers, self._stores = [generated], [copies, generated]
        copies.add_handler(on_add=lambda claim, _initial: self._wake(claim), on_update=self._shared_changed)
        generated.on_change(self._wake, lambda _: None)

    def record(self, pod: Object) -> str:
        """Return the annotation's value with the devices of a lower pod; empty: none is allocated."""
        if not self._stores or not (lower_pod := pod.to_dict())["spec"].get("resourceClaims"):
            return ""
        found = {}
        for name, claim in references.generated_names(lower_pod).items():
            for informer in self._stores:
                if (lower := informer.store.get(f"{pod.namespace}/{claim}")) is not None:
                    found[name] = references.allocated(lower.to_dict())
        return references.record(found)

    def _shared_changed(self, old: Object, new: Object) -> None:
        self._wake(new)
        devices = references.allocated(new.to_dict())
        if not devices or references.allocated(old.to_dict()):
            return
        key = ObjectKey(references.CLAIM, ownership.upper_namespace(new), new.name)
        upper = self.dependencies.peek(key)
        if upper is not None and upper.uid == new.labels.get(names.LABEL_UPPER_UID):
            named = ", ".join(
                f"{device['driver']}/{device['pool']}/{device['device']}" for device in devices[:_NAMED]
            )
            more = f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else ""
            message = f"Lower cluster {self.context.name} allocated {named}{more}"
            self.context.recorder.event(upper, "Normal", "DevicesAllocated", message)

    def _wake(self, claim: Object) -> None:
        for consumer in (claim.status or {}).get("reservedFor") or ():
            pod = self.caches.pods.lower.store.get(f"{claim.namespace}/{consumer.get('name')}")
            if pod is not None and (uid := pod.labels.get(names.LABEL_UPPER_UID)):
                self.changed(uid)
