"""What admission in a lower cluster will do with a pod: its namespace's quotas and limit ranges. Pure.

A quota's ``used`` counts what is there. What was promised and has not arrived is held here, and let go as soon as the
lower pod exists, for then the quota counts it: earlier than its room, which it takes once it is on a lower node. A quota
may report a pod before the pod is seen: see ``recently_counted``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from controller_runtime.api import names
from controller_runtime.resources import LIMIT_RANGES, NAMESPACES, PRIORITY_CLASSES, RESOURCE_QUOTAS
from multi_scheduler.fit.admission import limit_ranges, quotas
from multi_scheduler.fit.admission.limit_ranges import LimitRange
from multi_scheduler.fit.admission.quotas import Charge, Kind, Quota
from multi_scheduler.fit.admission.recently_counted import RecentlyCounted

Rule = TypeVar("Rule")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A pod as admission would leave it."""

    spec: Mapping[str, Any]
    charge: Charge | None
    """What it will count in quotas; None: there is none in its namespace."""
    refusal: str = ""
    """Why it would not get in; empty: it would."""
    may_change: bool = False
    """Promises to other pods alone are in the way, which may soon turn out unused."""
    counted_by: float = 0.0
    """Until then the quota may count less: a pod of the namespace has gone, and it has not been counted again."""


