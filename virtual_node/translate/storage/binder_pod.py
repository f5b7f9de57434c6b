"""The placeholder pod that makes a lower scheduler select a node, and thus a volume, before the real pod exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from clusterset.model import names
from clusterset.model.pod.affinity_terms import selected_keys
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import timestamps

LABEL_BINDER_OF = f"{names.DOMAIN}/binder-of"
ANNOTATION_CLAIMS = f"{names.DOMAIN}/binder-claims"
_SCHEDULING = (
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulerName"),
    *("resources", "runtimeClassName", "priorityClassName", "hostNetwork"),
)
_PER_CONTAINER = ("restartPolicy", "ports")
"""Fields of a container that a scheduler reads beside its resources: whether it is a sidecar, host ports."""
_RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Security contexts that each Pod Security standard allows. The lower namespace has the labels of the upper one, and ``restricted``
refuses containers without them. https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""


def binder_pod(
    lower_pod: Mapping[str, Any], *, uid: str, cluster_id: str, claims: Sequence[str], image: str
) -> dict[str, Any]:
    """Return the placeholder of a pod that waits for its claims.

    For the lower scheduler it is like the pod: same selectors, resources (including sidecars and init
    containers, but without devices of ResourceClaims), host ports and claims. It also has the labels by which the terms of
    such pods select each other. Otherwise the volumes of pods that must not share a node could get the same node, and a
    pod that requires its own label would find no node. It runs none of the pod's programs.

    Args:
        lower_pod: the lower pod that waits; it has not been created yet.
        uid: the upper pod's uid.
        cluster_id: the upper cluster's identity.
        claims: names of the lower claims.
        image: an image that does nothing. The placeholder is normally deleted before it starts.
    """
    above, labels = lower_pod["spec"], lower_pod["metadata"].get("labels") or {}
    selecting = [key for key in sorted(selected_keys(above) & labels.keys()) if not names.is_reserved(key)]
    spec: dict[str, Any] = {field: above[field] for field in _SCHEDULING if field in above}
    for kind in ("containers", "initContainers"):
        if kind in above:
            spec[kind] = [_container(container, image) for container in above[kind]]
    spec["securityContext"] = dict(_RESTRICTED_POD)
    spec["volumes"] = [
        {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(claims)
    ]
    spec["terminationGracePeriodSeconds"] = 0
    spec["automountServiceAccountToken"] = False
    spec["enableServiceLinks"] = False
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": binder_name(uid),
            "namespace": lower_pod["metadata"]["namespace"],
            "labels": {
                **{key: labels[key] for key in selecting},
                names.LABEL_UPPER_CLUSTER: cluster_id,
                LABEL_BINDER_OF: uid,
            },
            "annotations": {
                ANNOTATION_CLAIMS: ",".join(claims),
                names.ANNOTATION_UPPER_NAMESPACE: lower_pod["metadata"]["annotations"][
                    names.ANNOTATION_UPPER_NAMESPACE
                ],
            },
        },
        "spec": spec,
    }


def _container(container: Mapping[str, Any], image: str) -> dict[str, Any]:
    kept = {field: container[field] for field in _PER_CONTAINER if field in container}
    # API servers refuse claims of containers that are not claims of the pod.
    resources = {
        field: value for field, value in (container.get("resources") or {}).items() if field != "claims"
    }
    return {
        "name": container["name"],
        "image": image,
        **({"resources": resources} if resources else {}),
        **kept,
        "securityContext": dict(_RESTRICTED_CONTAINER),
    }


def binder_name(uid: str) -> str:
    """Return the name of a pod's placeholder."""
    return f"volume-binder-{uid[:18]}"


def claims_of(annotations: Mapping[str, str]) -> list[str]:
    """Return the names of a placeholder's claims, from its annotations."""
    return [name for name in annotations.get(ANNOTATION_CLAIMS, "").split(",") if name]


def upper_claims(annotations: Mapping[str, str]) -> list[str]:
    """Return the upper claims (namespace/name) of a placeholder, from its annotations."""
    namespace = annotations.get(names.ANNOTATION_UPPER_NAMESPACE, "")
    return [f"{namespace}/{name}" for name in claims_of(annotations)]


def unschedulable(pod: Mapping[str, Any], *, now: datetime, patience: float) -> str:
    """Return the lower scheduler's message for a pod unschedulable for ``patience`` seconds; empty: it is not."""
    scheduled = condition(pod.get("status"), "PodScheduled")
    since = scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    if (
        scheduled.get("status") != "False"
        or not since
        or (now - timestamps.parse(since)).total_seconds() < patience
    ):
        return ""
    return str(scheduled.get("message") or scheduled.get("reason") or "unschedulable")
