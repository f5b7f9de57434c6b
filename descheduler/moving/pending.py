"""Metrics of pods that a strategy requests to move and that stay: a gauge, because no event happens while they stay.

A pod waits from the mover's first refusal until it is deleted or its strategy no longer requests the move. A
strategy that no longer requests a move calls ``settle``, or does not request the move within ``one_pass``.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Gauge

from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object

_REFUSED = Counter(
    "virtual_node_descheduler_not_moved_total",
    "Moves that a strategy requested and the mover refused.",
    ["cause"],
)
_WAITING = Gauge(
    "virtual_node_descheduler_waiting_pods",
    "Pods that a strategy selected and that are not moved, by cause.",
    ["strategy", "cause"],
)


@dataclass(eq=False)
class Waiting:
    """Pods that wait to be moved, with causes. The mover adds pods; strategies remove them. Resets the gauge."""

    cache: Informer
    """Informer of pods; when it reports the deletion of a pod, the pod no longer waits."""

    def __post_init__(self) -> None:
        self._causes: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """Strategy → pod UID → cause."""
        self._asked: dict[str, set[str]] = {}
        """Strategy with a pass in progress → UIDs of pods whose move it requested."""
        _WAITING.clear()
        self.cache.add_handler(on_delete=self._gone)

    def note(self, strategy: str, pod: Object, cause: str) -> None:
        """Count a refused move and add the pod to the gauge.

        Args:
            strategy: name of the strategy that requested the move.
            pod: the pod that was judged. If the cached pod has changed since, it is not added, because its
                strategy judges it again and might not remove it.
            cause: one of a few fixed texts, because it is a metric label.
        """
        _REFUSED.labels(cause).inc()
        if strategy in self._asked:
            self._asked[strategy].add(pod.uid)
        cached = self.cache.store.get(pod.key)
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
        """Remove pods from the gauge: the strategy no longer requests their move, or they are being deleted."""
        for pod in settled:
            self._settle(strategy, pod.uid)

    @contextlib.contextmanager
    def one_pass(self, strategy: str, *, last: bool = False) -> Iterator[None]:
        """Wrap a pass over all pods; if it succeeds, remove from the gauge the pods whose move was not requested.

        Args:
            strategy: name of the strategy.
            last: no other pass follows, so remove all pods.
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
