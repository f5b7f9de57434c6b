"""Copies upper objects of one kind to the lower cluster for the pods that run there, as is done for Services.

An object is copied while its namespace has pods on our virtual nodes. The work queue is keyed by the upper object
(``namespace/name``). ``reconcile`` compares the caches and writes the difference, so it may run at any time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterset.model.namespace_map import NEVER_MIRRORED
from clusterset.model.policy.copied_keys import refused
from controller_runtime.apimachinery import readable
from controller_runtime.cache.namespace_budget import is_stub
from controller_runtime.client.reads import find_listed
from controller_runtime.errors import ApiError, ConfigError, NotFound, is_retryable
from controller_runtime.objects import Object
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base import peers
from virtual_node.controllers.base.context import TOO_LARGE_RETRY, ClusterContext, namespace_of
from virtual_node.controllers.base.pace import Pace
from virtual_node.controllers.base.problems import Problem
from virtual_node.controllers.dependencies.config_maps_and_secrets import DependencyController
from virtual_node.controllers.follow.addresses import AddressReports
from virtual_node.controllers.follow.copies import FollowedCopies, upper_key
from virtual_node.controllers.follow.kinds import Kind
from virtual_node.controllers.follow.pending import PendingCopies
from virtual_node.controllers.follow.surroundings import Surroundings
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.controllers.services.users import GRACE
from virtual_node.translate.follow.view import Translation, UntranslatableError

_FOREIGN_AGAIN = 600.0
"""Seconds until a taken name is tried again."""
_BATCH = 1.0
"""Seconds for which changes of pods and namespaces are collected."""
_BEHIND = 5.0
"""Seconds until a requeue while a cache is behind."""
_PER_SECOND = 100
"""Objects per second and namespace that are queued after changes of pods and namespaces."""
_UNREAD_BURST, _UNREAD_AGAIN = 5, 60.0
"""Reads of one object at once that the cache cannot contain, and seconds per read in the long run."""
_WORKERS = 4
_NAMESPACE = "namespace"
_SELECTING = "selecting"
"""Index of the objects whose copies depend on other namespaces."""


@dataclass(eq=False, repr=False)
class FollowController:
    """Keeps the lower copies of upper objects of one kind."""

    context: ClusterContext
    kind: Kind
    namespaces: Namespaces
    surroundings: Surroundings
    dependencies: DependencyController
    """Copies the Secrets that the objects reference."""
    wake: Callable[[str], None]
    """Requeues the upper pod of a uid."""
    _with_secrets: dict[str, str] = field(default_factory=dict)
    """Uids of objects whose Secrets are copied, by key."""
    _reads: Pace[str] = field(default_factory=lambda: Pace(burst=_UNREAD_BURST, qps=1 / _UNREAD_AGAIN))

    def __post_init__(self) -> None:
        """Create the caches and the work queue."""
        self._upper = self.context.upper_informer(
            self.kind.resource,
            indexers={_NAMESPACE: lambda found: (found.namespace,), _SELECTING: self.kind.selecting},
        )
        self._copies = FollowedCopies(self.context, self.kind, namespaces=self.namespaces)
        self._addresses = AddressReports(self.context, self.kind)
        self.pending = PendingCopies(self.context, self._upper, self._copies.lower, self.wake)
        """Objects without a current copy, for which new pods wait."""
        self.controller = self.context.controller(
            f"follow-{self.kind.resource.plural}", self.reconcile, workers=_WORKERS, flow=namespace_of
        )
        self._watch()

    async def run(self) -> None:
        """Follow both clusters until cancelled; wait for a cluster that is down or lacks the API."""
        if self.kind.is_optional:
            await self._both_have_it()
        async with asyncio.TaskGroup() as group:
            for informer in (self._upper, self._copies.lower):
                group.create_task(informer.run(), name=f"{self.context.name} {informer.name}")
            # Objects that are not listed yet would look deleted.
            for informer in (self._upper, self._copies.lower):
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
        for copy in self._copies.misplaced(key):
            # The configuration has changed and maps the upper namespace to another lower one now.
            if self.surroundings.has_lower_pods(copy.namespace):
                self.controller.queue.add_after(key, GRACE)
            elif self._copies.may_remove_unused(key, copy) and not await peers.have_pods_in(
                self.context, copy.namespace
            ):
                await self._copies.delete(copy)
        is_copied = self._copies.of(key) is not None or bool(self._copies.renamed(key))
        # An object that waits for its finalizers still has its effect, so its copy stays, too.
        if upper is None or (upper.metadata.deletion_timestamp is not None and not is_copied):
            self._forget(key)
            self._copies.forget_unused(key)
            if not is_copied:
                self._release_secrets(key)
                return None
            if upper is None and await peers.exists(self.context.upper, self.kind.resource, key):
                # Our cache is behind that of another process, which has made the copy.
                return Result(requeue_after=_BEHIND)
            await self._remove(key)
            return None
        if not self._is_wanted(upper):
            return await self._remove_unused(upper)
        return await (self._ensure_unread(upper) if is_stub(upper) else self._ensure(upper))

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
                self._copies.forget(stub.key)  # it would keep the object in memory
        return again or Result(requeue_after=_UNREAD_AGAIN)

    async def _ensure(self, upper: Object) -> Result | None:
        try:
            translation, is_complete = await self._translate(upper)
            if translation.spec is None:
                await self._remove(upper.key)
                self.pending.settled(upper)
                return None
            late = 0.0
            outcome: Problem | float | None = await self._secrets(upper, translation.secrets)
            if outcome is None:
                outcome = await self._copies.ensure(upper, translation.spec)
                if not isinstance(outcome, Problem):
                    await self._delete_renamed(upper.key)
            else:
                await self._remove(upper.key)  # the copy would use a Secret that is not ours
            if (copy := self._copies.of(upper.key)) is not None:
                late = await self._addresses.report(upper, copy)
        except UntranslatableError as error:
            if self.kind.depends_on_services:
                await self._remove(upper.key)  # it would route what the upper object no longer routes
            self.pending.failed(upper, "NotMirrored", f"Lower cluster {self.context.name}: {error}")
            return None
        except ApiError as error:
            text = f"The copy in lower cluster {self.context.name} cannot be kept current: {error.message}"
            self.pending.failed(upper, "" if is_retryable(error) else "FailedMirror", text)
            raise
        if isinstance(outcome, Problem):
            self.pending.failed(upper, outcome.event_reason, outcome.message)
            return Result(requeue_after=outcome.again or _FOREIGN_AGAIN)
        if translation.notes:
            self.pending.report(
                upper,
                "PartlyMirrored",
                f"Lower cluster {self.context.name}: {'; '.join(translation.notes)}",
            )
        self.pending.settled(upper)
        delays = [delay for delay in (outcome, late or None) if delay is not None]
        if not is_complete:
            delays.append(_FOREIGN_AGAIN)  # other objects of the namespace may have fewer selectors then
        return Result(requeue_after=min(delays)) if delays else None

    async def _translate(self, upper: Object) -> tuple[Translation, bool]:
        """Return the copy of an object, and whether all its namespace selectors could be evaluated."""
        rules = self.context.rules.policy.of(upper.namespace)
        if keys := refused(self.kind.resource.kind, upper.annotations, rules.metadata):
            raise UntranslatableError(
                f"{readable.some(keys)} may not be copied. Remove it, or ask the administrator of virtual-node, who can set "
                f"it in {rules.sources['metadata'].removesuffix(', default')}"
            )
        try:
            body = upper.to_dict()
            is_complete = await self.surroundings.selected.hold(
                self._user(upper.key), upper.namespace, self.kind.namespace_selectors(body)
            )
            return self.kind.translate(body, self.surroundings.view()), is_complete
        except UntranslatableError:
            raise
        except Exception as error:  # an API server may send anything
            raise UntranslatableError(f"the object is malformed: {error!r}"[:500]) from error

    def _is_wanted(self, upper: Object) -> bool:
        return (
            upper.namespace in self.surroundings.users
            and self.context.lower_namespace(upper.namespace) != NEVER_MIRRORED
            and self.namespaces.allows_namespace(upper.namespace)
        )

    async def _remove_unused(self, upper: Object) -> Result | None:
        """Delete an unused copy after a grace period, unless lower pods of the namespace exist."""
        key, namespace = upper.key, upper.namespace
        self._forget(key)
        copy = self._copies.of(key)
        if copy is None or not self._copies.may_remove_unused(key, copy):
            self._release_secrets(key)
            await self._delete_renamed(key)
            return None
        if left := self.surroundings.users.grace(namespace):
            return Result(requeue_after=left)
        lower_namespace = self.context.lower_namespace(namespace)
        if self.surroundings.has_lower_pods(lower_namespace) or await peers.have_pods_in(
            self.context, lower_namespace
        ):
            return Result(requeue_after=GRACE)
        await self._remove(key)
        return None

    async def _secrets(self, upper: Object, names: tuple[str, ...]) -> Problem | None:
        """Ensure copies of the Secrets that an object references; return why one of them cannot be used."""
        if not names and upper.key not in self._with_secrets:
            return None
        self._release_secrets(upper.key, unless=upper.uid)
        self._with_secrets[upper.key] = upper.uid
        return await self.dependencies.ensure_secrets(upper, names)

    def _release_secrets(self, key: str, *, unless: str = "") -> None:
        uid = self._with_secrets.get(key, unless)
        if uid != unless:
            del self._with_secrets[key]
            self.dependencies.forget_pod(uid)

    async def _remove(self, key: str) -> None:
        self._release_secrets(key)
        await self._delete_renamed(key)
        if (copy := self._copies.of(key)) is not None:
            upper = self._upper.store.get(key)
            await self._addresses.report(upper, copy, is_leaving=True)
            await self._copies.delete(copy)

    async def _delete_renamed(self, key: str) -> None:
        for copy in self._copies.renamed(key):
            await self._copies.delete(copy)

    def _forget(self, key: str) -> None:
        self._copies.forget(key)
        self.pending.forget(key)
        self.surroundings.selected.release(self._user(key))

    def _user(self, key: str) -> str:
        return f"{self.kind.resource.plural} {key}"

    def _watch(self) -> None:
        queue = self.controller.queue

        def upper_changed(found: Object) -> None:
            self.pending.note(found.key)
            queue.add(found.key)

        def copy_changed(copy: Object) -> None:
            for key in upper_key(copy):
                queue.add(key)

        def copy_deleted(copy: Object) -> None:
            for key in upper_key(copy):
                self.pending.note(key)
                queue.add(key)

        self._upper.on_change(upper_changed, upper_changed)
        self._copies.lower.on_change(copy_changed, copy_deleted, with_old=True)
        self.surroundings.on_users(lambda namespace: self._add_all(_NAMESPACE, namespace, 0))
        if self.kind.depends_on_services:
            self.surroundings.on_services(lambda namespace: self._add_all(_NAMESPACE, namespace, _BATCH))
        if self.kind.depends_on_pods:
            self.surroundings.on_pods(lambda namespace: self._add_all(_NAMESPACE, namespace, _BATCH))
        if self.kind.selects_namespaces is not None:
            self.surroundings.on_namespaces(lambda: self._add_all(_SELECTING, "yes", _BATCH))

    def _add_all(self, index: str, value: str, seconds: float) -> None:
        """Queue the objects of an index value; those of a namespace with many such objects are delayed longer."""
        keys = self._upper.store.index_keys(index, value)
        counts = Counter(key.partition("/")[0] for key in keys)
        for key in keys:
            count = counts[key.partition("/")[0]]
            self.controller.queue.add_after(key, max(seconds, seconds * count / _PER_SECOND))
