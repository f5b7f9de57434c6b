"""Predicts the pod that a lower cluster would get, or why the virtual node or lower admission refuses it. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterset.config import Cluster
from clusterset.model import names, namespace_map
from clusterset.model.namespace_map import NamespaceMap
from clusterset.model.overrides.applying import CompiledOverride, OverrideSet, applied
from clusterset.model.pod.affinity_terms import Reach, UpperNamespaces
from clusterset.model.pod.eligibility import KNOWN_CONTROLLERS, Eligibility
from clusterset.model.pod.groups import group_of
from clusterset.model.pod.lower_spec import lower_spec, preferred_node
from clusterset.model.policy.rules import Effective, PolicySet
from controller_runtime.apimachinery.translation_budget import TooLargeError
from multi_scheduler.state.admission.limit_ranges import LimitRange
from multi_scheduler.state.admission.predictor import Admission
from multi_scheduler.state.admission.quotas import Charge
from multi_scheduler.virtual_node import VirtualNode


@dataclass(frozen=True, slots=True)
class GateResult:
    """The prediction for a pod."""

    pod: Mapping[str, Any]
    """The pod with overrides, lower namespace, lower affinity terms and LimitRange defaults; the upper pod if the virtual
    node refuses it."""
    charge: Charge | None = None
    """What the pod would add to the quotas of its lower namespace; None: no quotas, or the virtual node refuses the pod."""
    refusal: str = ""
    """Why the pod would be refused; empty: admitted. Evicting other pods does not help."""
    demand_key: tuple[str, tuple[LimitRange, ...], bool, tuple[str, ...], str] = ("", (), False, (), "")
    """Cache key: a pod has the same demand in all clusters with the same key."""
    may_change: bool = False
    """Whether only quota charges of other pods' reservations cause the refusal; they may be released."""
    counted_by: float = 0.0
    """Time by which the quota controller recounts the refusing quota, by the event loop's clock; 0: none is due."""
    rules: Effective | None = None
    """The lower cluster's policy for the pod's upper namespace; None: the virtual node refuses the pod."""
    overrides: tuple[CompiledOverride, ...] = ()
    """The overrides of the lower cluster that were applied to the pod."""
    can_prefer: bool = False
    """Whether the policy lets the lower pod prefer a lower node by name."""


class Allowed:
    """The last pod that a policy allowed. Shared by the gates of all clusters, because most clusters have the same policy."""

    def __init__(self) -> None:
        self._last: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]] = ({}, {}, {})

    def knows(self, pod: Mapping[str, Any], sent: Mapping[str, Any], rules: Effective) -> bool:
        """Report whether equal rules allowed this pod with the same lower spec."""
        known, spec, values = self._last
        return pod is known and sent == spec and rules.values == values

    def note(self, pod: Mapping[str, Any], sent: Mapping[str, Any], rules: Effective) -> None:
        """Note that rules allow a pod."""
        self._last = pod, sent, rules.values


