"""Decides when a pod is tried again after a lower cluster refused it, or after its owner lost pods there (``Losses``).

Many refused pods must not use up the lower cluster's rate limit.

Ten thousand pods that a quota refuses and that are each tried every ten seconds use up the rate limit of their lower
cluster. So one pod of each lower namespace, the probe, is tried with back-off. When it is created, other pods are admitted
for a try, two for each success. Each refusal makes another pod the probe. Pods with different demands (what
they request) take turns, so a large pod does not keep small ones waiting. A pod that gets only server errors
and no quota decision loses its turn after some seconds. A new pod with the demand of a pod that was just
refused waits without a try, so ten thousand new pods cost the lower cluster one request per second.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controller_runtime.util import event_loop, rate_limiter
from controller_runtime.util.rate_limiter import Pacer
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.context import SHORTEST_PAUSE
from virtual_node.controllers.pods.record import Creation

_BASE, _LONGEST_BACKOFF = 0.1, 60.0
"""Seconds until a single pod is tried again: after its first refusal, and at most."""
_PER_SECOND, _BURST = 5.0, 50
"""Tries of refused pods of one namespace: per second, and in a burst."""
_ALL_PER_SECOND, _ALL_BURST = 50.0, 200
"""Tries of refused pods of all namespaces of a lower cluster: per second, and in a burst."""
FIRST, LONGEST = 5.0, 60.0
"""Seconds between two tries in a namespace whose quota refuses pods: after the first refusal, and at most."""
_AFTER_DELETION = 1.0
"""Minimum seconds between two tries in a namespace when its pods finish or are deleted."""
_FRESH = 1.0
"""Seconds for which a refusal also applies to new pods. The next new pod after that may detect a raised quota."""
_AT_ONCE = 32
"""Maximum number of admitted pods that have not been tried yet."""
_PER_SUCCESS = 2
_TURN = 10.0
"""Seconds from a pod's first try in its turn after which another pod may get the turn."""

Wakes = list[tuple[str, float]]
"""Uids to requeue, each with a delay in seconds."""


class Refusals:
    """The pods that one lower cluster refused.

    Pods refused by a quota are tried again one by one (``QuotaGate``). All others are tried again with a
    back-off per pod, at a limited rate per namespace and in total.
    """

    def __init__(self, wake: Callable[[str, float], None]) -> None:
        """Begin without pods.

        Args:
            wake: requeues a pod; it is called with a uid and seconds.
        """
        self._wake = wake
        self._gate = QuotaGate()
        self._all = Pacer(_ALL_PER_SECOND, _ALL_BURST)
        self._namespaces: dict[str, Pacer] = {}

    def pause(self, uid: str, creation: Creation) -> Result | None:
        """Return the requeue of a refused pod that must still wait; None: the pod may be tried."""
        now = event_loop.now()
        self._wake_all(self._gate.ask(uid, now))
        seconds = max(self._gate.pause(uid, now), creation.retry_at - now)
        if seconds <= 0:
            return None
        return Result() if seconds == math.inf else Result(requeue_after=max(seconds, SHORTEST_PAUSE))

    def foresee(self, uid: str, namespace: str, spec: dict[str, Any]) -> str:
        """Return a quota's refusal of an equal pod within the last second; empty: the pod may be tried."""
        return self._gate.foresee(uid, namespace, _demand(spec), event_loop.now()) if len(self._gate) else ""

    def follow(self, uid: str, namespace: str, spec: dict[str, Any]) -> Result:
        """Make an untried pod wait; it is requeued when its turn comes."""
        self._wake_all(self._gate.follow(uid, namespace, _demand(spec), event_loop.now()))
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
        self._wake_all(self._gate.refused(uid, namespace, _demand(spec), event_loop.now(), why=why))
        return Result()

    def refused(self, uid: str, namespace: str, creation: Creation) -> Result:
        """Record a refusal by anything but a quota; return the requeue."""
        now = event_loop.now()
        self.forget(uid)
        if namespace not in self._namespaces:
            self._namespaces = {name: one for name, one in self._namespaces.items() if not one.is_idle(now)}
        pacer = self._namespaces.setdefault(namespace, Pacer(_PER_SECOND, _BURST))
        own = now + rate_limiter.exponential(creation.refusals, base=_BASE, maximum=_LONGEST_BACKOFF)
        creation.refusals += 1
        creation.retry_at = max(own, pacer.take(now), self._all.take(now))
        return Result(requeue_after=creation.retry_at - now)

    def created(self, uid: str, creation: Creation) -> None:
        """Record that a pod was created, and requeue pods that waited for that."""
        creation.refusals, creation.retry_at = 0, 0.0
        self._wake_all(self._gate.created(uid, event_loop.now()))

    def freed(self, namespace: str) -> None:
        """Record that an owned pod of a lower namespace has finished or is gone, which frees quota."""
        if len(self._gate):
            self._wake_all(self._gate.freed(namespace, event_loop.now()))

    def forget(self, uid: str) -> None:
        """Forget the quota refusal of a pod that is gone or waits for something else."""
        if len(self._gate):
            self._wake_all(self._gate.forget(uid, event_loop.now()))

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


