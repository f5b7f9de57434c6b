"""Moves pods for all strategies and applies every rule about moving.

A pod may be moved if it is evictable, another ready virtual node admits it, its owner is not in back-off and
has not reached the maximum of rounds, and the pass has not reached its limits. A pod that may run in a silent cluster is moved
only because the cluster is lost, and only if another virtual node has room (``rooms``). Bare pods are re-created
(``recreation``). Pods with a controller are evicted after the node to avoid has been written to the ConfigMap
that the webhook reads. A Ready pod is evicted only when its owner can spare it (``departures``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from clusterset.model.moving import movable, node_avoidance
from clusterset.model.moving.drain import How
from controller_runtime import resources
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.util.backoff import ExponentialBackoff
from controller_runtime.util.keyed_locks import KeyedLocks
from descheduler.config.eviction import EvictionOptions
from descheduler.memory import history
from descheduler.memory.history import Verdict
from descheduler.memory.store import Memory
from descheduler.moving import eviction
from descheduler.moving.departure_plan import Plan
from descheduler.moving.departures import Departures
from descheduler.moving.limits import PassLimits
from descheduler.moving.move_reports import MoveReports
from descheduler.moving.pending import Waiting
from descheduler.moving.record_store import NotRecordedError, RecordStore
from descheduler.moving.recreation import Recreator
from descheduler.moving.request import Move, Outcome
from descheduler.moving.rooms import Rooms
from descheduler.view import claims, pods, replacement
from descheduler.view.cluster import ClusterView
from descheduler.view.departure import Departure
from descheduler.view.record import Record

_SETTLE = 0.25
"""Seconds to wait until the webhook's replicas have received the node that a pod's successor avoids."""
_REFUSAL_RETRY = 60.0
_REJUDGE = 0.5
_WAVE = 2.0
"""Seconds after which a pod that waits for other pods of its owner is judged again."""
_ROOM_RETRY = 15.0
_SILENT_RETRY = 10.0
_FAILED = "request failed"
_GONE = "the pod no longer exists"
_CHANGED = "the pod has just changed"


@dataclass(eq=False)
class Mover:
    """Moves pods for all strategies, with the memory of moves and the records of pods that are being moved."""

    client: Client
    view: ClusterView
    recorder: EventRecorder
    options: EvictionOptions
    namespace: str
    """The descheduler's own namespace, in which tenants cannot write."""
    freeze_period: float
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        client, recorder, namespace = self.client, self.recorder, self.namespace
        self.memory = Memory(client, namespace, self.freeze_period, self.options.limits, self.now)
        records = RecordStore(client, Record, namespace, recorder)
        self.recreator = Recreator(client, pods=self.view.pods, recorder=recorder, store=records)
        leaving = RecordStore(client, Departure, namespace, recorder)
        self.departures = Departures(client, self.view, recorder, leaving, self.options.wave, self.now)
        self.waiting = Waiting(self.view.pods)
        self.rooms = Rooms(self.view, self.now)
        self._limits = PassLimits(self.options)
        self._budget_backoff = ExponentialBackoff(1.0, 60.0)
        self._owners = KeyedLocks[str]()
        self._reports = MoveReports(recorder)

    @property
    def is_dry_run(self) -> bool:
        """True if moves are only logged and recorded as events."""
        return self.options.dry_run

    def why_not_movable(self, pod: Object, *, local_storage: bool = False) -> str:
        """Return why no strategy may move the pod; empty if it may be moved.

        Args:
            pod: cached pod.
            local_storage: True: the pod may lose its local storage, even if the options forbid it.
        """
        if pod.uid in self.view.leaving:
            return "its replacement is already being started"
        spec = pod.spec or {}
        if self.options.ignore_pvc and movable.claims(spec):
            return "it has a persistent volume claim (ignorePvcPods)"
        return pods.why_not_evictable(
            pod,
            local_storage=local_storage or self.options.local_storage,
            system_critical=self.options.system_critical,
        )

    async def has_room(self, pod: Object) -> bool:
        """Report whether a pod of a lost cluster can move now, as far as room is concerned."""
        return not pods.has_lower_node(pod) or await self.rooms.has(pod)

    async def move(self, pod: Object, request: Move) -> Outcome:
        """Move a pod off its virtual node if it may be moved and another node admits it.

        Args:
            pod: cached pod.
            request: the strategy's request.

        Raises:
            ApiError: a request to the upper cluster failed. The pod is unchanged, or the move continues from
                its record.
        """
        try:
            outcome = await self._judge(pod, request)
        except ApiError:
            self.waiting.note(request.strategy, pod, _FAILED)
            raise
        if outcome.cause:
            self.waiting.note(request.strategy, pod, outcome.cause)
        return outcome

    async def _judge(self, pod: Object, request: Move) -> Outcome:
        node = (pod.spec or {}).get("nodeName") or ""
        if why := self.why_not_movable(pod, local_storage=request.local_storage):
            return self._reports.stays(pod, why, cause="not evictable")
        if not request.force and self.view.may_run_unseen(pod):
            return Outcome(why=movable.MAY_RUN, cause="silent", retry_after=_SILENT_RETRY)
        if not (admitting := self.view.alternatives(pod)):
            return self._reports.stays(
                pod, "no other ready virtual node admits it", cause="no node", needs_node=True
            )
        reachable, why = await claims.reachable(self.client, pod, node=node, elsewhere=admitting)
        if not reachable:
            return self._reports.stays(pod, why, cause="claim")
        async with self._owners.of(pods.owner_key(pod)):
            return await self._move_one(pod, node, reachable, request)

    async def _move_one(self, pod: Object, node: str, elsewhere: Sequence[Object], request: Move) -> Outcome:
        decision = history.Decision(Verdict.SAME_ROUND)
        if request.counts:
            decision = history.decide(
                self.memory.history(pods.owner_key(pod)),
                created=pods.created(pod),
                now=self.now(),
                limits=self.options.limits,
                is_bare=pods.controller_of(pod) is None,
            )
        if decision.verdict is Verdict.GIVE_UP:
            return self._reports.give_up(pod, decision)
        if decision.verdict is Verdict.WAIT:
            return Outcome(why="its owner is in back-off", cause="back-off", retry_after=decision.wait)
        plan = await self._plan(pod, request)
        if plan.wait:
            return Outcome(why=plan.wait, cause="wave", retry_after=_WAVE, is_total=plan.is_total)
        if request.force and pods.has_lower_node(pod) and (why := await self.rooms.take(pod, elsewhere)):
            return self._reports.stays(pod, why, cause="no room", needs_node=True, retry_after=_ROOM_RETRY)
        outcome = None
        try:
            outcome = await self._carry_out(
                pod, node, plan, request, is_new_round=decision.verdict is Verdict.NEW_ROUND
            )
        finally:
            is_pretended = self.options.dry_run and outcome is not None and not outcome.cause
            if outcome is None or not (outcome.moved or is_pretended):
                self.rooms.give_back(pod)
        return outcome

    async def _carry_out(
        self, pod: Object, node: str, plan: Plan, request: Move, *, is_new_round: bool
    ) -> Outcome:
        """Move the pod if the limits of the pass allow it."""
        taken = asyncio.get_running_loop().time()
        wait = self._limits.take(node, pod.namespace, now=taken)
        if wait:
            why = "the limit of moves per pass is reached"
            return Outcome(why=why, cause="limit", retry_after=wait)
        if self.options.dry_run:
            return self._reports.pretend(pod, node, request)
        outcome, key = None, pods.owner_key(pod)
        try:
            if pods.controller_of(pod) is None:
                outcome = await self._recreate(pod, node, request, is_new_round=is_new_round)
            else:
                if is_new_round:
                    await self.memory.note_round(key, pod.namespace)
                await self._keep_away(key, pod, node, request)
                outcome = await self._remove(pod, node, plan, request)
        except NotRecordedError as error:
            outcome = self._reports.stays(pod, str(error), cause="not recorded", retry_after=_REFUSAL_RETRY)
        finally:
            if outcome is None or not outcome.moved:
                self._limits.give_back(node, pod.namespace, taken=taken)
        return outcome

    async def _keep_away(self, key: str, pod: Object, node: str, request: Move) -> None:
        """Store that the owner's future pods avoid the node, before this pod is evicted."""
        if not request.avoid or node in self.memory.frozen(key):
            return
        await self.memory.freeze(key, pod.namespace, [node])
        await asyncio.sleep(_SETTLE)

    async def _plan(self, pod: Object, request: Move) -> Plan:
        """Return how the pod leaves. Pods that are not Ready or in a lost cluster do not wait for a replacement."""
        owner = pods.controller_of(pod)
        if self.options.make_before_break and owner and pods.is_ready(pod) and not request.force:
            return await self.departures.plan(pod)
        return Plan(How.EVICTED)

    async def _remove(self, pod: Object, node: str, plan: Plan, request: Move) -> Outcome:
        """Start the replacement of a pod with a controller, or evict it (or delete it, if budgets do not matter)."""
        try:
            if plan.how is How.REPLACED_FIRST:
                await self.departures.begin(pod, plan, request)
                return Outcome(moved=True)
            await eviction.evict(self.client, pod)
        except NotFound:
            return Outcome(why=_GONE)
        except Conflict:
            return Outcome(why=_CHANGED, retry_after=_REJUDGE)
        except TooManyRequests as error:
            if request.budget_matters and eviction.is_final(error):
                why, cause = error.message, "several budgets"
                return self._reports.stays(pod, why, cause=cause, retry_after=_REFUSAL_RETRY)
            if plan.how is How.REPLACED_FIRST:
                raise
            wait = max(error.retry_after or 0.0, self._budget_backoff.when(pod.uid))
            if not eviction.is_budget(error):
                return Outcome(why=error.message, cause=_FAILED, retry_after=wait)
            if request.budget_matters:
                return self._reports.delayed(pod, error.message, retry_after=wait)
            try:
                await self.client.delete(resources.PODS, pod.name, namespace=pod.namespace, uid=pod.uid)
            except (NotFound, Conflict):
                return Outcome(why=_GONE)
        self._budget_backoff.forget(pod.uid)
        return self._reports.moved(pod, node, request, how="evicted")

    async def _recreate(self, pod: Object, node: str, request: Move, *, is_new_round: bool) -> Outcome:
        current = await self.read_unchanged(pod)
        if current is None:
            return Outcome(why=_CHANGED, retry_after=_REJUDGE)
        noted = replacement.recorded(current["metadata"].get("annotations") or {})
        successor = replacement.of(
            current,
            avoid=node_avoidance.active(noted, now=self.now(), freeze_period=self.freeze_period),
            node=node if request.avoid else "",
            usable=self.view.open_names(),
            now=self.now(),
        )
        try:
            await self.recreator.rehearse(successor)
            if is_new_round:  # after the rehearsal, because a move that was not attempted does not count
                await self.memory.note_round(pods.owner_key(pod), pod.namespace)
            await self.recreator.begin(
                current, replacement=successor, reason=request.reason, force=request.force
            )
        except (Invalid, Forbidden) as error:
            why = f"the upper cluster would refuse its replacement: {error.message}"
            return self._reports.stays(pod, why, cause="replacement refused", retry_after=_REFUSAL_RETRY)
        return self._reports.moved(pod, node, request, how="re-created")

    async def read_unchanged(self, pod: Object) -> dict[str, Any] | None:
        """Return the pod from the API server; None if it does not exist or differs from the cached pod."""
        current = await find(self.client, resources.PODS, pod.name, namespace=pod.namespace)
        if current is None:
            return None
        is_same = current["metadata"]["resourceVersion"] == pod.resource_version
        return current if is_same else None
