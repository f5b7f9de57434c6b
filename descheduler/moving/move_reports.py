"""Requests to move pods, and their results: events on the pods, the log and the metrics.

Pods that stay are shown by a gauge, because no event happens while they stay. A pod waits from the mover's first refusal until it
is deleted or its strategy no longer requests the move. A strategy that no longer requests a move calls ``settle``, or does not
request the move within ``one_pass``.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Gauge

from clusterset.model import names
from controller_runtime import log
from controller_runtime.cache.informer import Informer
from controller_runtime.events import EventRecorder, EventType
from controller_runtime.objects import Object
from controller_runtime.util.buffers import Recent
from descheduler import memory

MOVED = Counter(
    "virtual_node_descheduler_moved_total", "Pods moved off a virtual node.", ["node", "strategy", "how"]
)
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


@dataclass(frozen=True, slots=True)
class Move:
    """Request to move a pod."""

    strategy: str
    """Name of the strategy."""
    reason: str
    """Reason for the event, such as ``Unschedulable: 0/3 nodes are available``."""
    avoid: bool = True
    """Whether the successor avoids the node for the freeze period."""
    counts: bool = True
    """Whether the move counts for the owner's back-off and maximum of rounds."""
    force: bool = False
    """The cluster is lost. Evict pods before their replacement is Ready, and delete bare pods without grace period, because a
    lost cluster cannot confirm that they have ended. Pods with a lower node are moved only if another virtual node has room."""
    budget_matters: bool = True
    """Whether disruption budgets are respected. If not, a pod is deleted if a budget refuses its eviction."""
    timeout: float = 300.0
    """Seconds in which the replacement must be Ready, if it starts before the pod is evicted."""
    drain: str = ""
    """Drain request that the move is part of, as text; empty: none. If the request changes, the move is cancelled."""
    local_storage: bool = False
    """Whether the pod may move although it loses its local storage."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a request."""

    moved: bool = False
    """Whether the move has begun."""
    why: str = ""
    """Why the pod stays, as text for users."""
    cause: str = ""
    """Why the pod waits to be moved, as metric label; empty if it does not wait."""
    retry_after: float | None = None
    """Seconds after which the strategy must request the move again; None: only when an object changes."""
    is_total: bool = False
    """Whether the cause applies to the pods of all owners."""
    needs_node: bool = False
    """Whether the strategy must request the move again when the virtual nodes change."""


class MoveReports:
    """Records what happened to a pod; each method returns the outcome for the strategy."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._recorded: Recent[tuple[str, str], bool] = Recent()
        """UIDs of pods and the reasons of their events."""
        self._log = log.get_logger(component="mover")

    def moved(self, pod: Object, node: str, request: Move, *, how: str) -> Outcome:
        """Report that a pod was evicted or re-created (``how``)."""
        MOVED.labels(node, request.strategy, how).inc()
        self._log_move("pod is being moved", pod, node, request, how=how)
        if how == "evicted":  # for a re-created pod, the Recreator records the event on the new pod
            self._recorder.event(pod, "Normal", "Rescheduled", f"Moved off {node}: {request.reason}")
        return Outcome(moved=True)

    def pretend(self, pod: Object, node: str, request: Move) -> Outcome:
        """Report what would happen without the dry run."""
        how = "re-created" if pod.controller is None else "evicted"
        if self._event_once(
            pod, "Normal", "WouldReschedule", f"Would be {how} to leave {node}: {request.reason}"
        ):
            self._log_move("dry run: pod would be moved", pod, node, request, how=how)
        return Outcome(why="dry run")

    def give_up(self, pod: Object, decision: memory.Decision) -> Outcome:
        """Report that the owner has reached the maximum of rounds."""
        message = f"Stays: {decision.rounds} moves have not helped (--max-deschedules)"
        if pod.controller is not None and pod.labels.get(names.LABEL_VIRTUAL_POD) != "true":
            message += (
                f'. Label the pod template {names.LABEL_VIRTUAL_POD}: "true", so that the webhook makes replacements avoid '
                "the virtual node"
            )
        self._event_once(pod, "Warning", "RescheduleGivenUp", message)
        return Outcome(why="given up", cause="given up", retry_after=decision.wait)

    def delayed(self, pod: Object, why: str, *, retry_after: float) -> Outcome:
        """Report that a disruption budget refuses the eviction for now; ``retry_after`` is in seconds."""
        self._event_once(pod, "Warning", "RescheduleDelayed", f"Eviction refused: {why}")
        return Outcome(why=why, cause="disruption budget", retry_after=retry_after)

    def stays(
        self,
        pod: Object,
        why: str,
        *,
        cause: str,
        needs_node: bool = False,
        retry_after: float | None = None,
    ) -> Outcome:
        """Report why a pod stays; ``cause`` is the label in metrics, ``retry_after`` is in seconds."""
        self._event_once(pod, "Normal", "NotRescheduled", f"Stays: {why}")
        return Outcome(why=why, cause=cause, needs_node=needs_node, retry_after=retry_after)

    def _log_move(self, text: str, pod: Object, node: str, request: Move, *, how: str) -> None:
        self._log.info(
            text,
            pod=pod.key,
            uid=pod.uid,
            node=node,
            strategy=request.strategy,
            how=how,
            why=request.reason,
        )

    def _event_once(self, pod: Object, type_: EventType, reason: str, message: str) -> bool:
        """Record an event and return True; return False if this pod already had an event with this reason."""
        key = (pod.uid, reason)
        if self._recorded.touch(key):
            return False
        self._recorded[key] = True
        self._recorder.event(pod, type_, reason, message)
        return True


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
