"""Moves pods of Deployments without a gap: the replacement is Ready before the old pod is evicted (*make before break*).

``view/departure.py`` decides the steps from pods just read from the API server, and explains how a pod is released. Each
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

from prometheus_client import Gauge

from clusterset.model.moving import drain
from controller_runtime import log, resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.util.backoff import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from descheduler.moving import departure_plan, eviction, owners
from descheduler.moving.departure_end import Endings
from descheduler.moving.departure_plan import Plan
from descheduler.moving.held import Held
from descheduler.moving.record_store import NotRecordedError, RecordStore
from descheduler.moving.request import Move
from descheduler.view import departure as steps
from descheduler.view import pods
from descheduler.view.cluster import ClusterView
from descheduler.view.departure import Departure, Step

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


@dataclass(eq=False)
class Departures:
    """Pods that leave as soon as their replacement is Ready. ``run`` continues the departures of earlier leaders."""

    client: Client
    view: ClusterView
    recorder: EventRecorder
    store: RecordStore[Departure]
    wave: int
    """Maximum number of pods whose replacements start at the same time."""
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._log = log.get_logger(component="departures")
        self.active: dict[str, Departure] = {}
        """Departures with a record, by UID of the pod. The annotation of a released pod alone proves nothing."""
        self._releasing: set[str] = set()
        """UIDs of pods whose release is being requested. No step is taken for them until the result is known."""
        self._held = Held(self.view.leaving)
        self._endings = Endings(self.client, self.recorder, self.now)
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

    async def plan(self, pod: Object) -> Plan:
        """Return how a Ready pod with a controller leaves now (``departure_plan.plan``)."""
        return await departure_plan.plan(
            self.client, pod, active=self.active.values(), wave=self.wave, now=self.now()
        )

    async def begin(self, pod: Object, plan: Plan, request: Move) -> None:
        """Store a record and release the pod, so that its owner creates a replacement.

        Args:
            pod: cached pod. It is not released if it has changed.
            plan: result of ``plan`` with ``How.REPLACED_FIRST``.
            request: the strategy's request.

        Raises:
            NotRecordedError: no record can be written. The pod is unchanged.
            Conflict, NotFound: the pod has changed.
            TooManyRequests: its disruption budgets would always refuse the eviction (``eviction.is_final``).
            ApiError: a request failed.
        """
        await eviction.rehearse(self.client, pod)
        owner = pods.controller_of(pod) or {}
        one = Departure(
            namespace=pod.namespace,
            pod_name=pod.name,
            old_uid=pod.uid,
            node=(pod.spec or {}).get("nodeName") or "",
            strategy=request.strategy,
            reason=request.reason,
            owner_name=owner["name"],
            owner_uid=owner["uid"],
            template_hash=pod.labels[drain.TEMPLATE_HASH],
            need=plan.need,
            deadline=timestamps.rfc3339(self.now() + timedelta(seconds=request.timeout)),
            request=request.drain,
        )
        await self.store.write(one)
        self._releasing.add(one.old_uid)
        self._track(one)
        try:
            patch = steps.release(one, pod.resource_version)
            await self.client.patch(resources.PODS, pod.name, patch, namespace=pod.namespace)
        except ApiError as error:
            if error.code and error.code < 500:  # the pod is unchanged
                await self._forget(one)
            raise
        finally:  # also if the result of the patch is unknown, because the next decision reads the pod
            self._releasing.discard(one.old_uid)
            self._enqueue(one)
        self.recorder.event(
            pod, "Normal", "Replacing", f"Leaves {one.node} when its replacement is Ready: {one.reason}"
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

    def _track(self, one: Departure) -> None:
        self.active[one.old_uid] = one
        self._held.release(one.old_uid)
        self.view.leaving.add(one.old_uid)
        _REPLACING.set(len(self.active))

    async def _forget(self, one: Departure) -> None:
        await self.store.remove(one)
        self.active.pop(one.old_uid, None)
        pod = self.view.pods.store.get(one.pod)
        if pod is not None and pod.uid == one.old_uid and not _has_owner(pod):
            self._held.hold(one.old_uid)
            self.controller.queue.add_after((one.namespace, one.pod_name, True), _POLL)
        elif one.old_uid not in self._held:
            self.view.leaving.discard(one.old_uid)
        _REPLACING.set(len(self.active))

    def _enqueue(self, one: Departure) -> None:
        self.controller.queue.add_after((one.namespace, one.owner_uid, False), _SETTLE)

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
            if self.active and (owner := pods.controller_of(pod)) is not None:
                key = (pod.namespace, str(owner.get("uid")), False)
                if any(key == (one.namespace, one.owner_uid, False) for one in self.active.values()):
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
            one
            for one in self.active.values()
            if (one.namespace, one.owner_uid) == (namespace, what) and one.old_uid not in self._releasing
        ]
        if not mine:
            return None
        found = await owners.read(
            self.client, namespace, kind="ReplicaSet", name=mine[0].owner_name, uid=mine[0].owner_uid
        )
        listed = found.pods if found is not None else await owners.read_pods(self.client, mine)
        decisions = steps.decide(
            mine,
            listed,
            found.owner if found is not None else None,
            now=self.now(),
            cancelled={one.old_uid: why for one in mine if (why := self._why_cancelled(one))},
            unseen={one.old_uid for one in mine if self._may_run_unseen(one)},
        )
        for decision in decisions:
            await self._act(decision, listed)
        return Result(requeue_after=_POLL) if any(one.old_uid in self.active for one in mine) else None

    def _why_cancelled(self, one: Departure) -> str:
        """Return why a pod must stay although its replacement may become Ready later; empty: it may leave."""
        node = self.view.nodes.store.get(one.node)
        if one.request and (node is None or drain.requested(node.annotations) != one.request):
            return "the drain was cancelled"
        pod = self.view.pods.store.get(one.pod)
        if pod is not None and pod.uid == one.old_uid and not self.view.alternatives(pod):
            return "no other ready virtual node admits it"
        return ""

    def _may_run_unseen(self, one: Departure) -> bool:
        pod = self.view.pods.store.get(one.pod)
        return pod is not None and pod.uid == one.old_uid and self.view.may_run_unseen(pod)

    async def _act(self, decision: steps.Decision, listed: Mapping[str, dict[str, Any]]) -> None:
        one, step, why = decision.departure, decision.step, decision.why
        if step is Step.FORGET:
            await self._forget(one)
        elif step is Step.DELETE:
            await self._endings.delete(one, listed[one.old_uid])
            await self._end(one, "")
        elif step is Step.EVICT:
            refused = await self._endings.evict(one, listed[one.old_uid])
            if refused == "":
                await self._end(one, "")
            elif refused is not None:
                step, why = Step.RESTORE, refused
        if step is Step.RESTORE and await self._endings.restore(one, listed[one.old_uid], why):
            self._held.hold(one.old_uid)
            await self._end(one, why)

    async def _end(self, one: Departure, why: str) -> None:
        await self._forget(one)
        for listener in list(self._listeners):
            listener(one, why)

    async def _restore_unrecorded(self, pod: Object | None) -> None:
        """Restore the label of a pod that is marked as released but has no record."""
        if pod is None or pod.uid in self.active or not self.view.is_on_virtual_node(pod):
            return
        if pod.metadata.deletion_timestamp is None and drain.is_released(pod.labels, pod.annotations):
            self._held.hold(pod.uid)
            await self._endings.restore_unrecorded(pod)


def _has_owner(pod: Object) -> bool:
    """Report whether a pod has a controller and is not marked as released."""
    return pods.controller_of(pod) is not None and not drain.is_released(pod.labels, pod.annotations)
