"""Decides when copies are needed, and when a copy that none of our pods needs may be deleted.

Upper namespaces need copies if they have pods on our virtual nodes, or had some less than a grace period ago.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object

GRACE = 60.0
"""Seconds for which copies are kept after the last pod of their namespace is gone, because the next rollout
may use them."""


@dataclass(eq=False, repr=False)
class NamespaceUsers:
    """Uids of upper pods by namespace; reports when a namespace gets its first pod and loses its last."""

    pods: Iterable[Informer]
    """The informers of upper pods of our virtual nodes."""
    on_change: Callable[[str], None]
    """Called with a namespace when it gets its first pod or loses its last."""
    _uids: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _ends: dict[str, float] = field(default_factory=dict)
    """Loop time at which the grace period of a namespace without pods ends."""

    def __post_init__(self) -> None:
        """Register handlers on the informers."""
        for informer in self.pods:
            informer.add_handler(on_add=self._came, on_delete=self._left)

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._uids

    def grace(self, namespace: str) -> float:
        """Return the remaining seconds for which a namespace without pods keeps its copies; 0: none.

        The grace period begins with the first call after the namespace lost its last pod, or after a restart.
        """
        now = asyncio.get_running_loop().time()
        return max(0.0, self._ends.setdefault(namespace, now + GRACE) - now)

    def _came(self, pod: Object, _initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        is_first = pod.namespace not in self._uids
        self._uids[pod.namespace].add(pod.uid)
        if is_first:
            self._ends.pop(pod.namespace, None)
            self.on_change(pod.namespace)

    def _left(self, pod: Object) -> None:
        uids = self._uids[pod.namespace]
        uids.discard(pod.uid)
        if not uids:
            del self._uids[pod.namespace]
            self.on_change(pod.namespace)


class UnusedCopies:
    """Remembers the lower uids of copies that may be deleted because none of our pods uses them.

    A copy with another uid than at the first call was recreated by another process, for pods that have no lower pods yet.
    It is not deleted, because that process would recreate it again and again.
    """

    def __init__(self) -> None:
        self._uids: dict[str, dict[str, str]] = {}

    def may_remove(self, key: str, copy: Object) -> bool:
        """Report whether to delete a copy of the upper object or namespace ``key`` that none of our pods uses."""
        return self._uids.setdefault(key, {}).setdefault(copy.namespace, copy.uid) == copy.uid

    def needed(self, key: str, namespace: str) -> None:
        """Note that our pods need the copy in a lower namespace again."""
        self._uids.get(key, {}).pop(namespace, None)

    def forget(self, key: str) -> None:
        """Forget the copies of an upper object or namespace, because it is gone."""
        self._uids.pop(key, None)
