"""Predicts the pod that a lower cluster would get, or why the virtual node or lower admission refuses it. No IO.

A quota's ``used`` counts existing pods. For a pod with reserved room, its charge (what it adds to quotas) is held here
until its lower pod exists, because then the quota counts the lower pod. The room stays reserved longer, until the lower
pod is on a lower node. A quota may count a pod before the pod's own watch event arrives: see ``RecentlyCounted``.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from clusterset.admission import ClusterRules, LastVerdict, Refusal
from clusterset.config import Cluster
from clusterset.model import names, namespace_map
from clusterset.model.pod.affinity_terms import UpperNamespaces
from clusterset.model.pod.groups import group_of
from clusterset.model.pod.lower_spec import preferred_node
from clusterset.model.policy.copied_keys import IgnoredKeys
from controller_runtime.apimachinery.translation_budget import TooLargeError
from controller_runtime.resources import LIMIT_RANGES, NAMESPACES, PRIORITY_CLASSES, RESOURCE_QUOTAS
from multi_scheduler.state import quotas
from multi_scheduler.state.quotas import Charge, Kind, LimitRange, Quota
from multi_scheduler.virtual_node import VirtualNode

_CHOSEN_NODE = (names.ANNOTATION_PREFERRED_NODE, names.ANNOTATION_REQUIRED_NODE)
LAG_SECONDS = 1.0
"""Seconds that one watch may lag behind the other."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The prediction for a pod."""

    pod: Mapping[str, Any]
    """The lower pod, without a node that the pod prefers or requires by name, and with LimitRange defaults; the upper pod if
    the virtual node refuses it."""
    charge: Charge | None = None
    """What the pod would add to the quotas of its lower namespace; None: no quotas, or the virtual node refuses the pod."""
    refusal: str = ""
    """Why the pod would be refused; empty: admitted. Evicting other pods does not help."""
    demand_key: tuple[str, tuple[LimitRange, ...], str] = ("", (), "")
    """Cache key: a pod has the same demand in all clusters with the same key, if it has no volumes there."""
    may_change: bool = False
    """Whether only quota charges of other pods' reservations cause the refusal; they may be released."""
    counted_by: float = 0.0
    """Time by which the quota controller recounts the refusing quota, by the event loop's clock; 0: none is due."""
    can_prefer: bool = False
    """Whether the policy lets the lower pod prefer a lower node by name."""


@dataclass(eq=False)
class AdmissionGate:
    """Predicts whether a lower cluster or its virtual node refuses a pod."""

    config: Cluster
    admission: Admission
    """Admission rules of the cluster's namespaces."""
    controllers: Collection[str]
    """``enableControllers`` of the virtual node."""
    enforces: bool
    """Whether quotas and limit ranges refuse pods; otherwise limit ranges only give defaults."""
    last_verdict: LastVerdict | None = None
    """The last verdict, shared by the gates of all clusters."""
    upper_namespaces: UpperNamespaces | None = None
    """Labels of the upper namespaces, for the affinity terms of lower pods."""
    ignored: IgnoredKeys = field(default_factory=IgnoredKeys)
    """Labels and annotations of upper pods that lower pods do not get."""

    def __post_init__(self) -> None:
        # The identity of the upper cluster is no setting of this program.
        self._rules = ClusterRules(
            self.config,
            controllers=self.controllers,
            upper_namespaces=self.upper_namespaces,
            ignored=self.ignored,
            last_verdict=self.last_verdict,
        )

    def judge(self, pod: Mapping[str, Any], node: VirtualNode) -> GateResult:
        """Predict admission of an upper pod if it is bound to one of the cluster's virtual nodes."""
        try:
            return self._judge(pod, node)
        except TooLargeError as error:
            return GateResult(pod, refusal=self._rules.too_large(error))

    def _judge(self, pod: Mapping[str, Any], node: VirtualNode) -> GateResult:
        """Return the result of ``judge``.

        Raises:
            TooLargeError: the translation of the pod exceeds its budget.
        """
        admitted = self._rules.admit(_without_chosen_node(pod), node, will_select=_domain_label(pod))
        if isinstance(admitted, Refusal):
            return GateResult(pod, refusal=admitted.reason)
        lower = admitted.pod
        namespace: str = lower["metadata"]["namespace"]
        marks = self.admission.marks(namespace)
        if marks is not None:
            upper = pod["metadata"].get("namespace", "")
            if (taken := self._rules.namespace_refusal(namespace, upper, marks)) is not None:
                return GateResult(pod, refusal=taken.reason)
        spec = lower["spec"]
        if overhead := pod["spec"].get("overhead"):  # the lower cluster probably has the same RuntimeClass
            spec = {**spec, "overhead": overhead}
        verdict = self.admission.admit(spec, namespace, priority_class=spec.get("priorityClassName", ""))
        refusal = verdict.refusal if self.enforces else ""
        if refusal:
            refusal = f"lower cluster {self._rules.cluster}, namespace {namespace}: {refusal}"
        return GateResult(
            pod={**lower, "spec": verdict.spec},
            charge=verdict.charge,
            refusal=refusal,
            demand_key=(namespace, self.admission.ranges(namespace), admitted.key),
            may_change=verdict.may_change,
            counted_by=verdict.counted_by,
            can_prefer=bool(preferred_node({names.ANNOTATION_PREFERRED_NODE: "x"}, admitted.rules)),
        )

    def preferred_node(self, pod: Mapping[str, Any]) -> str:
        """Return the lower node that the lower pod of an upper pod prefers; empty: none."""
        metadata = pod["metadata"]
        rules = self._rules.policy.of(metadata.get("namespace", ""))
        return preferred_node(metadata.get("annotations") or {}, rules)

    def lower_key(self, namespace: str, name: str) -> str:
        """Return namespace/name of the lower pod of an upper pod. Other lower pods are never taken for it."""
        return f"{self._rules.namespace_map(namespace)}/{name}"


