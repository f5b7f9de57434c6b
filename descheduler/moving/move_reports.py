"""Reports the outcome of each move as an event on the pod, in the log and in the metrics."""

from __future__ import annotations

from controller_runtime import log
from controller_runtime.events.recorder import EventRecorder, EventType
from controller_runtime.objects import Object
from controller_runtime.util.recent import Recent
from descheduler.memory import history
from descheduler.moving import eviction
from descheduler.moving.request import Move, Outcome
from descheduler.view import pods


class MoveReports:
    """Records what happened to a pod; each method returns the outcome for the strategy."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._recorded: Recent[tuple[str, str], bool] = Recent()
        """UIDs of pods and the reasons of their events."""
        self._log = log.get_logger(component="mover")

    def moved(self, pod: Object, node: str, request: Move, *, how: str) -> Outcome:
        """Report that a pod was evicted or re-created (``how``)."""
        eviction.MOVED.labels(node, request.strategy, how).inc()
        self._log_move("pod is being moved", pod, node, request, how=how)
        if how == "evicted":  # for a re-created pod, the Recreator records the event on the new pod
            self._recorder.event(pod, "Normal", "Rescheduled", f"Moved off {node}: {request.reason}")
        return Outcome(moved=True)

    def pretend(self, pod: Object, node: str, request: Move) -> Outcome:
        """Report what would happen without the dry run."""
        how = "re-created" if pods.controller_of(pod) is None else "evicted"
        if self._event_once(
            pod, "Normal", "WouldReschedule", f"Would be {how} to leave {node}: {request.reason}"
        ):
            self._log_move("dry run: pod would be moved", pod, node, request, how=how)
        return Outcome(why="dry run")

    def give_up(self, pod: Object, decision: history.Decision) -> Outcome:
        """Report that the owner has reached the maximum of rounds."""
        message = f"Stays: {decision.rounds} moves have not helped (--max-deschedules)"
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
