"""Copies upper objects of one kind to the lower cluster for the pods that run there.

An object is copied while its namespace has pods on our virtual nodes, or while the lower cluster has the copy of its
Service, or always if ``services.always`` includes it. The work queue is keyed by the upper object (``namespace/name``).
Every related change in both clusters adds that key, and ``reconcile`` compares the caches and writes the difference, so it
may run at any time. After a restart, the existing copies add their keys, and copies that are no longer wanted are deleted.

An unmanaged lower object is never touched, in particular the lower cluster's own Services ``default/kubernetes`` and
``kube-system/kube-dns``. Pods then use the lower cluster's Service of that name, and the upper Service gets an event.

``AddressReports`` writes the addresses of a copied Ingress or Gateway to the status of the upper object.
Several lower clusters write to one status. Each adds its addresses, and removes only those that it has added. Its
copy records them before they are written, because upper users can change the upper object. The record has a keyed hash,
because users of the lower cluster can change the copy.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from clusterset.model import names
from controller_runtime.apimachinery.keyed_hash import KEY_BYTES
from controller_runtime.auth.secret_key import SecretKey
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import find_listed
from controller_runtime.errors import ApiError, ConfigError, NotFound, is_retryable
from controller_runtime.objects import Object
from controller_runtime.store import is_stub
from controller_runtime.util.rate_limiter import Pace
from controller_runtime.workqueue.controller import Result
from virtual_node import metrics
from virtual_node.controllers.base.caches import INDEX_NAMESPACE, copy_informer
from virtual_node.controllers.base.context import TOO_LARGE_RETRY, ClusterContext, namespace_of
from virtual_node.controllers.base.preconditions import exists, have_pods_in, is_current, patch_only
from virtual_node.controllers.base.problems import NAMESPACE_PROBLEMS, SERVICE_CONFLICT, Problem
from virtual_node.controllers.copies.pending import PendingCopies
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.controllers.copies.surroundings import GRACE, Surroundings
from virtual_node.controllers.copies.writer import CopyWriter, Outcome, malformed
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.translate import services
from virtual_node.translate.base import ownership
from virtual_node.translate.base.view import Translation, UntranslatableError
from virtual_node.translate.follow import addresses as translate
from virtual_node.translate.kinds import SERVICES, Demand, Kind

_FOREIGN_AGAIN = 600.0
"""Seconds until a taken name is tried again. Watching all lower objects instead would cost more."""
_BATCH = 1.0
"""Seconds for which changes of pods and namespaces are collected."""
_BEHIND = 5.0
"""Seconds until a requeue while a cache is behind; normally the missing event requeues the key earlier."""
_PER_SECOND = 100
"""Objects per second and namespace that are queued after changes of pods and namespaces."""
_UNREAD_BURST, _UNREAD_AGAIN = 5, 60.0
"""Reads of one object at once that the cache cannot contain, and seconds per read in the long run."""
_WORKERS = 8
_SELECTING = "selecting"
"""Index of the objects whose copies depend on other namespaces."""
_POD = "pod"
"""Index of the objects whose copies depend on the lower pod of an upper pod, by the uid of the upper pod."""
_SERVICE = "service"
"""Index of the objects that belong to a Service, by its key."""


@dataclass(eq=False, repr=False)
class CopyController:
    """Keeps the lower copies of upper objects of one kind."""

    context: ClusterContext
    kind: Kind
    namespaces: Namespaces
    surroundings: Surroundings
    dependencies: DependencyController
    """Copies the Secrets and ConfigMaps that the objects reference."""
    wake: Callable[[str], None]
    """Requeues the upper pod of a uid."""
    upper: Informer | None = None
    """The upper objects, if the caller runs their informer; None: ``run`` does."""
    lower: Informer | None = None
    """The copies, as ``upper``."""
    _with_references: dict[str, str] = field(default_factory=dict)
    """Uids of objects whose Secrets and ConfigMaps are copied, by key."""
    _reads: Pace[str] = field(default_factory=lambda: Pace(burst=_UNREAD_BURST, qps=1 / _UNREAD_AGAIN))

    def __post_init__(self) -> None:
        """Create the caches and the work queue."""
        context, kind = self.context, self.kind
        indexers: dict[str, Callable[[Object], Iterable[str]]] = {
            INDEX_NAMESPACE: lambda found: (found.namespace,),
            _SELECTING: kind.selecting,
            _SERVICE: kind.service_key,
        }
        if kind.pods_of is not None:
            indexers[_POD] = kind.pods_of
        self._upper = self.upper or context.upper_informer(kind.resource, indexers=indexers)
        self.copies = CopyWriter(
            context,
            kind,
            namespaces=self.namespaces,
            view=self.surroundings.view,
            lower=self.lower or copy_informer(context, kind),
        )
        """Writes the copies."""
        self._addresses = AddressReports(context, kind)
        self.pending = PendingCopies(context, kind, self._upper, self.copies.lower, self.wake)
        """Objects without a current copy, for which new pods wait."""
        prefix = "follow-" if kind.setting else ""
        self.controller = context.controller(
            f"{prefix}{kind.resource.plural}", self.reconcile, workers=_WORKERS, flow=namespace_of
        )
        self._watch()

    async def run(self) -> None:
        """Follow both clusters until cancelled; wait for a cluster that is down or lacks the API."""
        if self.kind.is_optional:
            await self._both_have_it()
        async with asyncio.TaskGroup() as group:
            for given, informer in ((self.upper, self._upper), (self.lower, self.copies.lower)):
                if given is None:
                    group.create_task(informer.run(), name=f"{self.context.name} {informer.name}")
            if self.kind.reports_foreign_slices:
                foreign = self.surroundings.foreign_slices
                group.create_task(foreign.run(), name=f"{self.context.name} {foreign.name}")
            # Objects that are not listed yet would look deleted.
            for informer in (self._upper, self.copies.lower):
                await informer.wait_synced()
            group.create_task(self.controller.run(), name=self.controller.name)

    async def _both_have_it(self) -> None:
        """Wait until both clusters have the API; log once which one lacks it."""
        kind, lacking = self.kind, ""
        while True:
            found = ""
            for client in (self.context.upper, self.context.lower):
                try:
                    await client.exists(kind.resource)
                except NotFound:
                    found = found or client.cluster
                except (ApiError, ConfigError):
                    pass  # it is down, or refuses; the informer reports that
            if not found:
                return
            if found != lacking:
                lacking = found
                self.context.log.warning(
                    "a cluster lacks the API of a followed kind; install its CustomResourceDefinition, or remove "
                    "the kind from follow",
                    resource=kind.resource.qualified,
                    lacks_it=found,
                )
            await asyncio.sleep(_FOREIGN_AGAIN)

    async def reconcile(self, key: str) -> Result | None:
        """Create, update or delete the copy of one object."""
        upper = self._upper.store.get(key)
        problem = self.context.too_large(namespace_of(key))
        if problem is not None and not self.kind.is_restriction:
            if upper is not None:
                self.pending.failed(upper, problem.event_reason, problem.message)
            return Result(requeue_after=TOO_LARGE_RETRY)
        if await self.copies.remove_misplaced(key, self.surroundings.has_lower_pods):
            self.controller.queue.add_after(key, GRACE)
        is_copied = self.copies.of(key, upper) is not None or bool(self.copies.others(key, upper))
        # An object that waits for its finalizers still has its effect, so its copy stays, too.
        if upper is None or (upper.metadata.deletion_timestamp is not None and not is_copied):
            self._forget(key)
            self.copies.unused.forget(key)
            if not is_copied:
                self._release_references(key)
                return None
            return await self._remove_gone(key)
        if not self.is_wanted(upper):
            return await self._remove_unused(upper)
        return await (self._ensure_unread(upper) if is_stub(upper) else self._ensure(upper))

    async def _remove_gone(self, key: str) -> Result | None:
        """Delete the copy of an upper object that is gone, unless only our cache says so."""
        copy = self.copies.of(key)
        if copy is not None and (known := self._renamed_upper(copy)):
            self.controller.queue.add(known)
            return None
        if await exists(self.context.upper, self.kind.resource, key):
            # Our cache is behind that of another process, which has made the copy.
            return Result(requeue_after=_BEHIND)
        await self._remove(key)
        return None

    def _renamed_upper(self, copy: Object) -> str:
        """Return the key of the upper object whose uid a copy has, if it belongs to the same Service; empty: none.

        EndpointSlices that an earlier release copied have no annotation with the upper name.
        """
        if (service_of := self.kind.service_of) is None:
            return ""
        service = f"{ownership.upper_namespace(copy)}/{service_of(copy.name, copy.labels)}"
        uid = copy.labels.get(names.LABEL_UPPER_UID)
        found = (upper.key for upper in self._upper.store.by_index(_SERVICE, service) if upper.uid == uid)
        return next(found, "")

    async def _ensure_unread(self, stub: Object) -> Result | None:
        """Read an object of which the cache has only a stub, and keep its copy current."""
        if wait := self._reads.wait(stub.key, now=asyncio.get_running_loop().time()):
            return Result(requeue_after=wait)
        again: Result | None = None
        whole = await find_listed(self.context.upper, self.kind.resource, stub.name, namespace=stub.namespace)
        if whole is not None and whole.uid == stub.uid:
            try:
                again = await self._ensure(whole)
            finally:
                self.copies.forget(stub.key)  # it would keep the object in memory
        return again or Result(requeue_after=_UNREAD_AGAIN)

    async def _ensure(self, upper: Object) -> Result | None:
        key, late = upper.key, 0.0
        try:
            is_complete = await self._hold_selectors(upper)
            translation = self.copies.translate(upper)
            if translation.content is None:
                return await self._remove_not_needed(upper)
            outcome = Outcome(await self._references(upper, translation))
            if outcome.problem is not None:
                await self._remove(key)  # the copy would use an object that is not ours
            else:
                outcome = await self.copies.ensure(key, upper, translation.content)
                if outcome.problem is None:
                    await self._delete_others(key, upper)
            if (copy := self.copies.of(key, upper)) is not None:
                late = await self._addresses.report(upper, copy)
        except UntranslatableError as error:
            if self.kind.depends_on_services or error.is_final:
                await self._remove(key)  # it would route what the upper object no longer routes
            self.pending.failed(upper, error.reason, f"Lower cluster {self.context.name}: {error}")
            return None
        except ApiError as error:
            text = f"The copy in lower cluster {self.context.name} cannot be kept current: {error.message}"
            self.pending.failed(upper, "" if is_retryable(error) else "FailedMirror", text)
            raise
        if outcome.problem is not None:
            return self._blocked(upper, outcome.problem)
        if translation.notes:
            notes = "; ".join(translation.notes)
            self.pending.report(upper, "PartlyMirrored", f"Lower cluster {self.context.name}: {notes}")
        if self.kind.reports_foreign_slices and (wrong := self.surroundings.foreign_endpoints(key)):
            self.pending.report(upper, "ForeignEndpoints", f"Lower cluster {self.context.name}: {wrong}")
        self.pending.settled(upper)
        # Other objects of the namespace may have fewer selectors later.
        delays = (outcome.again, late, 0.0 if is_complete else _FOREIGN_AGAIN)
        again = min(filter(None, delays), default=0.0)
        return Result(requeue_after=again) if again else None

    async def _hold_selectors(self, upper: Object) -> bool:
        """Evaluate the namespace selectors of an object; report whether all of them could be evaluated.

        Raises:
            UntranslatableError: a selector is malformed.
        """
        if self.kind.selects_namespaces is None:
            return True
        try:
            selectors = self.kind.namespace_selectors(upper.to_dict())
            return await self.surroundings.selected.hold(self._user(upper.key), upper.namespace, selectors)
        except Exception as error:  # an API server may send anything
            raise malformed(error) from error

    def _blocked(self, upper: Object, problem: Problem) -> Result:
        """Report why an object has no current copy, and return when it is tried again."""
        # A Service in services.always has a namesake in every cluster (kubernetes, kube-dns). An event would be
        # written at each start.
        is_silent = self.kind is SERVICES and self._is_always(upper)
        is_new = self.pending.failed(upper, problem.event_reason, problem.message, is_silent=is_silent)
        is_foreign = problem.event_reason in {SERVICE_CONFLICT, *NAMESPACE_PROBLEMS}
        if is_new and is_foreign and self.kind is SERVICES:
            metrics.FOREIGN_SERVICES.labels(self.context.name).inc()
        again = GRACE if problem.event_reason in NAMESPACE_PROBLEMS else _FOREIGN_AGAIN
        return Result(requeue_after=problem.again or again)

    async def _remove_not_needed(self, upper: Object) -> Result | None:
        """Delete the copy of an object that the lower cluster does not need."""
        for service in self.kind.service_key(upper):
            # Without this, a copy would be deleted while that of its Service is replaced, or while our cache does not
            # have the latter, which another process has made.
            if self.copies.of(upper.key, upper) is not None and await self.surroundings.will_have_service(
                service, is_wanted=self.is_wanted(upper)
            ):
                return Result(requeue_after=GRACE)
        await self._remove(upper.key)
        self.pending.settled(upper)
        return None

    def is_wanted(self, upper: Object) -> bool:
        """Report whether pods of this process, or the configuration, need the copy of an object."""
        return self._is_always(upper) or (
            upper.namespace in self.surroundings.users and self.namespaces.allows_namespace(upper.namespace)
        )

    def _is_always(self, upper: Object) -> bool:
        keys = (upper.key,) if self.kind is SERVICES else self.kind.service_key(upper)
        always = self.context.settings.services.always
        return any(services.is_always(key, always) for key in keys)

    async def _remove_unused(self, upper: Object) -> Result | None:
        """Delete an unused copy after a grace period, unless lower pods of the namespace exist, or others need it."""
        key, namespace = upper.key, upper.namespace
        self._forget(key)
        copy = self.copies.of(key, upper)
        if copy is not None:
            await self.copies.release(key, copy)
            if self.kind.is_kept_for_others(copy, self.surroundings.view()):
                return None  # when that installation removes its annotation, the event requeues this key
        if copy is None or not self.copies.unused.may_remove(key, copy):
            self._release_references(key)
            await self._delete_others(key, upper)
            return None
        if self.kind.demand is Demand.SERVICE:
            # It stays as long as the Service's copy does, for another process.
            return await self._remove_not_needed(upper) if not self._has_service(upper) else None
        if left := self.surroundings.users.grace(namespace):
            return Result(requeue_after=left)
        lower_namespace = self.context.lower_namespace(namespace)
        if self.surroundings.has_lower_pods(lower_namespace) or await have_pods_in(
            self.context, lower_namespace
        ):
            return Result(requeue_after=GRACE)
        await self._remove(key)
        return None

    async def _references(self, upper: Object, translation: Translation) -> Problem | None:
        """Ensure copies of the Secrets and ConfigMaps that an object references; return why one of them cannot be used."""
        named = [("Secret", name) for name in translation.secrets]
        named += [("ConfigMap", name) for name in translation.config_maps]
        if not named and upper.key not in self._with_references:
            return None
        self._release_references(upper.key, unless=upper.uid)
        self._with_references[upper.key] = upper.uid
        return await self.dependencies.ensure_named(upper, named)

    def _release_references(self, key: str, *, unless: str = "") -> None:
        uid = self._with_references.get(key, unless)
        if uid != unless:
            del self._with_references[key]
            self.dependencies.forget_pod(uid)

    async def _remove(self, key: str) -> None:
        self._release_references(key)
        upper = self._upper.store.get(key)
        await self._delete_others(key, upper)
        if (copy := self.copies.of(key, upper)) is not None:
            await self._addresses.report(upper, copy, is_leaving=True)
            await self.copies.delete(copy)

    async def _delete_others(self, key: str, upper: Object | None) -> None:
        """Delete copies that have the name of an earlier upper object or configuration."""
        view = self.surroundings.view()
        for copy in self.copies.others(key, upper):
            if not self.kind.is_obsolete(copy, view):
                continue
            if upper is None or await is_current(self.context.upper, self.kind.resource, upper):
                await self.copies.delete(copy)

    def _forget(self, key: str) -> None:
        self.copies.forget(key)
        self.pending.forget(key)
        self.surroundings.selected.release(self._user(key))

    def _user(self, key: str) -> str:
        return f"{self.kind.resource.plural} {key}"

    def _has_service(self, upper: Object) -> bool:
        has_service = self.surroundings.view().has_service
        return any(has_service(*key.split("/")) for key in self.kind.service_key(upper))

    def _watch(self) -> None:
        queue, kind = self.controller.queue, self.kind

        def upper_changed(found: Object) -> None:
            self.pending.note(found.key)
            queue.add(found.key)

        def copy_changed(copy: Object) -> None:
            for key in kind.upper_key(copy):
                queue.add(key)

        def copy_deleted(copy: Object) -> None:
            for key in kind.upper_key(copy):
                self.pending.note(key)
                queue.add(key)

        self._upper.on_change(upper_changed, upper_changed)
        self.copies.lower.on_change(copy_changed, copy_deleted, with_old=True)
        self.surroundings.on_users(lambda namespace: self._add_all(INDEX_NAMESPACE, namespace, 0))
        if kind.reports_foreign_slices:
            self.surroundings.on_foreign_endpoints(queue.add)
        if kind.demand is Demand.SERVICE:
            self.surroundings.on_services(lambda key: self._add_all(_SERVICE, key, 0))
        if kind.depends_on_services:
            self.surroundings.on_services(
                lambda key: self._add_all(INDEX_NAMESPACE, namespace_of(key), _BATCH)
            )
        if kind.depends_on_pods:
            self.surroundings.on_pods(lambda namespace: self._add_all(INDEX_NAMESPACE, namespace, _BATCH))
        if kind.pods_of is not None:
            self.surroundings.backends.on_change(self._backend_changed)
        if kind.selects_namespaces is not None:
            self.surroundings.on_namespaces(lambda: self._add_all(_SELECTING, "yes", _BATCH))

    def _backend_changed(self, uid: str) -> None:
        """Queue the objects that contain an upper pod."""
        for key in self._indexed(_POD, uid):
            self.copies.depends_on_change(key)
            self.controller.queue.add(key)

    def _indexed(self, index: str, value: str) -> list[str]:
        """Return the keys of an index value; none before ``run``, which queues all objects when they are listed."""
        store = self._upper.store
        return store.index_keys(index, value) if store.has_index(index) else []

    def _add_all(self, index: str, value: str, seconds: float) -> None:
        """Queue the objects of an index value; those of a namespace with many such objects are delayed longer."""
        keys = self._indexed(index, value)
        counts = Counter(key.partition("/")[0] for key in keys)
        for key in keys:
            count = counts[key.partition("/")[0]]
            self.controller.queue.add_after(key, max(seconds, seconds * count / _PER_SECOND))


_KEY_AGAIN = 60.0
"""Seconds until the key is read again if it could not be read."""


@dataclass(eq=False, repr=False)
class AddressReports:
    """Reports the addresses of the copies of one kind in one lower cluster."""

    context: ClusterContext
    kind: Kind
    _key: bytes = b""
    _key_until: float = 0.0
    """Loop time until which a key of this process is used in place of the stored one."""
    _pace: Pace[str] = field(default_factory=Pace)
    """Limits the writes to each upper object."""

    async def report(self, upper: Object | None, copy: Object, *, is_leaving: bool = False) -> float:
        """Write the addresses of a copy to the upper status, and record on the copy those that were added.

        Addresses that were in the upper status before are not recorded, because others wrote them. Returns for how many
        seconds the write has to wait, because the addresses change too often; 0: it was done.

        Args:
            upper: the upper object; None: it is gone.
            copy: its copy.
            is_leaving: remove the addresses at once, because the copy is about to be deleted.

        Raises:
            ApiError: a cluster refuses, or the upper object has changed; the caller retries.
        """
        status = self.kind.addresses
        if upper is None or status is None:
            return 0.0
        below, above = copy.to_dict(), upper.to_dict()
        current = [] if is_leaving else status.read(below)
        if not current and names.ANNOTATION_REPORTED not in copy.annotations:
            return 0.0
        recorder = translate.Recorder(await self._read_key(), self.context.name, upper.uid)
        earlier, present = recorder.read(below), status.present(above)
        added = [entry for entry in current if entry not in earlier and entry not in present]
        if added:
            await self._record(copy, recorder.write([*earlier, *added]))
        wanted = status.merged(above, current, earlier)
        if wanted != present:
            seconds = self._pace.wait(upper.key, now=asyncio.get_running_loop().time())
            if seconds and not is_leaving:
                return seconds
            await patch_only(
                self.context.upper,
                self.kind.resource,
                upper,
                status.patch(wanted),
                resource_version=upper.resource_version,
                subresource="status",
            )
        if not is_leaving and any(entry not in current for entry in earlier):
            # Otherwise an address that another cluster has added meanwhile would be removed each time.
            await self._record(
                copy, recorder.write(entry for entry in [*earlier, *added] if entry in current)
            )
        return 0.0

    async def _record(self, copy: Object, record: str) -> None:
        patch = {"metadata": {"annotations": {names.ANNOTATION_REPORTED: record}}}
        await patch_only(self.context.lower, self.kind.resource, copy, patch)

    async def _read_key(self) -> bytes:
        """Return the stored key. If it cannot be read or written, return one that only this process knows.

        Then addresses of earlier processes are never removed.
        """
        now = asyncio.get_running_loop().time()
        if self._key and (not self._key_until or now < self._key_until):
            return self._key
        namespace = self.context.settings.leader_election.namespace
        stored = SecretKey(self.context.upper, namespace=namespace, name=translate.KEY_OBJECT)
        try:
            self._key, self._key_until = await stored.read(), 0.0
        except (ConfigError, NotFound) as error:
            if not self._key:
                self._key = secrets.token_bytes(KEY_BYTES)
                self.context.log.warning(
                    "addresses of copies are not removed after a restart, because their records cannot be signed",
                    error=str(error),
                )
            self._key_until = now + _KEY_AGAIN
        return self._key
