"""What admission in a lower cluster will do with a pod: its namespace's quotas and limit ranges. Pure.

A quota's ``used`` counts what is there. What was promised and has not arrived is held here, and let go as soon as the
lower pod exists, for then the quota counts it: earlier than its room, which it takes once it is on a lower node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from controller_runtime.resources import LIMIT_RANGES, PRIORITY_CLASSES, RESOURCE_QUOTAS
from multi_scheduler.fit import limit_ranges, quotas
from multi_scheduler.fit.limit_ranges import LimitRange
from multi_scheduler.fit.quotas import Charge, Kind, Quota

_SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")
"""Those that are the same in every cluster; the virtual node carries no other down."""
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

    def __init__(self) -> None:
        self._quotas: dict[str, dict[str, Quota]] = {}
        """By namespace and name; so are the ranges."""
        self._ranges: dict[str, dict[str, LimitRange]] = {}
        self._default_classes: dict[str, int] = {}
        """PriorityClass → value."""
        self.unknown: set[str] = set()
        """Resources that are kept from us (again): what was known of them is not believed."""
        self._held: dict[str, Charge] = {}
        """By upper uid."""
        self._promised: dict[str, dict[Kind, Counter[str]]] = {}
        """By namespace: the sum of what is held."""
        self._counted_by: dict[str, float] = {}
        """By namespace: see ``left``."""
        self.recounted: Callable[[], object] = lambda: None
        """Called when a quota changes that was about to be counted again."""

    # --- rules --------------------------------------------------------------------------------------

    def upsert_quota(self, quota: Mapping[str, Any]) -> None:
        """A ResourceQuota appeared or changed."""
        metadata = quota["metadata"]
        _put(self._quotas, metadata["namespace"], metadata["name"], quotas.read(quota))
        if self._counted_by.pop(metadata["namespace"], None) is not None:
            self.recounted()

    def remove_quota(self, namespace: str, name: str) -> None:
        """A ResourceQuota is gone."""
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

    def admit(self, spec: Mapping[str, Any], namespace: str) -> Admitted:
        """What becomes of an upper pod's spec in a lower namespace."""
        ranges = self.ranges(namespace)
        first = self._admit(spec, namespace, ranges)
        if not first.refusal or len(ranges) < 2:
            return first
        # Which range's default wins is not defined: where the pod may get in, it is not kept out.
        turned = (self._admit(spec, namespace, ranges[at:] + ranges[:at]) for at in range(1, len(ranges)))
        return next((one for one in turned if not one.refusal), first)

    def _admit(self, spec: Mapping[str, Any], namespace: str, ranges: Sequence[LimitRange]) -> Admitted:
        there = self._quotas.get(namespace) if RESOURCE_QUOTAS.plural not in self.unknown else None
        refusal = ""
        if ranges:
            spec = limit_ranges.with_defaults(spec, ranges)
            refusal = limit_ranges.objection(spec, ranges)
        if not there:
            return Admitted(spec, None, refusal)
        charge = quotas.charge(spec, namespace=namespace, priority_class=self._priority_class(spec))
        if refusal:
            return Admitted(spec, charge, refusal)
        promised = self._promised.get(namespace, {})
        refusal = _over_quota(charge, there, promised)
        may_change = bool(refusal and promised) and not _over_quota(charge, there, {})
        return Admitted(spec, charge, refusal, may_change, self._counted_by.get(namespace, 0.0))

    def _priority_class(self, spec: Mapping[str, Any]) -> str | None:
        own = spec.get("priorityClassName") or ""
        if own in _SYSTEM_CLASSES:
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

    def drop(self, uid: str) -> None:
        """The pod is there, and its quotas count it; or it will not come."""
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


def _over_quota(charge: Charge, there: Mapping[str, Quota], promised: Mapping[Kind, Counter[str]]) -> str:
    for _, quota in sorted(there.items()):
        if quota.covers(charge.kind) and (told := quota.objection(charge, _on_their_way(quota, promised))):
            return told
    return ""


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
