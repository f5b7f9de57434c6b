"""Moves pods of Deployments without a gap: the replacement is Ready before the old pod is evicted (*make before break*).

``departure.py`` decides the steps from pods just read from the API server, and explains how a pod is released. Each
released pod has a durable record. After a crash the next leader loads the records and continues. There is one queue key per
owner, so two departures of one owner never count on the same spare pod.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from prometheus_client import Counter, Gauge

from clusterset.model import names
from clusterset.model.moving import drain
from clusterset.model.moving.drain import How
from controller_runtime import log, resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.client import eviction
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object, from_dict
from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from descheduler.cluster import ClusterView
from descheduler.moving import departure as steps
from descheduler.moving.departure import Departure, Plan, Step
from descheduler.moving.evictor import Evictor
from descheduler.moving.move_reports import MOVED, Move
from descheduler.moving.record import NotRecordedError, RecordStore

_ROLLED_BACK = Counter(
    "virtual_node_descheduler_rolled_back_total",
    "Moves that were undone because the replacement was not Ready in time.",
    ["strategy"],
)
_ADOPTION = 60.0
"""Seconds in which a ReplicaSet adopts a pod whose label was restored."""
_POLL = 2.0
"""Seconds after which waiting departures are decided again, because owners are not watched."""
_SETTLE = 0.2
"""Seconds for which events of an owner's pods are collected."""
_RETRY = 5.0
_WORKERS = 4
_REPLACING = Gauge(
    "virtual_node_descheduler_replacing_pods", "Pods that leave as soon as their replacement is Ready."
)

Key = tuple[str, str, bool]
"""(namespace, UID of an owner, False), or (namespace, name of a pod, True)."""


class Held:
    """Pods that a ReplicaSet is expected to adopt. Moved as bare pods, they would be deleted before they are replaced."""

    def __init__(self, leaving: set[str]) -> None:
        """Create without pods; UIDs of held pods are added to ``leaving`` (``ClusterView.leaving``)."""
        self._leaving = leaving
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, uid: str) -> bool:
        """Report whether a pod is held."""
        return uid in self._timers

    def hold(self, uid: str) -> None:
        """Keep a pod from being moved until ``release`` is called, at most ``_ADOPTION`` seconds."""
        self.release(uid)
        self._leaving.add(uid)
        self._timers[uid] = asyncio.get_running_loop().call_later(_ADOPTION, self.release, uid)

    def release(self, uid: str) -> None:
        """Let strategies move a pod again."""
        self._leaving.discard(uid)
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()


