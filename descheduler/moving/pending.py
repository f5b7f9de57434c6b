"""The pods that strategies want moved and that stay: counted, and a gauge, because a standstill makes no events.

A pod waits from the moment that the mover has refused to move it until it is gone, or its strategy wants it moved no
longer. Only the strategy knows the latter, and tells: by ``settle``, or by not asking again within ``one_pass``.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import Counter, Gauge

from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object

_REFUSED = Counter(
    "virtual_node_descheduler_not_moved_total",
    "Pods that a strategy wanted moved and that stayed.",
    ["cause"],
)
_WAITING = Gauge(
    "virtual_node_descheduler_waiting_pods",
    "Pods that a strategy wants moved and that stay, by why.",
    ["strategy", "cause"],
)


class Waiting:
    """Who waits, and why; written by the mover and the strategies, from one event loop."""

    def __init__(self, cache: Informer) -> None:
        """Begin with nobody.

        Args:
            cache: of pods; what is gone from there waits no longer.
        """
        self._cache = cache
        self._causes: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """Strategy → pod's uid → cause."""
        self._asked: dict[str, set[str]] = {}
        """Strategy that is within a pass → uids that it has asked for."""
        _WAITING.clear()
        cache.add_handler(on_delete=self._gone)

    def note(self, strategy: str, pod: Object, cause: str) -> None:
        """A pod stays, for now.

        Args:
            strategy: that wants it moved.
            pod: as it was judged. One that has changed since is judged anew by whoever follows pods: what is said
                of its past would stay for good.
            cause: one of few: it is a label.
        """
        _REFUSED.labels(cause).inc()
        if strategy in self._asked:
            self._asked[strategy].add(pod.uid)
        cached = self._cache.store.get(pod.key)
        if cached is None or cached.resource_version != pod.resource_version:
            return
        causes = self._causes[strategy]
        earlier = causes.get(pod.uid)
        if earlier == cause:
            return
        if earlier is not None:
            _WAITING.labels(strategy, earlier).dec()
        causes[pod.uid] = cause
        _WAITING.labels(strategy, cause).inc()

    def settle(self, strategy: str, *settled: Object) -> None:
        """A strategy does not want these pods moved any more, or they are ending."""
        for pod in settled:
            self._settle(strategy, pod.uid)

    @contextlib.contextmanager
    def one_pass(self, strategy: str, *, last: bool = False) -> Iterator[None]:
        """Around a pass over all pods: when it ends well, what it has not asked for waits no longer.

        Args:
            strategy: that makes it.
            last: nobody will ask again, so nothing waits afterwards.
        """
        asked = self._asked[strategy] = set()
        try:
            yield
            for uid in list(self._causes[strategy]):
                if last or uid not in asked:
                    self._settle(strategy, uid)
        finally:
            del self._asked[strategy]

    def _settle(self, strategy: str, uid: str) -> None:
        cause = self._causes[strategy].pop(uid, None)
        if cause is not None:
            _WAITING.labels(strategy, cause).dec()

    def _gone(self, pod: Object) -> None:
        for strategy in self._causes:
            self._settle(strategy, pod.uid)
