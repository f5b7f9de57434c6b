"""Decides whether a lower cluster's configuration allows a pod, for the virtual node and the fit agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model import cluster_selector, names, namespace_map
from clusterset.model.namespace_map import NEVER_MIRRORED
from clusterset.model.pod import resource_claims
from clusterset.model.pod.affinity_terms import Reach
from clusterset.model.pod.conditions import claim_names
from clusterset.model.policy.decision import summary, violations
from clusterset.model.policy.rules import Effective
from controller_runtime.apimachinery import matching

PV_CONTROLLERS = "PVControllers"
SERVICE_CONTROLLERS = "ServiceControllers"
KNOWN_CONTROLLERS = (PV_CONTROLLERS, SERVICE_CONTROLLERS)
"""The values of ``enableControllers``."""


class Eligibility:
    """The part of a lower cluster's configuration that decides which pods may run there."""

    def __init__(
        self,
        cluster: str,
        *,
        allowed: Sequence[str],
        pod_selector: Mapping[str, Any],
        takes_resource_claims: bool,
        controllers: Sequence[str],
    ) -> None:
        """Compile the pod selector.

        Args:
            cluster: name of the lower cluster.
            allowed: shell patterns of upper namespaces; empty: all.
            pod_selector: LabelSelector of the pods that may run there.
            takes_resource_claims: whether pods with ResourceClaims may run there.
            controllers: the virtual node's ``enableControllers``.
        """
        self._takes_resource_claims = takes_resource_claims
        self._takes_volume_claims = PV_CONTROLLERS in controllers
        self._cluster = cluster
        self._allowed = allowed
        self._selects = matching.compile_selector(pod_selector)

    def why_not(self, pod: Mapping[str, Any]) -> str:
        """Return why an upper pod is not created in this cluster, apart from the policy; empty: there is no such reason."""
        metadata = pod["metadata"]
        namespace = metadata.get("namespace", "")
        if namespace == NEVER_MIRRORED:
            return f"Pods in {namespace} are not mirrored to lower clusters; keep this pod off virtual nodes"
        if not namespace_map.allowed(namespace, self._allowed):
            return (
                f"Lower cluster {self._cluster} takes no pods of namespace {namespace} "
                "(namespaces.allowed in the virtual node's configuration)"
            )
        if not self._selects(metadata.get("labels") or {}):
            return (
                f"Lower cluster {self._cluster} does not take pods with these labels "
                "(podSelector in the virtual node's configuration)"
            )
        # Also checked here, because without the webhook a pod with an invalid selector would run on any lower node.
        if why := cluster_selector.refusal(metadata.get("annotations"), names.ANNOTATION_CLUSTER_SELECTOR):
            return why
        if why := self._claims_refusal(pod):
            return why
        if what := not_mirrored(pod):
            return (
                f"Pods with {what} are not mirrored to lower clusters: the object stays in the upper cluster; "
                "keep this pod off virtual nodes"
            )
        return ""

    def _claims_refusal(self, pod: Mapping[str, Any]) -> str:
        """Return why a pod is refused because of its ResourceClaims or PersistentVolumeClaims; empty: it is not."""
        if why := resource_claims.invalid(pod):
            return f"{why}; correct or remove the annotation"
        if not self._takes_resource_claims and resource_claims.references(pod):
            return (
                f"Pods with resourceClaims are not mirrored to lower cluster {self._cluster}: set "
                "resourceClaims.enabled of this cluster in the virtual node's configuration, or keep this pod off "
                "virtual nodes"
            )
        # Generic ephemeral volumes have claims, too. A claim's name would mean an unmanaged lower claim.
        if not self._takes_volume_claims and claim_names(pod):
            return (
                f"Pods with PersistentVolumeClaims are not mirrored to lower cluster {self._cluster}: add "
                f"{PV_CONTROLLERS} to enableControllers in the virtual node's configuration, or keep this pod off "
                "virtual nodes"
            )
        return ""

    def affinity_refusal(self, pod: Mapping[str, Any], reach: Reach) -> str:
        """Return why the affinity terms of an upper pod are too many for a lower pod; empty: they are not."""
        found = reach.refusal(pod["spec"])
        return f"Lower cluster {self._cluster} does not take the pod: {found}" if found else ""

    def policy_refusal(self, lower_pod: Mapping[str, Any], rules: Effective) -> str:
        """Return why the policy refuses a lower pod; empty if the policy allows it."""
        found = violations(lower_pod, rules)
        return f"Lower cluster {self._cluster} does not take the pod: {summary(found)}" if found else ""


def not_mirrored(pod: Mapping[str, Any]) -> str:
    """Return the first reference to an object that the lower cluster does not get; empty if there is none.

    A name in a pod's spec refers to an object of the upper cluster. If it were copied unchanged, it would
    refer to a different object in the lower cluster. Therefore each reference is copied with its object
    (``dependencies``, ``volumes``), dropped with its field (``lower_pod``) or refused here.
    ``tests/unit/virtual_node/translate/pods/test_references.py`` lists the treatment of each field.
    """
    spec = pod["spec"]
    for volume in spec.get("volumes") or ():
        name = volume["name"]
        if "glusterfs" in volume:
            return f"the Endpoints of volume {name} (glusterfs)"
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "clusterTrustBundle" in source:
                return f"the ClusterTrustBundle of volume {name}"
    return ""