def _without_chosen_node(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod without the annotations that name a lower node, because it may run on others if it does not fit there."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    if not any(key in annotations for key in _CHOSEN_NODE):
        return pod
    kept = {key: value for key, value in annotations.items() if key not in _CHOSEN_NODE}
    return {**pod, "metadata": {**metadata, "annotations": kept}}


def _domain_label(pod: Mapping[str, Any]) -> str:
    """Return the topology label that a pod of a group selects from its binding on; empty: none."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    if names.ANNOTATION_GROUP_TOPOLOGY not in annotations:
        return ""
    group = group_of(metadata.get("namespace", ""), metadata.get("labels") or {}, annotations, pod["spec"])
    return group.topology if group is not None and not group.problem else ""


class RecentlyCounted:
    """Growth of a lower cluster's quotas by pods that the pod watch has not reported, so that no pod counts twice.

    A quota's ``status.used`` and the pod that it counts arrive by two watches, in either order. When a pod with reserved
    room is seen, which means that the pod watch reports it, its charge is subtracted from the growth. The rest belongs to
    a reserved pod that will be seen a moment later, or to an unrelated pod. The rest therefore counts for one second only;
    the lower API server has the final decision.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with no growth; ``clock`` returns monotonic seconds."""
        self._clock = clock
        self._changes: dict[tuple[str, str], deque[tuple[float, Counter[str]]]] = {}
        """By namespace and name of the quota: expiry and amounts of each change; the amounts of seen pods are negative."""

    def grown(self, namespace: str, quota: str, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Record the growth of a quota's ``used``."""
        growth = {name: after[name] - before[name] for name in before.keys() & after.keys()}
        self._add(namespace, quota, Counter({name: count for name, count in growth.items() if count > 0}))

    def seen(self, namespace: str, quota: str, usage: Mapping[str, int]) -> None:
        """Record the usage of a reserved pod that was seen; it explains a part of the growth."""
        self._add(namespace, quota, Counter({name: -count for name, count in usage.items()}))

    def forget(self, namespace: str, quota: str) -> None:
        """Drop the changes of a deleted quota."""
        self._changes.pop((namespace, quota), None)

    def unseen(self, namespace: str, quota: str) -> Counter[str]:
        """Return the quota's usage by pods that have not been seen, by resource; only counts above zero."""
        total: Counter[str] = Counter()
        for _, change in self._recent(namespace, quota):
            total.update(change)
        return +total

    def _add(self, namespace: str, quota: str, change: Counter[str]) -> None:
        if change:
            self._recent(namespace, quota)
            until = self._clock() + LAG_SECONDS
            self._changes.setdefault((namespace, quota), deque()).append((until, change))

    def _recent(self, namespace: str, quota: str) -> deque[tuple[float, Counter[str]]]:
        changes = self._changes.get((namespace, quota))
        if changes is None:
            return deque()
        while changes and changes[0][0] <= self._clock():
            changes.popleft()
        if not changes:
            del self._changes[namespace, quota]
        return changes


Rule = TypeVar("Rule")
_MOST_QUOTAS = 50
_MOST_RANGES = 10
"""Number of quotas and limit ranges of a namespace that are applied, the first ones by name."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The prediction for a pod: its spec with the defaults of limit ranges, and why it would be refused."""

    spec: Mapping[str, Any]
    charge: Charge | None
    """What the pod adds to quotas; None: its namespace has no quotas."""
    refusal: str = ""
    """Why the pod would be refused; empty: admitted."""
    may_change: bool = False
    """Whether only charges of other pods' reservations cause the refusal; they may be released."""
    counted_by: float = 0.0
    """Time by which the quota controller recounts, because a pod was deleted or finished; 0: no recount is due."""


class Admission:
    """The admission rules of one lower cluster."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without rules; ``clock`` returns monotonic seconds."""
        self._quotas: dict[str, dict[str, Quota]] = {}
        """By namespace and name, like ``_ranges``."""
        self._ranges: dict[str, dict[str, LimitRange]] = {}
        self._default_classes: dict[str, int] = {}
        """Values of the PriorityClasses with ``globalDefault``, by name."""
        self._marks: dict[str, list[tuple[str, str]]] = {}
        """By lower namespace: the upper namespaces in its labels and annotations; empty: not created by virtual-node."""
        self.unknown: set[str] = set()
        """Plurals of resources that cannot be read now; their cached objects are ignored."""
        self._held: dict[str, Charge] = {}
        """Charges of pods with reserved room, by UID of the upper pod."""
        self._promised: dict[str, dict[Kind, Counter[str]]] = {}
        """Sums of the charges in ``_held``, by namespace and kind of pod."""
        self._recently_counted = RecentlyCounted(clock)
        self._counted_by: dict[str, float] = {}
        """By namespace: time by which the quota controller has recounted; see ``left``."""
        self.recounted: Callable[[], object] = lambda: None
        """Called when a quota with a pending recount changes."""

    # --- rules --------------------------------------------------------------------------------------

    def upsert_quota(self, quota: Mapping[str, Any]) -> None:
        """Store a new or changed ResourceQuota."""
        metadata = quota["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        before, after = self._quotas.get(namespace, {}).get(name), quotas.read_quota(quota)
        _put(self._quotas, namespace, name, after)
        if before is not None and after is not None:
            self._recently_counted.grown(namespace, name, before.used, after.used)
        if self._counted_by.pop(namespace, None) is not None:
            self.recounted()

    def remove_quota(self, namespace: str, name: str) -> None:
        """Forget a deleted ResourceQuota."""
        self._recently_counted.forget(namespace, name)
        _put(self._quotas, namespace, name, None)

    def upsert_range(self, limit_range: Mapping[str, Any]) -> None:
        """Store a new or changed LimitRange."""
        metadata = limit_range["metadata"]
        _put(self._ranges, metadata["namespace"], metadata["name"], quotas.read_limit_range(limit_range))

    def remove_range(self, namespace: str, name: str) -> None:
        """Forget a deleted LimitRange."""
        _put(self._ranges, namespace, name, None)

    def upsert_class(self, priority_class: Mapping[str, Any]) -> None:
        """Store a new or changed PriorityClass; only global defaults matter."""
        name = priority_class["metadata"]["name"]
        self._default_classes.pop(name, None)
        if priority_class.get("globalDefault"):
            self._default_classes[name] = int(priority_class.get("value") or 0)

    def remove_class(self, name: str) -> None:
        """Forget a deleted PriorityClass."""
        self._default_classes.pop(name, None)

    def upsert_namespace(self, namespace: Mapping[str, Any]) -> None:
        """Store for which upper namespaces a new or changed Namespace was created."""
        metadata = namespace["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        self._marks[metadata["name"]] = namespace_map.marks(labels, annotations)

    def remove_namespace(self, name: str) -> None:
        """Forget a deleted Namespace."""
        self._marks.pop(name, None)

    def marks(self, namespace: str) -> Sequence[tuple[str, str]] | None:
        """Return the ownership marks of a lower namespace, see ``namespace_map.marks``; None: it does not exist or is unknown."""
        return self._marks.get(namespace) if NAMESPACES.plural not in self.unknown else None

    def has_quotas(self, namespace: str) -> bool:
        """Report whether the namespace has quotas for pods."""
        return namespace in self._quotas

    def left(self, namespace: str, *, counted_by: float) -> None:
        """Record that a lower pod was deleted or finished; the quota controller will recount the quotas of its namespace.

        Args:
            namespace: lower namespace with quotas.
            counted_by: time by which the quota is recounted; seconds of the caller's clock.
        """
        self._counted_by[namespace] = counted_by

    # --- queries ------------------------------------------------------------------------------------

    def ranges(self, namespace: str) -> tuple[LimitRange, ...]:
        """Return the first limit ranges of a namespace, ordered by name. Further ones are ignored."""
        there = self._ranges.get(namespace)
        if not there or LIMIT_RANGES.plural in self.unknown:
            return ()
        return tuple(there[name] for name in sorted(there)[:_MOST_RANGES])

    def admit(self, spec: Mapping[str, Any], namespace: str, *, priority_class: str = "") -> Admitted:
        """Predict admission of an upper pod's spec in a lower namespace.

        Args:
            spec: spec of the upper pod.
            namespace: the lower namespace.
            priority_class: the class that the lower pod will name; empty: the lower cluster's default.
        """
        ranges = self.ranges(namespace)
        first = self._admit(spec, namespace, ranges, priority_class)
        if not first.refusal or len(ranges) < 2:
            return first
        # It is undefined which range's defaults win, so the pod passes if it is admitted with any of them first.
        reordered = (
            self._admit(spec, namespace, ranges[at:] + ranges[:at], priority_class)
            for at in range(1, len(ranges))
        )
        return next((one for one in reordered if not one.refusal), first)

    def _admit(
        self, spec: Mapping[str, Any], namespace: str, ranges: Sequence[LimitRange], priority_class: str
    ) -> Admitted:
        there = self._quotas.get(namespace) if RESOURCE_QUOTAS.plural not in self.unknown else None
        refusal = ""
        if ranges:
            spec = quotas.with_defaults(spec, ranges)
            refusal = quotas.objection(spec, ranges)
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
        for name in sorted(there)[:_MOST_QUOTAS]:
            quota = there[name]
            if quota.covers(charge.kind):
                reserved: Counter[str] = Counter()
                for kind, sums in promised.items():
                    if quota.covers(kind):
                        reserved.update(sums)
                # ``used`` contains the unseen pods already. Counter subtraction keeps only positive counts.
                reserved -= self._recently_counted.unseen(charge.namespace, name)
                if objection := quota.objection(charge, reserved):
                    return objection
        return ""

    def _priority_class(self, own: str) -> str | None:
        if own:
            return own
        if PRIORITY_CLASSES.plural in self.unknown:
            return None
        return min(self._default_classes, key=self._default_classes.__getitem__, default="")

    # --- charges ------------------------------------------------------------------------------------

    def hold(self, uid: str, charge: Charge) -> None:
        """Count the charge of a pod with reserved room until ``arrived`` or ``drop`` is called."""
        self.drop(uid)
        self._held[uid] = charge
        self._promised.setdefault(charge.namespace, {}).setdefault(charge.kind, Counter()).update(
            charge.usage
        )

    def arrived(self, uid: str) -> None:
        """Release a pod's charge when its lower pod exists, because quotas count it already or will shortly."""
        charge = self._held.get(uid)
        if charge is None:
            return
        self.drop(uid)
        for name, quota in self._quotas.get(charge.namespace, {}).items():
            if quota.covers(charge.kind):
                self._recently_counted.seen(charge.namespace, name, charge.usage)

    def drop(self, uid: str) -> None:
        """Release the charge of a pod that will not be created, or that the quotas count."""
        charge = self._held.pop(uid, None)
        if charge is None:
            return
        kinds = self._promised[charge.namespace]
        # Counter subtraction drops zero counts; no count is negative, because the charge was added before.
        kinds[charge.kind] -= Counter(charge.usage)
        if not kinds[charge.kind]:
            del kinds[charge.kind]
        if not kinds:
            del self._promised[charge.namespace]


def _put(kept: dict[str, dict[str, Rule]], namespace: str, name: str, rule: Rule | None) -> None:
    """Store a rule; None removes the rule, and its namespace if no rule is left there."""
    if rule is not None:
        kept.setdefault(namespace, {})[name] = rule
    elif namespace in kept:
        kept[namespace].pop(name, None)
        if not kept[namespace]:
            del kept[namespace]
