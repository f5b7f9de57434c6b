"""Predicts the pod that a lower cluster would get, or why the virtual node or lower admission refuses it. No IO."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from clusterset.admission import ClusterRules, LastVerdict, Refusal
from clusterset.config import Cluster
from clusterset.model import names
from clusterset.model.pod.affinity_terms import UpperNamespaces
from clusterset.model.pod.groups import group_of
from clusterset.model.pod.lower_spec import preferred_node
from controller_runtime.apimachinery.translation_budget import TooLargeError
from multi_scheduler.state.admission.limit_ranges import LimitRange
from multi_scheduler.state.admission.predictor import Admission
from multi_scheduler.state.admission.quotas import Charge
from multi_scheduler.virtual_node import VirtualNode

_CHOSEN_NODE = (names.ANNOTATION_PREFERRED_NODE, names.ANNOTATION_REQUIRED_NODE)


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
    """Shared by the gates of all clusters."""
    upper_namespaces: UpperNamespaces | None = None
    """Labels of the upper namespaces, for the affinity terms of lower pods."""

    def __post_init__(self) -> None:
        # The identity of the upper cluster is no setting of this program.
        self._rules = ClusterRules(
            self.config,
            controllers=self.controllers,
            upper_namespaces=self.upper_namespaces,
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
    group = group_of(metadata.get("namespace", ""), metadata.get("labels") or {}, annotations)
    return group.topology if group is not None and not group.problem else ""
