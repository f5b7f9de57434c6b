"""Upper objects of one kind without a current copy, and new pods that wait for these copies."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from controller_runtime.cache.informer import Informer
from controller_runtime.errors import ConfigError, Forbidden, NotFound, Unavailable
from controller_runtime.objects import Object
from virtual_node import metrics
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.problems import Problem, policy_missing
from virtual_node.translate.kinds import Kind

_SECONDS = 2.0
"""Seconds for which a new pod waits for the copies of its namespace before it is requeued."""
_MAX_WAITING = 5
"""New pods that wait at the same time, because each occupies a worker that pods of other tenants need."""


@dataclass(eq=False, repr=False)
class PendingCopies:
    """Keys of upper objects without a current copy, so that a new pod does not need to read all objects."""

    context: ClusterContext
    kind: Kind
    upper: Informer
    lower: Informer
    """The copies of the upper objects."""
    wake: Callable[[str], None]
    """Requeues the upper pod of a uid."""
    on_change: Callable[[], None] = lambda: None
    """Called when the copy of an object is made or cannot be made."""
    _pending: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """Keys by namespace, if new pods wait for the copies of the kind."""
    _problems: dict[str, str] = field(default_factory=dict)
    _reported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Uid and last reported message, by key."""
    _progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new event, at every change."""
    _waiting: int = 0
    _blocked: dict[str, str] = field(default_factory=dict)
    """Upper namespaces of the pods that ``wait`` refused, by uid."""

    def note(self, key: str, problem: str = "") -> None:
        """Record that an upper object has no current copy, unless it is being deleted or gone.

        Args:
            key: the key of the object.
            problem: why it cannot get a copy; empty: it has not been tried.
        """
        upper = self.upper.store.get(key)
        if upper is None or upper.metadata.deletion_timestamp is not None:
            self._remove(key)
        else:
            if self.kind.is_restriction:
                self._pending[key.partition("/")[0]][key] = None
            self._set(key, problem)

    def settled(self, upper: Object) -> None:
        """Record that an object has a current copy or needs none."""
        if self.upper.store.get(upper.key) is upper:
            self._remove(upper.key)

    def forget(self, key: str) -> None:
        """Record that an object has no copy, and forget what was reported about it."""
        self._reported.pop(key, None)
        self.note(key)

    def has_failed(self, key: str) -> bool:
        """Report whether the last try to make the copy of an upper object failed."""
        return key in self._problems

    def failed(self, upper: Object, reason: str, message: str, *, is_silent: bool = False) -> bool:
        """Record why an object has no current copy, and report it unless ``reason`` is empty; see ``report``."""
        self.note(upper.key, message)
        return bool(reason) and self.report(upper, reason, message, is_silent=is_silent)

    def report(self, upper: Object, reason: str, message: str, *, is_silent: bool = False) -> bool:
        """Write an event unless it is silent; do nothing and return False if the last one about the object was the same."""
        if self._reported.get(upper.key) == (upper.uid, message):
            return False
        self._reported[upper.key] = (upper.uid, message)
        if self.kind.is_quiet:
            self.context.log.warning("copy is blocked", object=f"{self.kind.kind} {upper.key}", why=message)
        elif not is_silent:
            self.context.warn(upper, reason, message)
        return True

    async def wait(self, namespace: str, uid: str) -> Problem | None:
        """Wait a limited time until all objects of an upper namespace have current copies; return why they have not.

        If a Problem is returned, the pod of the uid is requeued when no copy is missing any more.

        Raises:
            Unavailable: no copy has failed, but not all exist yet; the caller retries.
        """

        def missing() -> Problem | None:
            key = next(iter(self._pending.get(namespace, ())), "")
            if (problem := self._unread()) is not None or not key:
                return problem
            return policy_missing(key.partition("/")[2], self._problems.get(key, ""))

        problem = missing()
        if problem is not None and not problem.message and self._waiting < _MAX_WAITING:
            problem = await self._changed(missing)
        if problem is not None and not problem.message:
            raise Unavailable("copies for new pods do not exist yet")
        if problem is None:
            self.forget_pod(uid)
        else:
            self._blocked[uid] = namespace
        return problem

    def forget_pod(self, uid: str) -> None:
        """Record that a pod is gone or does not wait."""
        self._blocked.pop(uid, None)

    async def _changed(self, missing: Callable[[], Problem | None]) -> Problem | None:
        """Return the result of ``missing`` when it is None or has a message, or after ``_SECONDS``."""
        self._waiting += 1
        try:
            async with asyncio.timeout(_SECONDS):
                while (problem := missing()) is not None and not problem.message:
                    await self._progress.wait()
        except TimeoutError:
            return missing()
        else:
            return problem
        finally:
            self._waiting -= 1

    def _unread(self) -> Problem | None:
        """Return why the objects or their copies are not known; an empty message: nothing has failed."""
        plural = self.upper.resource.plural
        for informer, cluster in ((self.upper, "upper"), (self.lower, "lower")):
            error = informer.last_error
            if not informer.has_synced:
                why = f"{plural} of the {cluster} cluster cannot be read: {error}"
                return policy_missing("", why if error else "")
            if error and informer is self.upper:
                # There may be a new policy that was not read.
                why = f"{plural} of the upper cluster cannot be watched: {error}"
                # Other errors are usually brief.
                return policy_missing(
                    "", why if isinstance(error, Forbidden | NotFound | ConfigError) else ""
                )
        return None

    def _remove(self, key: str) -> None:
        namespace = key.partition("/")[0]
        if namespace in self._pending:
            self._pending[namespace].pop(key, None)
            if not self._pending[namespace]:
                del self._pending[namespace]
                for uid in [uid for uid, blocked in self._blocked.items() if blocked == namespace]:
                    del self._blocked[uid]
                    self.wake(uid)
        self._set(key, "")

    def _set(self, key: str, problem: str) -> None:
        if problem:
            self._problems[key] = problem
        else:
            self._problems.pop(key, None)
        if self.kind.setting:
            failed = metrics.NOT_FOLLOWED.labels(self.context.name, self.kind.resource.plural)
            failed.set(len(self._problems))
        self._progress.set()
        self._progress = asyncio.Event()
        self.on_change()
