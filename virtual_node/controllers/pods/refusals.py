"""Decides when refused pods are tried again, so that many of them do not use up the lower cluster's rate limit."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable
from typing import Any

import msgspec

from controller_runtime.util import backoff
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.context import SHORTEST_PAUSE
from virtual_node.controllers.pods.quota_gate import QuotaGate, Wakes
from virtual_node.controllers.pods.record import PodRecord

_BASE, _LONGEST = 0.1, 60.0
"""Seconds until a single pod is tried again: after its first refusal, and at most."""
_PER_SECOND, _BURST = 5.0, 50
"""Tries of refused pods of one namespace: per second, and in a burst."""
_ALL_PER_SECOND, _ALL_BURST = 50.0, 200
"""Tries of refused pods of all namespaces of a lower cluster: per second, and in a burst."""


class Pacer:
    """Assigns times at a steady rate, in the order of the calls (GCRA, a leaky bucket)."""

    def __init__(self, rate: float, burst: int) -> None:
        """Set the rate.

        Args:
            rate: times per second.
            burst: number of calls that may get the same time.
        """
        self._step = 1 / rate
        self._slack = (burst - 1) * self._step
        self._next = 0.0

    def take(self, now: float) -> float:
        """Reserve the next free time, which is now or later, and return it."""
        due = max(now, self._next - self._slack)
        self._next = max(self._next, now) + self._step
        return due

    def is_idle(self, now: float) -> bool:
        """Report whether the whole burst is available."""
        return self._next <= now


class Refusals:
    """The pods that one lower cluster refused.

    Pods refused by a quota are tried again one by one (``quota_gate``). All others are tried again with a
    back-off per pod, at a limited rate per namespace and in total.
    """

    def __init__(self) -> None:
        self._gate = QuotaGate()
        self._all = Pacer(_ALL_PER_SECOND, _ALL_BURST)
        self._namespaces: dict[str, Pacer] = {}
        self._wake: Callable[[str, float], None] = lambda _uid, _seconds: None

    def attach(self, wake: Callable[[str, float], None]) -> None:
        """Set the function that requeues a pod; it is called with a uid and seconds."""
        self._wake = wake

    def pause(self, uid: str, record: PodRecord) -> Result | None:
        """Return the requeue of a refused pod that must still wait; None: the pod may be tried."""
        now = _now()
        self._wake_all(self._gate.ask(uid, now))
        seconds = max(self._gate.pause(uid, now), record.retry_at - now)
        if seconds <= 0:
            return None
        return Result() if seconds == math.inf else Result(requeue_after=max(seconds, SHORTEST_PAUSE))

    def foresee(self, uid: str, namespace: str, spec: dict[str, Any]) -> str:
        """Return a quota's refusal of an equal pod within the last second; empty: the pod may be tried."""
        return self._gate.foresee(uid, namespace, _demand(spec), _now()) if len(self._gate) else ""

    def follow(self, uid: str, namespace: str, spec: dict[str, Any]) -> Result:
        """Make an untried pod wait; it is requeued when its turn comes."""
        self._wake_all(self._gate.follow(uid, namespace, _demand(spec), _now()))
        return Result()

    def refused_by_quota(self, uid: str, namespace: str, spec: dict[str, Any], message: str) -> Result:
        """Record that a quota of a lower namespace refused a pod, which is requeued when its turn comes.

        Args:
            uid: of the pod.
            namespace: the lower namespace.
            spec: of the lower pod.
            message: error of the lower API server: ``pods "a" is forbidden: exceeded quota: …``.
        """
        why = message.partition("forbidden: ")[2] or message
        self._wake_all(self._gate.refused(uid, namespace, _demand(spec), _now(), why=why))
        return Result()

    def refused(self, uid: str, namespace: str, record: PodRecord) -> Result:
        """Record a refusal by anything but a quota; return the requeue."""
        now = _now()
        self.forget(uid)
        if namespace not in self._namespaces:
            self._namespaces = {name: one for name, one in self._namespaces.items() if not one.is_idle(now)}
        pacer = self._namespaces.setdefault(namespace, Pacer(_PER_SECOND, _BURST))
        own = now + backoff.exponential(record.refusals, base=_BASE, maximum=_LONGEST)
        record.refusals += 1
        record.retry_at = max(own, pacer.take(now), self._all.take(now))
        return Result(requeue_after=record.retry_at - now)

    def created(self, uid: str, record: PodRecord) -> None:
        """Record that a pod was created, and requeue pods that waited for that."""
        record.refusals, record.retry_at = 0, 0.0
        self._wake_all(self._gate.created(uid, _now()))

    def freed(self, namespace: str) -> None:
        """Record that an owned pod of a lower namespace has finished or is gone, which frees quota."""
        if len(self._gate):
            self._wake_all(self._gate.freed(namespace, _now()))

    def forget(self, uid: str) -> None:
        """Forget the quota refusal of a pod that is gone or waits for something else."""
        if len(self._gate):
            self._wake_all(self._gate.forget(uid, _now()))

    def _wake_all(self, wakes: Wakes) -> None:
        for uid, seconds in wakes:
            self._wake(uid, seconds)


def _demand(spec: dict[str, Any]) -> str:
    """Return a digest of the pod fields that quotas count."""
    counted = [
        [container.get("resources") for container in spec.get(kind) or ()]
        for kind in ("initContainers", "containers")
    ]
    others = [
        spec.get(key) for key in ("overhead", "resources", "priorityClassName", "activeDeadlineSeconds")
    ]
    return hashlib.blake2b(msgspec.json.encode([counted, others], order="sorted"), digest_size=8).hexdigest()


def _now() -> float:
    return asyncio.get_running_loop().time()
