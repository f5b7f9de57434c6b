"""Rules about pods without a lower pod or with a wrong status, and about stuck pods and claims."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import condition, is_finished, is_true
from clusterset.model.policy.decision import violations
from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.readable import some
from virtual_node.config import program
from virtual_node.examine.clusters import IDENTITY, limits, owned_heads, virtual_nodes
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.expiry import span
from virtual_node.examine.finding import Findings
from virtual_node.examine.mirrored import MirroredPod, MirroredRule
from virtual_node.examine.objects import annotations_of, is_deleting, key, last_change, statuses
from virtual_node.examine.snapshot import Snapshot, View, objects
from virtual_node.translate.base import ownership
from virtual_node.translate.pods import status as pod_status
from virtual_node.translate.pods.summary import status_word
from virtual_node.translate.storage import pv, pvc

_UNEXPLAINED_STATES = frozenset({"Pending", "Unknown", "ContainerCreating", "Running"})
"""Status words that do not explain why a pod has no lower pod."""


@rule(Code.LOWER_POD_MISSING, level=Level.MIRRORED)
class Missing(MirroredRule):
    """Finds bound, unfinished upper pods that have no lower pod, if their status does not contain the cause."""

    name = "missing"

    def of_pod(self, pod: MirroredPod) -> Findings:
        """Yield the finding about a pod."""
        snapshot, upper = self.snapshot, pod.upper
        if (
            pod.below is not None
            or is_deleting(upper)
            or is_finished(upper.get("status"))
            or not snapshot.upper.get(IDENTITY)
        ):
            return
        since = condition(upper.get("status"), "PodScheduled").get("lastTransitionTime")
        waited = snapshot.age(since or upper["metadata"].get("creationTimestamp"))
        if waited <= limits(snapshot).grace:
            return
        if _reported_cause(upper):
            return  # The rules about pods report the pod with this cause.
        known = ""
        mark = annotations_of(upper).get(names.ANNOTATION_LOWER_UID)
        if ownership.mirrored_as(mark, upper["metadata"]["uid"]):
            known = "; its lower pod existed before"
        cause = f"on virtual node {upper['spec']['nodeName']} for {span(waited)} without a lower pod{known}"
        step = program.name(f"diagnose pod {key(upper)}")
        yield pod.lower.finding(Code.LOWER_POD_MISSING, "Pod", key(upper), cause, step, transient=True)


@rule(Code.STATUS_DRIFT, level=Level.MIRRORED)
class StatusDrift(MirroredRule):
    """Finds upper pods whose phase or readiness has differed from their lower pod's for longer than ``--grace``.

    Pods of virtual nodes that are not Ready are skipped. The upper cluster itself marks these pods not ready,
    and the node has a finding of its own.
    """

    name = "status_drift"

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._silent = {
            node["metadata"]["name"]
            for node in snapshot.upper.of("Node")
            if not is_true(node.get("status"), "Ready")
        }

    def of_pod(self, pod: MirroredPod) -> Findings:
        """Yield the finding about a pod."""
        upper, below = pod.upper, pod.below
        if below is None or upper["spec"]["nodeName"] in self._silent:
            return
        upper_state = _state(upper)
        if upper_state == _state(below) and not upper["spec"].get("readinessGates"):
            return  # Only readiness gates make the translated state differ.
        lower_state = _state({**upper, "status": pod_status.upper_status(below, upper)})
        if upper_state == lower_state:
            return
        unchanged = self.snapshot.now - max(_last_change(upper), _last_change(below))
        if unchanged <= limits(self.snapshot).grace:
            return
        cause = f"is {upper_state} in the upper cluster and has been {lower_state} in the lower cluster for {span(unchanged)}"
        step = (
            "does the virtual node's process run, and may it patch pods/status in the upper "
            "cluster? See its log"
        )
        yield pod.lower.finding(Code.STATUS_DRIFT, "Pod", key(upper), cause, step, transient=True)


@rule(Code.STUCK, where=[objects("Pod")], level=Level.CLUSTER)
def stuck_pods(snapshot: Snapshot, cluster: View) -> Findings:
    """Yield pods whose deletion is overdue by more than ``--grace``."""
    ours = virtual_nodes(snapshot)
    above = (pod for pod in snapshot.upper.heads("Pod") if pod["spec"].get("nodeName") in ours)
    for pod in above if cluster is snapshot.upper else owned_heads(snapshot, cluster, "Pod"):
        # deletionTimestamp is the end of the pod's own grace period.
        overdue = snapshot.age(pod["metadata"].get("deletionTimestamp"))
        if overdue > limits(snapshot).grace:
            finalizers = pod["metadata"].get("finalizers")
            step = f"finalizers hold it: {', '.join(finalizers)}" if finalizers else "is its node alive?"
            yield cluster.finding(Code.STUCK, "Pod", key(pod), f"should have ended {span(overdue)} ago", step)


@rule(Code.STUCK, needs=[objects("PersistentVolumeClaim"), objects("Node")], level=Level.PATH)
def stuck_claims(snapshot: Snapshot) -> Findings:
    """Yield claims with our finalizer that nothing removes, because all virtual nodes of the claim are gone."""
    present = {node["metadata"]["name"] for node in snapshot.upper.of("Node")}
    volumes = {volume["metadata"]["name"]: volume for volume in snapshot.upper.of("PersistentVolume")}
    for claim in snapshot.upper.of("PersistentVolumeClaim"):
        if pvc.FINALIZER not in (claim["metadata"].get("finalizers") or ()):
            continue
        served = _claim_nodes(claim, volumes)
        if not served or served & (present | virtual_nodes(snapshot).keys()):
            continue
        gone = ", ".join(sorted(served))
        cause = f"belongs to virtual node {gone}, which is gone; finalizer {pvc.FINALIZER} holds it"
        step = (
            "configure the virtual node again, or remove the finalizer by hand: its data stays in "
            "the lower cluster"
        )
        severity = Severity.ERROR if is_deleting(claim) else None
        yield snapshot.upper.finding(Code.STUCK, "PersistentVolumeClaim", key(claim), cause, step, severity)


def _claim_nodes(claim: Mapping[str, Any], volumes: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the virtual nodes that a claim belongs to; empty: unknown."""
    if selected := pvc.selected_node(claim):
        return {selected}
    volume = volumes.get(claim["spec"].get("volumeName") or "")
    if volume is None or (volume["spec"].get("csi") or {}).get("driver") != pv.DRIVER:
        return set()
    required = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    return {
        name
        for term in required.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
        if expression.get("key") == names.LABEL_HOSTNAME
        for name in expression.get("values") or ()
    }