@dataclass(eq=False)
class AdmissionGate:
    """Predicts whether a lower cluster or its virtual node refuses a pod."""

    config: Cluster
    admission: Admission
    """Admission rules of the cluster's namespaces."""
    enforces: bool
    """Refuse pods by quotas and limit ranges; False: limit ranges only give defaults."""
    allowed: Allowed
    upper_namespaces: UpperNamespaces = field(default_factory=UpperNamespaces)
    """Labels of the upper namespaces, for the affinity terms of lower pods."""

    def __post_init__(self) -> None:
        config = self.config
        self._map = NamespaceMap(config.namespaces.prefix, config.namespaces.map)
        # The identity of the upper cluster is no setting of this program.
        self._reach = Reach(self.upper_namespaces, self._map, config.namespaces.allowed)
        self._eligibility = Eligibility(
            config.name,
            allowed=config.namespaces.allowed,
            pod_selector=config.pod_selector,
            takes_resource_claims=config.resource_claims.enabled,
            controllers=KNOWN_CONTROLLERS if config.enable_controllers is None else config.enable_controllers,
        )
        self._policy = PolicySet(
            config.policy, cluster=config.name, host_paths=config.volumes.allowed_host_paths
        )
        self._overrides = OverrideSet(config.overrides)

    def judge(self, pod: Mapping[str, Any], node: VirtualNode) -> GateResult:
        """Predict admission of an upper pod if it is bound to one of the cluster's virtual nodes."""
        try:
            return self._judge(pod, node)
        except TooLargeError as error:
            return GateResult(pod, refusal=f"lower cluster {self.config.name} cannot take the pod: {error}")

    def _judge(self, pod: Mapping[str, Any], node: VirtualNode) -> GateResult:
        """Return the result of ``judge``.

        Raises:
            TooLargeError: the translation of the pod exceeds its budget.
        """
        metadata, spec = pod["metadata"], pod["spec"]
        above = metadata.get("namespace", "")
        if refusal := self._eligibility.why_not(pod) or self._eligibility.affinity_refusal(pod, self._reach):
            return GateResult(pod, refusal=refusal)
        rules = self._policy.of(above)
        lower = lower_spec(pod, rules, node_name=node.name, node_labels=node.labels, reach=self._reach)
        sent = _in_domain(pod, lower)
        if not self.allowed.knows(pod, sent, rules):
            if refusal := self._eligibility.policy_refusal({**pod, "spec": sent}, rules):
                return GateResult(pod, refusal=refusal)
            self.allowed.note(pod, sent, rules)
        namespace = self._map(above)
        if refusal := self._namespace_refusal(namespace, above):
            return GateResult(pod, refusal=refusal)
        # The demand reads node affinity from the annotation, and terms of pod affinity as the lower pod has them.
        terms = {
            kind: found for kind, found in (sent.get("affinity") or {}).items() if kind != "nodeAffinity"
        }
        if spec.get("affinity"):
            spec = {**spec, "affinity": terms}
            pod = {**pod, "spec": spec}
        if overrides := self._overrides.of(pod):
            pod, sent = applied(pod, overrides), applied({**pod, "spec": sent}, overrides)["spec"]
            metadata, spec = pod["metadata"], pod["spec"]
        admitted = self.admission.admit(spec, namespace, priority_class=sent.get("priorityClassName", ""))
        refusal = admitted.refusal if self.enforces else ""
        if refusal:
            refusal = f"lower cluster {self.config.name}, namespace {namespace}: {refusal}"
        if namespace != above or admitted.spec is not spec:
            pod = {**pod, "metadata": {**metadata, "namespace": namespace}, "spec": admitted.spec}
        ranges, keys = self.admission.ranges(namespace), tuple(one.key for one in overrides)
        return GateResult(
            pod=pod,
            charge=admitted.charge,
            refusal=refusal,
            demand_key=(namespace, ranges, bool(rules.values["control_plane"]), keys, repr(terms)),
            may_change=admitted.may_change,
            counted_by=admitted.counted_by,
            rules=rules,
            overrides=overrides,
            can_prefer=bool(preferred_node({names.ANNOTATION_PREFERRED_NODE: "x"}, rules)),
        )

    def preferred_node(self, pod: Mapping[str, Any]) -> str:
        """Return the lower node that the lower pod of an upper pod prefers; empty: none."""
        metadata = pod["metadata"]
        rules = self._policy.of(metadata.get("namespace", ""))
        return preferred_node(metadata.get("annotations") or {}, rules)

    def lower_key(self, namespace: str, name: str) -> str:
        """Return namespace/name of the lower pod of an upper pod. Other lower pods are never taken for it."""
        return f"{self._map(namespace)}/{name}"

    def _namespace_refusal(self, namespace: str, above: str) -> str:
        """Return why the virtual node would not use an existing lower namespace for an upper one; empty: it would.

        The upper cluster in the namespace's labels is not checked, so the refusal of another upper cluster's namespace
        is not predicted.
        """
        origins = self.admission.origins(namespace)
        if origins is None or {above, ""} & origins:
            return ""
        if origins:
            return f"namespace {namespace} of lower cluster {self.config.name} belongs to upper namespace {min(origins)}"
        if rival := self._map.conflicting_upper(above):
            return f"namespace {namespace} of lower cluster {self.config.name} belongs to upper namespace {rival}"
        if namespace_map.adopts(namespace, self.config.namespaces.adopt):
            return ""
        return f"namespace {namespace} exists in lower cluster {self.config.name} and is not among namespaces.adopt"


def _in_domain(pod: Mapping[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    """Add the topology node selector that a pod of a group gets at binding, with an empty value; other pods get none."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    if names.ANNOTATION_GROUP_TOPOLOGY not in annotations:
        return sent
    group = group_of(metadata.get("namespace", ""), metadata.get("labels") or {}, annotations)
    if group is None or not group.topology or group.problem:
        return sent
    # The policy checks only the key.
    return {**sent, "nodeSelector": {**(sent.get("nodeSelector") or {}), group.topology: ""}}
