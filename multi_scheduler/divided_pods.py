"""Counts the pods of each controller with a division, by lower cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from clusterset.model import names
from controller_runtime.objects import Object

_ASSUMED_SECONDS = 60.0
"""Seconds after the filter for which a pod counts without being bound, for example while a volume is provisioned."""


@dataclass(eq=False)
class DividedPods:
    """Counts bound pods and filtered pods, because the scheduler may filter a pod before it binds earlier ones."""

    cluster_of: Callable[[str], str | None]
    """Returns the lower cluster of a virtual node; None: unknown."""
    clock: Callable[[], float] = time.monotonic
    _bound: dict[str, tuple[str, str]] = field(default_factory=dict)
    """UID of a pod → its controller and node."""
    _on: dict[str, Counter[str]] = field(default_factory=dict)
    """Controller → number of its bound pods by node."""
    _assumed: dict[str, dict[str, tuple[str, float]]] = field(default_factory=dict)
    """Controller → UID of a pod → lower cluster, and the time until which the pod counts there."""
    _controller: dict[str, str] = field(default_factory=dict)
    """Controller by UID of an assumed pod, in the order in which the pods were assumed."""

    def count(self, controller: str) -> Counter[str]:
        """Return the number of a controller's pods by lower cluster."""
        found: Counter[str] = Counter()
        for node, pods in self._on.get(controller, {}).items():
            if (cluster := self.cluster_of(node)) is not None:
                found[cluster] += pods
        now = self.clock()
        for uid, (cluster, until) in list(self._assumed.get(controller, {}).items()):
            if until <= now:
                self.forget(uid)
            else:
                found[cluster] += 1
        return found

    def assume(self, uid: str, controller: str, cluster: str) -> None:
        """Count a pod that passed the filter, for 60 seconds or until it is bound."""
        self.forget(uid)
        while self._controller:  # drop expired pods, which were never bound
            oldest, of = next(iter(self._controller.items()))
            if self._assumed[of][oldest][1] > self.clock():
                break
            self.forget(oldest)
        if uid not in self._bound:
            self._assumed.setdefault(controller, {})[uid] = cluster, self.clock() + _ASSUMED_SECONDS
            self._controller[uid] = controller

    def assumed(self, uid: str) -> str | None:
        """Return the cluster where a pod counts without being bound; None: nowhere."""
        controller = self._controller.get(uid)
        return self._assumed[controller][uid][0] if controller is not None else None

    def forget(self, uid: str) -> None:
        """Stop counting a pod that is not bound."""
        if (controller := self._controller.pop(uid, None)) is not None:
            del self._assumed[controller][uid]
            if not self._assumed[controller]:
                del self._assumed[controller]

    def changed(self, pod: Object) -> None:
        """Count a bound pod with a division; pods that are being deleted do not count."""
        self.forget(pod.uid)
        self._uncount(pod.uid)
        controller = controller_key(pod.namespace, pod.metadata.owner_references)
        node = (pod.spec or {}).get("nodeName") or ""
        is_divided = bool(pod.annotations.get(names.ANNOTATION_DIVISION))
        if controller and is_divided and pod.metadata.deletion_timestamp is None:
            self._bound[pod.uid] = controller, node
            self._on.setdefault(controller, Counter())[node] += 1

    def deleted(self, pod: Object) -> None:
        """Stop counting a pod that was deleted or has finished."""
        self.forget(pod.uid)
        self._uncount(pod.uid)

    def _uncount(self, uid: str) -> None:
        if (known := self._bound.pop(uid, None)) is None:
            return
        controller, node = known
        counts = self._on[controller]
        counts[node] -= 1
        if not counts[node]:
            del counts[node]
            if not counts:
                del self._on[controller]


def controller_key(namespace: str, references: Iterable[Mapping[str, object]]) -> str:
    """Return what identifies a pod's controller; empty: it has none.

    Any user can write the UID of another namespace's controller into a pod, so the namespace is part of the key.
    """
    found = next((one.get("uid") for one in references if one.get("controller")), None)
    return f"{namespace}/{found}" if found else ""