def _reported_cause(upper: Mapping[str, Any]) -> str:
    """Return why the upper pod waits according to its status; empty: the status has no cause."""
    refused = condition(upper.get("status"), names.CONDITION_ADMITTED)
    if refused.get("status") == "False":
        return str(refused.get("message") or refused.get("reason") or "")
    word, why = status_word(upper)
    return "" if word in _UNEXPLAINED_STATES else why or word


def _state(pod: Mapping[str, Any]) -> str:
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    if phase != "Running":
        return str(phase)
    return "Running and Ready" if is_true(pod.get("status"), "Ready") else "Running, not Ready"


def _last_change(pod: Mapping[str, Any]) -> datetime:
    """Return the last known change of a pod's status, also of its containers."""
    states = [each for one in statuses(pod) for each in (one.get("state") or {}).values() if each]
    moments = [each[moment] for each in states for moment in ("startedAt", "finishedAt") if each.get(moment)]
    return max([last_change(pod), *map(timestamps.parse, moments)])


@rule(Code.POLICY_VIOLATED, level=Level.MIRRORED)
class RefusedNext(MirroredRule):
    """Finds lower clusters with pods that could not be created again, with the violated rules."""

    name = "refused_next"

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._refused: dict[View, dict[str, list[str]]] = {}
        """Keys of pods, by lower cluster and rule."""

    def of_pod(self, pod: MirroredPod) -> Findings:
        """Remember a pod that could not be created again."""
        if pod.below is not None and not is_deleting(pod.upper) and pod.likeness not in self.faultless:
            rules = pod.options.policy.of(pod.upper["metadata"]["namespace"])
            refusing = {violation.rule for violation in violations(pod.requested, rules)}
            for rule in refusing:
                self._refused.setdefault(pod.lower, {}).setdefault(rule, []).append(key(pod.upper))
            if pod.likeness and not refusing:
                self.faultless.add(pod.likeness)
        yield from ()

    def of_all(self) -> Findings:
        """Yield a finding for each cluster with such pods."""
        for lower, by_rule in self._refused.items():
            pods = {pod for refused in by_rule.values() for pod in refused}
            cause = (
                f"its policy would refuse running pods ({len(pods)}); they keep running, new pods do not start: "
                + "; ".join(f"{rule} ({some(sorted(refused))})" for rule, refused in sorted(by_rule.items()))
            )
            step = f"allow it in clusters[].policy of {lower.name}, for all or by policy.namespaces, or change the pods"
            yield lower.finding(Code.POLICY_VIOLATED, "Cluster", lower.name, cause, step)