@dataclass(eq=False)
class Departures:
    """Pods that leave as soon as their replacement is Ready. ``run`` continues the departures of earlier leaders."""

    client: Client
    view: ClusterView
    recorder: EventRecorder
    store: RecordStore[Departure]
    evictor: Evictor
    wave: int
    """Maximum number of replacements that start at the same time."""
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._log = log.get_logger(component="departures")
        self.active: dict[str, Departure] = {}
        """Departures with a record, by UID of the pod. The annotation of a released pod alone proves nothing."""
        self.waits: dict[str, str] = {}
        """UID of a pod → why its replacement has not started (``steps.why_waiting``)."""
        self._releasing: set[str] = set()
        """UIDs of pods whose release is being requested. No step is taken for them until the result is known."""
        self._held = Held(self.view.leaving)
        self._listeners: list[Callable[[Departure, str], None]] = []
        self.loaded = asyncio.Event()
        """Set when the records of earlier leaders are known."""
        self.controller: Controller[Key] = Controller(
            "departures",
            self._reconcile,
            workers=_WORKERS,
            backoff=ExponentialBackoff(0.2, 10.0),
            flow=lambda key: key[0],
        )
        _REPLACING.set(0)

    @contextlib.contextmanager
    def subscribed(self, ended: Callable[[Departure, str], None]) -> Iterator[None]:
        """Call a function for ended departures within the block.

        Args:
            ended: called with the departure and why its pod stays; empty: the pod was evicted or deleted.
        """
        self._listeners.append(ended)
        try:
            yield
        finally:
            self._listeners.remove(ended)

    async def run(self) -> None:
        """Complete departures until cancelled, beginning with those of earlier leaders."""
        with self.view.pods.on_change(self._pod_changed, self._pod_deleted):
            async with asyncio.TaskGroup() as group:
                group.create_task(self.store.informer.run(), name="records of departures")
                await self.store.informer.wait_synced()
                await self._load()
                self.loaded.set()
                group.create_task(self.controller.run(), name="departures")

    async def begin(self, pod: Object, plan: Plan, request: Move) -> None:
        """Store a record and release the pod, so that its owner creates a replacement.

        Args:
            pod: cached pod. It is not released if it has changed.
            plan: result of ``departure.plan`` with ``How.REPLACED_FIRST``.
            request: the strategy's request.

        Raises:
            NotRecordedError: no record can be written. The pod is unchanged.
            Conflict, NotFound: the pod has changed.
            TooManyRequests: its disruption budgets would always refuse the eviction (``eviction.is_final``).
            ApiError: a request failed.
        """
        await eviction.rehearse(self.client, pod.metadata)
        owner = pod.controller or {}
        departure = Departure(
            namespace=pod.namespace,
            pod_name=pod.name,
            old_uid=pod.uid,
            node=pod.node_name,
            strategy=request.strategy,
            reason=request.reason,
            owner_name=owner["name"],
            owner_uid=owner["uid"],
            template_hash=pod.labels[drain.TEMPLATE_HASH],
            need=plan.need,
            deadline=timestamps.rfc3339(self.now() + timedelta(seconds=request.timeout)),
            request=request.drain,
        )
        await self.store.write(departure)
        self._releasing.add(departure.old_uid)
        self._track(departure)
        try:
            patch = steps.release(departure, pod.resource_version)
            await self.client.patch(resources.PODS, pod.name, patch, namespace=pod.namespace)
        except ApiError as error:
            if error.code and error.code < 500:  # the pod is unchanged
                await self._forget(departure)
            raise
        finally:  # also if the result of the patch is unknown, because the next decision reads the pod
            self._releasing.discard(departure.old_uid)
            self._enqueue(departure)
        self.recorder.event(
            pod,
            "Normal",
            "Replacing",
            f"Leaves {departure.node} when its replacement is Ready: {departure.reason}",
        )

    async def _load(self) -> None:
        """Load the records of earlier leaders; retry until the key of their hashes is readable."""
        for found in self.store.informer.store.list():
            while True:
                try:
                    one = await self.store.find(found.key)
                except (ApiError, NotRecordedError) as error:
                    self._log.warning("record cannot be verified yet", record=found.key, error=str(error))
                    await asyncio.sleep(_RETRY)
                    continue
                if one is not None:
                    self._track(one)
                    self._enqueue(one)
                break

    def _track(self, departure: Departure) -> None:
        self.active[departure.old_uid] = departure
        self._held.release(departure.old_uid)
        self.view.leaving.add(departure.old_uid)
        _REPLACING.set(len(self.active))

    async def _forget(self, departure: Departure) -> None:
        await self.store.remove(departure)
        self.active.pop(departure.old_uid, None)
        self.waits.pop(departure.old_uid, None)
        pod = self.view.pods.store.get(departure.pod)
        if pod is not None and pod.uid == departure.old_uid and not _has_owner(pod):
            self._held.hold(departure.old_uid)
            self.controller.queue.add_after((departure.namespace, departure.pod_name, True), _POLL)
        elif departure.old_uid not in self._held:
            self.view.leaving.discard(departure.old_uid)
        _REPLACING.set(len(self.active))

    def _enqueue(self, departure: Departure) -> None:
        self.controller.queue.add_after((departure.namespace, departure.owner_uid, False), _SETTLE)

    def _pod_changed(self, pod: Object) -> None:
        one = self.active.get(pod.uid)
        if one is not None:
            self._enqueue(one)
        elif pod.metadata.deletion_timestamp is None and drain.is_released(pod.labels, pod.annotations):
            # No record: an earlier leader released the pod, or a user marked it.
            self.controller.queue.add_after((pod.namespace, pod.name, True), _POLL)
        else:
            if _has_owner(pod):
                self._held.release(pod.uid)
            if self.active and (owner := pod.controller) is not None:
                key = (pod.namespace, str(owner.get("uid")), False)
                if any(
                    key == (departure.namespace, departure.owner_uid, False)
                    for departure in self.active.values()
                ):
                    self.controller.queue.add_after(key, _SETTLE)

    def _pod_deleted(self, pod: Object) -> None:
        self._held.release(pod.uid)
        if one := self.active.get(pod.uid):
            self._enqueue(one)

    async def _reconcile(self, key: Key) -> Result | None:
        namespace, what, is_pod = key
        if is_pod:
            await self._restore_unrecorded(self.view.pods.store.get(f"{namespace}/{what}"))
            return None
        mine = [
            departure
            for departure in self.active.values()
            if (departure.namespace, departure.owner_uid) == (namespace, what)
            and departure.old_uid not in self._releasing
        ]
        if not mine:
            return None
        found = await steps.read_owner(
            self.client, namespace, kind="ReplicaSet", name=mine[0].owner_name, uid=mine[0].owner_uid
        )
        listed = found.pods if found is not None else await steps.read_released(self.client, mine)
        decisions = steps.decide(
            mine,
            listed,
            found.owner if found is not None else None,
            now=self.now(),
            cancelled={
                departure.old_uid: why for departure in mine if (why := self._why_cancelled(departure))
            },
            unseen={departure.old_uid for departure in mine if self._may_run_unseen(departure)},
        )
        for decision in decisions:
            if decision.step is Step.WAIT:
                self.waits[decision.departure.old_uid] = decision.why
            await self._act(decision, listed)
        return (
            Result(requeue_after=_POLL)
            if any(departure.old_uid in self.active for departure in mine)
            else None
        )

    def _why_cancelled(self, departure: Departure) -> str:
        """Return why a pod must stay although its replacement may become Ready later; empty: it may leave."""
        node = self.view.nodes.store.get(departure.node)
        # Another request is for the same pods: cancelled here, they would begin to leave again at once.
        if departure.request and (node is None or drain.requested(node.annotations) is None):
            return "the drain was cancelled"
        pod = self.view.pods.store.get(departure.pod)
        if pod is not None and pod.uid == departure.old_uid and not self.view.alternatives(pod):
            return "no other ready virtual node admits it"
        return ""

    def _may_run_unseen(self, departure: Departure) -> bool:
        pod = self.view.pods.store.get(departure.pod)
        return pod is not None and pod.uid == departure.old_uid and self.view.may_run_unseen(pod)

    async def _act(self, decision: steps.Decision, listed: Mapping[str, dict[str, Any]]) -> None:
        one, step, why = decision.departure, decision.step, decision.why
        if step is Step.FORGET:
            await self._forget(one)
        elif step is Step.DELETE:
            await self._delete(one, listed[one.old_uid])
            await self._end(one, "")
        elif step is Step.EVICT:
            refused = await self._evict(one, listed[one.old_uid])
            if refused == "":
                await self._end(one, "")
            elif refused is not None:
                step, why = Step.RESTORE, refused
        if step is Step.RESTORE and await self._restore(one, listed[one.old_uid], why):
            self._held.hold(one.old_uid)
            await self._end(one, why)

    async def _evict(self, departure: Departure, pod: dict[str, Any]) -> str | None:
        """Evict a pod; return an empty text, or why the pod must stay; None: try again later.

        Raises:
            ApiError: a request failed.
        """
        try:
            await self.evictor.evict(from_dict(pod))
        except NotFound:
            pass
        except Conflict:
            return None
        except ApiError as error:
            return self._why_restored(departure, error)
        self._left(departure, pod)
        return ""

    async def _delete(self, departure: Departure, pod: dict[str, Any]) -> None:
        """Delete a pod whose owner was deleted. Disruption budgets do not apply, as in garbage collection.

        Raises:
            ApiError: a request failed.
        """
        try:
            await self.client.delete(
                resources.PODS, departure.pod_name, namespace=departure.namespace, uid=departure.old_uid
            )
        except (NotFound, Conflict):
            return  # the pod is gone; another pod may have its name
        self._left(departure, pod)

    async def _restore(self, departure: Departure, pod: Mapping[str, Any], why: str) -> bool:
        """Restore the label of a pod, so that its ReplicaSet adopts it; return False if the pod has changed.

        Raises:
            ApiError: a request failed.
        """
        patch = steps.restore(departure.old_uid, pod["metadata"]["resourceVersion"], departure.template_hash)
        try:
            await self.client.patch(resources.PODS, departure.pod_name, patch, namespace=departure.namespace)
        except (Conflict, NotFound):
            return False
        _ROLLED_BACK.labels(departure.strategy).inc()
        self._log.warning(
            "pod stays, its replacement is given up",
            pod=departure.pod,
            uid=departure.old_uid,
            node=departure.node,
            why=why,
        )
        self.recorder.event(pod, "Warning", "RescheduleRolledBack", f"Stays on {departure.node}: {why}")
        return True

    def _why_restored(self, departure: Departure, error: ApiError) -> str | None:
        """Return why a pod whose eviction failed must stay; None: try again.

        Raises:
            ApiError: ``error``, if it is not TooManyRequests, and either the deadline is not over or the server
                did not respond.
        """
        is_late = self.now() >= timestamps.parse(departure.deadline)
        if eviction.is_final(error) or (is_late and eviction.is_budget(error)):
            return f"its disruption budget refuses the eviction: {error.message}"
        if isinstance(error, TooManyRequests):
            return None
        if is_late and error.code:
            return f"its eviction failed: {error.message}"
        raise error

    def _left(self, departure: Departure, pod: dict[str, Any]) -> None:
        MOVED.labels(departure.node, departure.strategy, str(How.REPLACED_FIRST)).inc()
        self._log.info(
            "pod moved after its replacement was ready",
            pod=departure.pod,
            uid=departure.old_uid,
            node=departure.node,
            strategy=departure.strategy,
        )
        self.recorder.event(pod, "Normal", "Rescheduled", f"Moved off {departure.node}: {departure.reason}")

    async def _end(self, departure: Departure, why: str) -> None:
        await self._forget(departure)
        for listener in list(self._listeners):
            listener(departure, why)

    async def _restore_unrecorded(self, pod: Object | None) -> None:
        """Restore the label of a pod that is marked as released but has no record."""
        if pod is None or pod.uid in self.active or not self.view.is_on_virtual_node(pod):
            return
        if pod.metadata.deletion_timestamp is None and drain.is_released(pod.labels, pod.annotations):
            self._held.hold(pod.uid)
            patch = steps.restore(pod.uid, pod.resource_version, pod.annotations[names.ANNOTATION_LEAVING])
            try:
                await self.client.patch(resources.PODS, pod.name, patch, namespace=pod.namespace)
            except (NotFound, Conflict):
                return  # a changed pod is queued again
            except (Invalid, Forbidden) as error:
                self._log.warning("label is not restored", pod=pod.key, error=str(error))


def _has_owner(pod: Object) -> bool:
    """Report whether a pod has a controller and is not marked as released."""
    return pod.controller is not None and not drain.is_released(pod.labels, pod.annotations)