@dataclass(slots=True)
class _Namespace:
    waiting: OrderedDict[str, OrderedDict[str, None]] = field(default_factory=OrderedDict)
    """Uids by demand; both levels are in the order of their turns."""
    why: dict[str, str] = field(default_factory=dict)
    """The last refusal message by waiting demand."""
    interval: float = FIRST
    tried: float = 0.0
    due: float = 0.0
    probe: str = ""
    """Uid of the pod that is tried next, at ``due``; empty: none."""
    admitted: set[str] = field(default_factory=set)
    asking: dict[str, float] = field(default_factory=dict)
    """Time of each pod's first try in its current turn, by uid."""


class QuotaGate:
    """The pods of one lower cluster that a quota has refused, by lower namespace. No IO: callers pass times and wakes."""

    def __init__(self) -> None:
        self._namespaces: dict[str, _Namespace] = {}
        self._known: dict[str, tuple[str, str]] = {}
        """Lower namespace and demand of every waiting pod, by uid."""

    def __len__(self) -> int:
        """Return the number of pods that wait because of a quota."""
        return len(self._known)

    def pause(self, uid: str, now: float) -> float:
        """Return the seconds until a pod may be tried; 0: now; infinite: it must wait for a wake."""
        namespace = self._of(uid)
        if namespace is None or uid in namespace.admitted:
            return 0.0
        return max(0.0, namespace.due - now) if uid == namespace.probe else math.inf

    def ask(self, uid: str, now: float) -> Wakes:
        """Record that a pod is tried now if ``pause`` allows it; end turns of its namespace that took too long."""
        if (namespace := self._of(uid)) is None:
            return []
        late = [one for one, since in namespace.asking.items() if now - since >= _TURN]
        for one in late:
            self._end_turn(namespace, one)
            demand = self._known[one][1]
            namespace.waiting[demand].move_to_end(one)
            namespace.waiting.move_to_end(demand)
        wakes = self._arm(namespace, max(now, namespace.tried + namespace.interval), now) if late else []
        if self.pause(uid, now) == 0:
            namespace.asking.setdefault(uid, now)
        return wakes

    def refused(self, uid: str, name: str, demand: str, now: float, *, why: str = "") -> Wakes:
        """Record that a quota of a lower namespace refused a pod.

        Args:
            uid: of the pod.
            name: of the lower namespace.
            demand: digest of what the pod requests. Pods with equal demands all fit or all do not fit.
            now: time in seconds.
            why: the exceeded quota, for messages.
        """
        namespace = self._namespaces.setdefault(name, _Namespace())
        was_probe = uid == namespace.probe
        self._leave(uid)
        if was_probe:
            namespace.interval = min(namespace.interval * 2, LONGEST)
            if demand in namespace.waiting:
                namespace.waiting.move_to_end(demand)
        namespace.why[demand] = why
        namespace.tried = now
        return self.follow(uid, name, demand, now)

    def foresee(self, uid: str, name: str, demand: str, now: float) -> str:
        """Return a quota's refusal of an equal demand within the last second; empty: the pod may be tried."""
        namespace = self._namespaces.get(name)
        if uid in self._known or namespace is None or now - namespace.tried >= _FRESH or namespace.admitted:
            return ""
        return namespace.why.get(demand, "")

    def follow(self, uid: str, name: str, demand: str, now: float) -> Wakes:
        """Add a pod to the queue of its namespace, after the waiting pods of the same demand."""
        namespace = self._namespaces.setdefault(name, _Namespace(tried=now))
        self._known[uid] = (name, demand)
        namespace.waiting.setdefault(demand, OrderedDict())[uid] = None
        return self._arm(namespace, now + namespace.interval, now)

    def created(self, uid: str, now: float) -> Wakes:
        """Record that a pod was created and admit waiting pods."""
        if (namespace := self._of(uid)) is None:
            return []
        self.forget(uid, now)
        namespace.interval, namespace.tried = FIRST, now
        wakes: Wakes = []
        while len(wakes) < _PER_SUCCESS and len(namespace.admitted) < _AT_ONCE:
            found = self._next(namespace)
            if not found:
                break
            if found == namespace.probe:
                namespace.probe = ""
            namespace.admitted.add(found)
            wakes.append((found, 0.0))
        return wakes

    def freed(self, name: str, now: float) -> Wakes:
        """Record that an owned pod of a lower namespace has finished or is gone, so that the probe is tried soon."""
        namespace = self._namespaces.get(name)
        if namespace is None:
            return []
        namespace.interval = FIRST
        soon = max(now, namespace.tried + _AFTER_DELETION)
        if not namespace.probe or soon >= namespace.due:
            return []
        namespace.due = soon
        return [(namespace.probe, soon - now)]

    def forget(self, uid: str, now: float) -> Wakes:
        """Forget a pod that is gone or waits for something else; another pod may be tried in its place."""
        if (namespace := self._of(uid)) is None:
            return []
        self._leave(uid)
        name, _ = self._known.pop(uid)
        if not namespace.waiting:
            del self._namespaces[name]
            return []
        return self._arm(namespace, max(namespace.due, now), now)

    def _of(self, uid: str) -> _Namespace | None:
        """Return the namespace in which a pod waits; None: it does not wait."""
        known = self._known.get(uid)
        return None if known is None else self._namespaces[known[0]]

    def _leave(self, uid: str) -> None:
        """Remove a pod from the queue of its namespace."""
        if (namespace := self._of(uid)) is None:
            return
        self._end_turn(namespace, uid)
        demand = self._known[uid][1]
        uids = namespace.waiting.get(demand)
        if uids is not None:
            uids.pop(uid, None)
            if not uids:
                del namespace.waiting[demand]
                namespace.why.pop(demand, None)

    @staticmethod
    def _end_turn(namespace: _Namespace, uid: str) -> None:
        namespace.asking.pop(uid, None)
        namespace.admitted.discard(uid)
        if namespace.probe == uid:
            namespace.probe = ""

    def _arm(self, namespace: _Namespace, due: float, now: float) -> Wakes:
        """Choose the next probe and schedule its try, unless a try is already pending."""
        if namespace.probe or namespace.admitted:
            return []
        namespace.probe, namespace.due = self._next(namespace), due
        return [(namespace.probe, max(0.0, due - now))]

    @staticmethod
    def _next(namespace: _Namespace) -> str:
        """Return the pod to retry next; empty: all pods have been admitted."""
        for uids in namespace.waiting.values():
            for uid in uids:
                if uid not in namespace.admitted:
                    return uid
        return ""


