"""Moves pods for all strategies and applies every rule about moving.

A pod may be moved if it is evictable, another ready virtual node admits it, its owner is not in back-off and
has not reached the maximum of rounds, and the pass has not reached its limits. A pod that may run in a silent cluster is moved
only because the cluster is lost, and only if another virtual node has room (``rooms``). Bare pods are re-created
(``recreation``). Pods with a controller are evicted after the node to avoid has been written to the ConfigMap
that the webhook reads. A Ready pod is evicted only when its owner can spare it (``departures``).

A pod's affinity cannot be changed, so pending pods that avoid nodes longer than needed are replaced (``Mover.release``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from clusterset.model.moving import movable, node_avoidance
from clusterset.model.moving.drain import How
from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.client import eviction
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.util.buffers import Recent
from controller_runtime.util.keyed import KeyedLocks
from controller_runtime.util.rate_limiter import ExponentialBackoff
from descheduler import memory, pods
from descheduler.cluster import ClusterView
from descheduler.config import EvictionOptions
from descheduler.memory import Memory, Verdict
from descheduler.moving import departure
from descheduler.moving.departure import Departure, Plan
from descheduler.moving.departures import Departures
from descheduler.moving.evictor import Evictor
from descheduler.moving.move_reports import Move, MoveReports, Outcome, Waiting
from descheduler.moving.record import NotRecordedError, Record, RecordStore
from descheduler.moving.recreation import Recreator
from descheduler.room import Rooms


class PassLimits:
    """Counts moves; every pass begins at 0.

    A pass is as long as the descheduling interval, or 60 s without an interval, also for event-driven
    strategies.
    """

    def __init__(self, options: EvictionOptions) -> None:
        self._options = options
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()
        self._began = float("-inf")

    def take(self, node: str, namespace: str, *, now: float) -> float:
        """Count a move if the limits allow it.

        Args:
            node: virtual node of the pod.
            namespace: namespace of the pod.
            now: monotonic seconds.

        Returns:
            0 if the move is allowed; otherwise the seconds until the next pass.
        """
        if now - self._began >= self._options.pass_seconds:
            self._began = now
            self._nodes.clear()
            self._namespaces.clear()
        limits = (
            (self._options.max_per_node, self._nodes[node]),
            (self._options.max_per_namespace, self._namespaces[namespace]),
            (self._options.max_total, self._nodes.total()),
        )
        if any(limit and used >= limit for limit, used in limits):
            return self._began + self._options.pass_seconds - now
        self._nodes[node] += 1
        self._namespaces[namespace] += 1
        return 0.0

    def give_back(self, node: str, namespace: str, *, taken: float) -> None:
        """Undo ``take`` for a move that did not take place.

        Args:
            node: the argument of ``take``.
            namespace: the argument of ``take``.
            taken: argument ``now`` of ``take``. Nothing changes if that pass is over.
        """
        if taken >= self._began:
            self._nodes[node] -= 1
            self._namespaces[namespace] -= 1


_SETTLE = 0.25
"""Seconds to wait until the webhook's replicas have received the node that a pod's successor avoids."""
_REFUSAL_RETRY = 60.0
_FRESH = 10.0
"""Minimum age in seconds of a pending pod that may be replaced."""
_PAUSE, _LONGEST_PAUSE = 30.0, 7200.0
"""Seconds until the successor of a released pod may be released, too; doubles with each release, up to
``_LONGEST_PAUSE``."""
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
        self.evictor = Evictor(client, self.view.on_virtual_node)
        self.departures = Departures(
            client, self.view, recorder, leaving, self.evictor, self.options.wave, self.now
        )
        self.waiting = Waiting(self.view.pods)
        self.rooms = Rooms(self.view, self.now)
        self._limits = PassLimits(self.options)
        self._budget_backoff = ExponentialBackoff(1.0, 60.0)
        self._releases: Recent[str, tuple[datetime, float]] = Recent()
        """Owner → time of the last release, and seconds until the next release.

        Without this pause, pods would be released again and again if their template contains the avoidance.
        """
        self._owners = KeyedLocks[str]()
        self._reports = MoveReports(recorder)

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
        node = pod.node_name
        if why := self.why_not_movable(pod, local_storage=request.local_storage):
            return self._reports.stays(pod, why, cause="not evictable")
        if not request.force and self.view.may_run_unseen(pod):
            return Outcome(why=movable.MAY_RUN, cause="silent", retry_after=_SILENT_RETRY)
        if not (admitting := self.view.alternatives(pod)):
            return self._reports.stays(
                pod, "no other ready virtual node admits it", cause="no node", needs_node=True
            )
        reachable, why = await departure.reachable(self.client, pod, node=node, elsewhere=admitting)
        if not reachable:
            return self._reports.stays(pod, why, cause="claim")
        async with self._owners.of(pods.owner_key(pod)):
            return await self._move_one(pod, node, reachable, request)

    async def _move_one(self, pod: Object, node: str, elsewhere: Sequence[Object], request: Move) -> Outcome:
        decision = memory.Decision(Verdict.SAME_ROUND)
        if request.counts:
            decision = memory.decide(
                self.memory.history(pods.owner_key(pod)),
                created=pods.created(pod),
                now=self.now(),
                limits=self.options.limits,
                is_bare=pod.controller is None,
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
            if pod.controller is None:
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
        owner = pod.controller
        if self.options.make_before_break and owner and is_true(pod.status, "Ready") and not request.force:
            return await departure.plan(
                self.client,
                pod,
                active=self.departures.active.values(),
                wave=self.options.wave,
                now=self.now(),
            )
        return Plan(How.EVICTED)

    async def _remove(self, pod: Object, node: str, plan: Plan, request: Move) -> Outcome:
        """Start the replacement of a pod with a controller, or evict it (or delete it, if budgets do not matter)."""
        try:
            if plan.how is How.REPLACED_FIRST:
                await self.departures.begin(pod, plan, request)
                return Outcome(moved=True)
            await self.evictor.evict(pod, is_forced=not request.budget_matters)
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
        noted = node_avoidance.recorded(current["metadata"].get("annotations") or {})
        successor = pods.replacement(
            current,
            avoid=node_avoidance.active(noted, now=self.now(), freeze_period=self.freeze_period),
            node=node if request.avoid else "",
            usable=self.view.open_names_for(pod),
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
        if current is None or current["metadata"]["resourceVersion"] != pod.resource_version:
            return None
        return current

    async def release(self, pod: Object) -> float | None:
        """Replace (*release*) a pending pod if an avoided node's freeze period is over, or if it avoids all usable nodes.

        A bare pod is re-created. A pod with a controller is evicted, and its controller creates another pod. No round of
        moving is counted.

        Args:
            pod: cached pod that is not bound and avoids nodes.

        Returns:
            Seconds after which to call again; None: when an object changes.

        Raises:
            ApiError: a request to the upper cluster failed.
        """
        if pod.controller is not None:
            return await self._release_owned(pod)
        now = self.now()
        noted = node_avoidance.recorded(pod.annotations)
        active = node_avoidance.active(noted, now=now, freeze_period=self.freeze_period)
        usable = self.view.open_names_for(pod)
        gives_way = bool(usable) and not usable - active.keys()
        if not noted:
            return None
        if len(active) == len(noted) and not gives_way:
            oldest = min(active.values())
            return self.freeze_period - (now - oldest).total_seconds() + 1.0
        if self.why_not_movable(pod) or self.options.dry_run or not usable:
            return None
        current = await self.read_unchanged(pod)
        if current is None:
            return None
        successor = pods.replacement(current, avoid=active, node="", usable=usable, now=now, counts=False)
        try:
            await self.recreator.rehearse(successor)
            await self.recreator.begin(current, replacement=successor, reason="it may use all nodes again")
        except NotRecordedError as error:
            self.recorder.event(pod, "Normal", "NotRescheduled", f"Stays: {error}")
            return _REFUSAL_RETRY
        return None

    async def _release_owned(self, pod: Object) -> float | None:
        """Evict a controller's pod, so that it is replaced, for an avoided node that is no longer frozen, or if no other is left."""
        avoided, usable = node_avoidance.avoided_names(pod.annotations), self.view.open_names_for(pod)
        free = usable & avoided - self.memory.frozen(pods.owner_key(pod)).keys()
        if usable and usable <= avoided:
            free = usable  # no other node is left, so the webhook lets the successor use these
        if not free or self.why_not_movable(pod) or self.options.dry_run:
            return None
        # Wait, because the webhook's replicas may receive the change later than this process.
        rest = max(_FRESH - (self.now() - pods.created(pod)).total_seconds(), self._pause_left(pod))
        if rest > 0:
            return rest
        try:
            await eviction.evict(self.client, pod.metadata)
        except (NotFound, Conflict):
            return None
        except TooManyRequests as error:
            return max(error.retry_after or 0.0, self._budget_backoff.when(pod.uid))
        self._note_release(pod)
        self.recorder.event(pod, "Normal", "Rescheduled", f"May use {', '.join(sorted(free))} again")
        return None

    def _pause_left(self, pod: Object) -> float:
        """Return the seconds until a pod may be released if it is the successor of a released pod; 0 or less: now."""
        began, pause = self._releases.get(pods.owner_key(pod), (None, 0.0))
        if began is None or pods.created(pod) < began:
            return 0.0
        return pause - (self.now() - began).total_seconds()

    def _note_release(self, pod: Object) -> None:
        """Store a release's time, unless the pod was created before the owner's stored time."""
        owner = pods.owner_key(pod)
        began, pause = self._releases.get(owner, (None, 0.0))
        if began is not None and pods.created(pod) < began:
            return
        now = self.now().replace(microsecond=0)
        if began is None or (now - began).total_seconds() > pause + _LONGEST_PAUSE:
            pause = 0.0
        self._releases[owner] = (now, min(2 * pause or _PAUSE, _LONGEST_PAUSE))
