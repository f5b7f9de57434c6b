"""Upper objects of one kind without a current copy, and new pods that wait for these copies."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from controller_runtime.errors import Unavailable
from virtual_node.controllers.base.problems import Problem, policy_missing

_SECONDS = 2.0
"""Seconds for which a new pod waits for the copies of its namespace before it is requeued."""
_MAX_WAITING = 5
"""New pods that wait at the same time, because each occupies a worker that pods of other tenants need."""


class PendingCopies:
    """Keys of upper objects without a current copy, by namespace, so that a new pod does not need to read all objects."""

    def __init__(self) -> None:
        """Create an empty record."""
        self._pending: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._problems: dict[str, str] = {}
        self._progress = asyncio.Event()
        """Set, and replaced by a new event, at every change."""
        self._waiting = 0

    @property
    def failed(self) -> int:
        """Return the number of objects that cannot get a current copy."""
        return len(self._problems)

    def add(self, key: str, problem: str = "") -> None:
        """Note that an object has no current copy, and why it cannot get one; empty: it has not been tried."""
        self._pending[key.partition("/")[0]][key] = None
        self._note(key, problem)

    def remove(self, key: str) -> None:
        """Note that an object has a current copy or needs none."""
        namespace = key.partition("/")[0]
        if namespace in self._pending:
            self._pending[namespace].pop(key, None)
            if not self._pending[namespace]:
                del self._pending[namespace]
        self._note(key, "")

    async def wait(self, namespace: str, unread: Callable[[], Problem | None]) -> Problem | None:
        """Wait a limited time until all objects of an upper namespace have current copies; return why they have not.

        Args:
            namespace: the upper namespace.
            unread: returns why the objects are not known; None: they are known.

        Raises:
            Unavailable: no copy has failed, but not all exist yet; the caller retries.
        """

        def missing() -> Problem | None:
            key = next(iter(self._pending.get(namespace, ())), "")
            if (problem := unread()) is not None or not key:
                return problem
            return policy_missing(key.partition("/")[2], self._problems.get(key, ""))

        problem = missing()
        if problem is not None and not problem.message and self._waiting < _MAX_WAITING:
            problem = await self._changed(missing)
        if problem is not None and not problem.message:
            raise Unavailable("copies for new pods do not exist yet")
        return problem

    async def _changed(self, missing: Callable[[], Problem | None]) -> Problem | None:
        """Return the result of ``missing`` once it is final, or after a limited time."""
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

    def _note(self, key: str, problem: str) -> None:
        if problem:
            self._problems[key] = problem
        else:
            self._problems.pop(key, None)
        self._progress.set()
        self._progress = asyncio.Event()