class Admission:
    """The rules of one lower cluster's namespaces."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Know no rules yet; ``clock`` returns monotonic seconds."""
        self._quotas: dict[str, dict[str, Quota]] = {}
        """By namespace and name; so are the ranges."""
        self._ranges: dict[str, dict[str, LimitRange]] = {}
        self._default_classes: dict[str, int] = {}
        """PriorityClass → value."""
        self._origins: dict[str, frozenset[str]] = {}
        """By lower namespace: the upper ones that its marks name; none: virtual-node did not create it."""
        self.unknown: set[str] = set()
        """Resources that are kept from us (again): what was known of them is not believed."""
        self._held: dict[str, Charge] = {}
        """By upper uid."""
        self._promised: dict[str, dict[Kind, Counter[str]]] = {}
        """By namespace: the sum of what is held."""
        self._recently_counted = RecentlyCounted(clock)
        self._counted_by: dict[str, float] = {}
        """By namespace: see ``left``."""
        self.recounted: Callable[[], object] = lambda: None
        """Called when a quota changes that was about to be counted again."""

    # --- rules --------------------------------------------------------------------------------------

    def upsert_quota(self, quota: Mapping[str, Any]) -> None:
        """A ResourceQuota appeared or changed."""
        metadata = quota["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        before, after = self._quotas.get(namespace, {}).get(name), quotas.read(quota)
        _put(self._quotas, namespace, name, after)
        if before is not None and after is not None:
            self._recently_counted.grown(namespace, name, before.used, after.used)
        if self._counted_by.pop(namespace, None) is not None:
            self.recounted()

    def remove_quota(self, namespace: str, name: str) -> None:
        """A ResourceQuota is gone."""
        self._recently_counted.forget(namespace, name)
        _put(self._quotas, namespace, name, None)

    def upsert_range(self, limit_range: Mapping[str, Any]) -> None:
        """A LimitRange appeared or changed."""
        metadata = limit_range["metadata"]
        _put(self._ranges, metadata["namespace"], metadata["name"], limit_ranges.read(limit_range))

    def remove_range(self, namespace: str, name: str) -> None:
        """A LimitRange is gone."""
        _put(self._ranges, namespace, name, None)

    def upsert_class(self, priority_class: Mapping[str, Any]) -> None:
        """A PriorityClass appeared or changed; only those that are somebody's default matter."""
        name = priority_class["metadata"]["name"]
        self._default_classes.pop(name, None)
        if priority_class.get("globalDefault"):
            self._default_classes[name] = int(priority_class.get("value") or 0)

    def remove_class(self, name: str) -> None:
        """A PriorityClass is gone."""
        self._default_classes.pop(name, None)

    def upsert_namespace(self, namespace: Mapping[str, Any]) -> None:
        """A Namespace appeared or changed."""
        metadata = namespace["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        found = set()
        if names.LABEL_UPPER_CLUSTER in labels:
            found.add(annotations.get(names.ANNOTATION_UPPER_NAMESPACE, ""))
        if made_for := annotations.get(names.ANNOTATION_MADE_FOR):
            found.add(made_for.partition("/")[2])
        self._origins[metadata["name"]] = frozenset(found)

    def remove_namespace(self, name: str) -> None:
        """A Namespace is gone."""
        self._origins.pop(name, None)

    def origins(self, namespace: str) -> frozenset[str] | None:
        """Return the upper namespaces that a lower one's marks name, empty for one that virtual-node did not create.

        An empty name among them: the mark was removed. None: there is no such namespace, or it is not known.
        """
        return self._origins.get(namespace) if NAMESPACES.plural not in self.unknown else None

    def has_quotas(self, namespace: str) -> bool:
        """Whether there are any about pods."""
        return namespace in self._quotas

    def left(self, namespace: str, *, counted_by: float) -> None:
        """A pod of a namespace has gone, or ended: the quota controller sees it when we do, and counts after that.

        Args:
            namespace: the lower one; it has quotas.
            counted_by: when that will be over; seconds of the caller's clock.
        """
        self._counted_by[namespace] = counted_by

    # --- questions ----------------------------------------------------------------------------------

    def ranges(self, namespace: str) -> tuple[LimitRange, ...]:
        """The limit ranges of a namespace, in the order of their names."""
        there = self._ranges.get(namespace)
        if not there or LIMIT_RANGES.plural in self.unknown:
            return ()
        return tuple(there[name] for name in sorted(there))

    def admit(self, spec: Mapping[str, Any], namespace: str, *, priority_class: str = "") -> Admitted:
        """What becomes of an upper pod's spec in a lower namespace.

        Args:
            spec: the upper pod's.
            namespace: the lower one.
            priority_class: what the pod keeps of its class; empty: the lower cluster's default is used.
        """
        ranges = self.ranges(namespace)
        first = self._admit(spec, namespace, ranges, priority_class)
        if not first.refusal or len(ranges) < 2:
            return first
        # Which range's default wins is not defined: where the pod may get in, it is not kept out.
        turned = (
            self._admit(spec, namespace, ranges[at:] + ranges[:at], priority_class)
            for at in range(1, len(ranges))
        )
        return next((one for one in turned if not one.refusal), first)

    def _admit(
        self, spec: Mapping[str, Any], namespace: str, ranges: Sequence[LimitRange], priority_class: str
    ) -> Admitted:
        there = self._quotas.get(namespace) if RESOURCE_QUOTAS.plural not in self.unknown else None
        refusal = ""
        if ranges:
            spec = limit_ranges.with_defaults(spec, ranges)
            refusal = limit_ranges.objection(spec, ranges)
        if not there:
            return Admitted(spec, None, refusal)
        charge = quotas.charge(spec, namespace=namespace, priority_class=self._priority_class(priority_class))
        if refusal:
            return Admitted(spec, charge, refusal)
        promised = self._promised.get(namespace, {})
        refusal = self._over_quota(charge, there, promised)
        may_change = bool(refusal and promised) and not self._over_quota(charge, there, {})
        return Admitted(spec, charge, refusal, may_change, self._counted_by.get(namespace, 0.0))

    def _over_quota(
        self, charge: Charge, there: Mapping[str, Quota], promised: Mapping[Kind, Counter[str]]
    ) -> str:
        for name, quota in sorted(there.items()):
            if quota.covers(charge.kind):
                # Subtraction keeps what is left over zero.
                on_their_way = _on_their_way(quota, promised)
                on_their_way -= self._recently_counted.unseen(charge.namespace, name)
                if told := quota.objection(charge, on_their_way):
                    return told
        return ""

    def _priority_class(self, own: str) -> str | None:
        if own:
            return own
        if PRIORITY_CLASSES.plural in self.unknown:
            return None
        return min(self._default_classes, key=self._default_classes.__getitem__, default="")

    # --- promises -----------------------------------------------------------------------------------

    def hold(self, uid: str, charge: Charge) -> None:
        """A pod may come: until it has, or will not, it counts."""
        self.drop(uid)
        self._held[uid] = charge
        self._promised.setdefault(charge.namespace, {}).setdefault(charge.kind, Counter()).update(
            charge.usage
        )

    def arrived(self, uid: str) -> None:
        """The pod is there, and its quotas count it, or will in a moment."""
        charge = self._held.get(uid)
        if charge is None:
            return
        self.drop(uid)
        for name, quota in self._quotas.get(charge.namespace, {}).items():
            if quota.covers(charge.kind):
                self._recently_counted.seen(charge.namespace, name, charge.usage)

    def drop(self, uid: str) -> None:
        """The pod will not come, or is accounted for otherwise."""
        charge = self._held.pop(uid, None)
        if charge is None:
            return
        kinds = self._promised[charge.namespace]
        # Subtraction keeps what is left over zero, and nothing is below: all of it was added.
        kinds[charge.kind] -= Counter(charge.usage)
        if not kinds[charge.kind]:
            del kinds[charge.kind]
        if not kinds:
            del self._promised[charge.namespace]


def _on_their_way(quota: Quota, promised: Mapping[Kind, Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for kind, sums in promised.items():
        if quota.covers(kind):
            total.update(sums)
    return total


def _put(kept: dict[str, dict[str, Rule]], namespace: str, name: str, rule: Rule | None) -> None:
    """Keep a rule, or with None forget it; namespaces without any are not kept."""
    if rule is not None:
        kept.setdefault(namespace, {})[name] = rule
    elif namespace in kept:
        kept[namespace].pop(name, None)
        if not kept[namespace]:
            del kept[namespace]