_LOSS_FIRST, _LOSS_LONGEST = 10.0, 300.0
"""Seconds until the next pod of an owner that loses pods: after the second loss, and the maximum."""
_QUIET = 600.0
"""Earlier losses do not count if a pod lived this many seconds, or if the last loss is as long ago. A kubelet does the same."""
_MOST = 4096
"""Maximum number of recorded owners. Owners with the oldest losses are removed first."""


@dataclass(slots=True)
class _Loss:
    at: float
    again: int = 0
    """Losses after the first one. Pods that are lost together count once."""
    by: str = ""


class Losses:
    """The owners that lost pods in one lower cluster, by uid.

    The owner of a lost pod replaces it immediately. If a program of the lower cluster deletes each replacement, the upper
    cluster gets thousands of Failed pods. So the next lower pods of the owner are delayed, as a kubelet delays containers in
    CrashLoopBackOff: not after the first loss, then 10 s, doubled each time, at most 5 min.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[str, _Loss] = OrderedDict()

    def lost(self, owner: str, *, created_at: float, now: float, by: str = "") -> None:
        """Count the loss of a pod.

        Args:
            owner: uid of the upper pod's controller; empty: nothing creates another pod.
            created_at: when the lower pod was created; 0: unknown, long ago.
            now: the current time, of the same clock.
            by: the lower controller that had adopted the pod; empty: none.
        """
        if not owner or not created_at or now - created_at >= _QUIET:
            return
        known = self._owners.get(owner)
        if known is not None and created_at < known.at:
            known.by = known.by or by
            return  # it was lost together with others
        is_again = known is not None and now - known.at < _QUIET
        again = known.again + 1 if known is not None and is_again else 0
        self._owners[owner] = _Loss(now, again, by)
        self._owners.move_to_end(owner)
        while len(self._owners) > _MOST:
            self._owners.popitem(last=False)

    def pause(self, owner: str, now: float) -> float:
        """Return the seconds until the next lower pod of an owner may be created; 0: now."""
        known = self._owners.get(owner)
        if known is None or not known.again:
            return 0.0
        return max(0.0, known.at + self.delay(owner) - now)

    def delay(self, owner: str) -> float:
        """Return the seconds of an owner's last back-off; 0: none."""
        known = self._owners.get(owner)
        if known is None or not known.again:
            return 0.0
        return rate_limiter.exponential(known.again - 1, base=_LOSS_FIRST, maximum=_LOSS_LONGEST)

    def by(self, owner: str) -> str:
        """Return the lower controller that had adopted the last lost pod of an owner; empty: none, or unknown."""
        known = self._owners.get(owner)
        return "" if known is None else known.by
