"""What happens to each field of a pod's spec on its way to a lower cluster, and which fields must arrive there.

``lower_spec``, ``not_mirrored`` and ``virtual_node/translate`` follow these tables.
``tests/unit/virtual_node/translate/pods/test_spec_fields.py`` checks each field of the Kubernetes releases in
``tests/pod_fields.txt`` against them, so a field of a new release needs a decision here.

Paths have no marks for lists. ``containers`` also stands for ``initContainers`` and ``ephemeralContainers``. A row is about the
fields below it, too, unless they have rows of their own.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any


class Verdict(enum.Enum):
    """What happens to a field."""

    TRAVELS = enum.auto()
    """The lower pod has the upper pod's value, if the policy of the lower cluster allows it."""
    TRANSLATED = enum.auto()
    """The lower pod has a value that means the same there."""
    UPPER_ONLY = enum.auto()
    """The lower pod does not have the field."""
    REFUSED = enum.auto()
    """The lower cluster does not take the pod."""


UPPER_ONLY: Mapping[str, str] = {
    "nodeName": "the lower scheduler chooses the node",
    "priority": "the lower cluster computes it from the PriorityClass",
    "preemptionPolicy": "the lower cluster computes it from the PriorityClass",
    "schedulingGates": "they were removed in the upper cluster before the pod was bound",
    "schedulingGroup": "the upper scheduler has decided about the group, which may use several clusters",
    "workloadRef": "the upper scheduler has decided about the group, which may use several clusters",
    "evictionResponders": "they answer Evictions of the upper pod; a lower Eviction would wait for them in vain",
    "overhead": "the lower cluster computes it from the RuntimeClass",
    "readinessGates": "their conditions are written in the upper cluster, whose status computes Ready from them",
    "ephemeralContainers": "API servers refuse them at creation; a later update adds them",
    "serviceAccount": "the ServiceAccount is an object of the upper cluster, whose tokens the lower pod gets",
}
"""Fields that lower pods do not have, and why."""
SCHEDULING: Mapping[str, str] = {
    "nodeSelector": "selected the virtual node; the lower one is that of the clusterSelector",
    "affinity": "node affinity selected the virtual node; of the other terms, those over hostname are kept",
    "tolerations": "without that of the virtual node's taint, or those of the clusterSelector",
    "topologySpreadConstraints": "only those over hostname; other keys name upper topology",
    "schedulerName": "a scheduler of the upper cluster; an annotation names the lower one",
    "priorityClassName": "only classes that the policy allows",
    "serviceAccountName": "only accounts of the lower namespace that the policy allows; tokens are of the upper account",
    "resourceClaims": "of the spec, or of the annotation to which the webhook moves them",
}
"""Fields that ``lower_spec`` computes for the lower cluster, and from what."""
REFUSED: Mapping[str, tuple[str, str]] = {
    "volumes.glusterfs": ("Endpoints", "use a PersistentVolumeClaim"),
}
"""Sources of volumes that name objects which the lower cluster does not get: the kind of the objects, and what to do."""
_TRANSLATED: Mapping[str, str] = {
    "automountServiceAccountToken": "false, because the volumes of the upper pod have the tokens",
    "containers.env.valueFrom.configMapKeyRef.name": "the copy of the upper root CA has another name",
    "containers.env.valueFrom.fieldRef.fieldPath": "values of the upper pod that differ in the lower pod",
    "containers.envFrom.configMapRef.name": "the copy of the upper root CA has another name",
    "dnsConfig": "with dns.servers, names are resolved as in the upper cluster",
    "dnsPolicy": "with dns.servers, names are resolved as in the upper cluster",
    "volumes.configMap.name": "the copy of the upper root CA has another name",
    "volumes.downwardAPI.items.fieldRef.fieldPath": "values of the upper pod that differ in the lower pod",
    "volumes.ephemeral": "the claim that the upper cluster has created",
    "volumes.projected.sources.clusterTrustBundle": "a Secret with the anchors of the upper cluster",
    "volumes.projected.sources.clusterTrustBundle.user": "the user of the Secret's item",
    "volumes.projected.sources.configMap.name": "the copy of the upper root CA has another name",
    "volumes.projected.sources.downwardAPI.items.fieldRef.fieldPath": "values that differ in the lower pod",
    "volumes.projected.sources.podCertificate": "a Secret with a certificate of an upper signer",
    "volumes.projected.sources.podCertificate.user": "the user of the Secret's items",
    "volumes.projected.sources.podCertificate.userAnnotations": "they are in the request to the upper signer",
    "volumes.projected.sources.serviceAccountToken": "a Secret with a token of the upper cluster",
    "volumes.projected.sources.serviceAccountToken.user": "the user of the Secret's item",
}
_TRAVELS: Mapping[str, tuple[str, ...]] = {
    "": (
        "activeDeadlineSeconds",
        "containers",
        "enableServiceLinks",
        "hostAliases",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostUsers",
        "hostname",
        "hostnameOverride",
        "imagePullSecrets",
        "os",
        "resources",
        "restartPolicy",
        "runtimeClassName",
        "securityContext",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "subdomain",
        "terminationGracePeriodSeconds",
        "volumes",
    ),
    # New in Kubernetes 1.37.
    "containers.": (
        "lifecycle.postStart.httpGet.protocol",
        "lifecycle.preStop.httpGet.protocol",
        "livenessProbe.grpc.mode",
        "livenessProbe.httpGet.protocol",
        "readinessProbe.grpc.mode",
        "readinessProbe.httpGet.protocol",
        "startupProbe.grpc.mode",
        "startupProbe.httpGet.protocol",
        "volumeMounts.bindMountOptions",
    ),
    "volumes.": (
        "configMap.defaultUser",
        "configMap.items.user",
        "downwardAPI.defaultUser",
        "downwardAPI.items.user",
        "emptyDir.mode",
        "projected.defaultUser",
        "projected.sources.configMap.items.user",
        "projected.sources.downwardAPI.items.user",
        "projected.sources.secret.items.user",
        "secret.defaultUser",
        "secret.items.user",
    ),
}
VERDICTS: Mapping[str, Verdict] = {
    **dict.fromkeys(UPPER_ONLY, Verdict.UPPER_ONLY),
    **dict.fromkeys((*SCHEDULING, *_TRANSLATED), Verdict.TRANSLATED),
    **dict.fromkeys(REFUSED, Verdict.REFUSED),
    **{begin + field: Verdict.TRAVELS for begin, fields in _TRAVELS.items() for field in fields},
}
"""The verdict about each field. A field without a row and without one above it travels, because a newer release may know it."""

MUST_ARRIVE: Mapping[str, str] = {
    "containers.restartPolicy": "the container would restart by another policy",
    "containers.restartPolicyRules": "the container would restart by other rules",
    "containers.securityContext.appArmorProfile": "the container would run without the profile",
    "containers.volumeMounts.bindMountOptions": "the volume would be mounted without the options",
    "containers.volumeMounts.recursiveReadOnly": "mounts inside the volume would be writable",
    "hostUsers": "the containers would run in the user namespace of the node",
    "securityContext.appArmorProfile": "the containers would run without the profile",
    "securityContext.supplementalGroupsPolicy": "groups of the image would be added",
    "volumes.*": "the volume would be an empty directory",
    "volumes.emptyDir.mode": "all users could write the directory",
    "volumes.projected.sources.*": "the volume would lack files",
}
"""Fields without which a pod must not run, and what would be different. A last step ``*`` stands for all fields there that
have no row of their own."""
_HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop")
SAME_AS_ABSENT: Mapping[str, tuple[object, ...]] = {
    **{f"containers.{handler}.httpGet.protocol": ("HTTP1",) for handler in _HANDLERS},
    **{f"containers.{handler}.grpc.mode": ("Plaintext",) for handler in _HANDLERS if "." not in handler},
    "containers.securityContext.appArmorProfile": ({"type": "Unconfined"},),
    "containers.volumeMounts.recursiveReadOnly": ("Disabled", "IfPossible"),
    "hostUsers": (True,),
    "securityContext.appArmorProfile": ({"type": "Unconfined"},),
    "securityContext.supplementalGroupsPolicy": ("Merge",),
    "volumes.emptyDir.mode": (0o777,),
}
"""Values of new fields that change nothing, so that nothing is lost without them. Newer API servers write some as defaults."""


def verdict(path: str) -> Verdict:
    """Return the verdict about a field: of its own row, or of the nearest one above it."""
    while path:
        if path in VERDICTS:
            return VERDICTS[path]
        path = path.rpartition(".")[0]
    return Verdict.TRAVELS


def consequence(path: str) -> str:
    """Return what would be different if a lower pod lacked a field; empty: the pod may run without it."""
    return MUST_ARRIVE.get(path) or MUST_ARRIVE.get(f"{path.rpartition('.')[0]}.*") or ""


def not_mirrored(pod: Mapping[str, Any]) -> str:
    """Return why a pod is refused because it names an object that the lower cluster does not get; empty: it is not.

    A name in a pod's spec refers to an object of the upper cluster. If it were copied unchanged, it would
    refer to a different object in the lower cluster. Therefore each reference is copied with its object
    (``dependencies``, ``volumes``), dropped with its field (``lower_spec``) or refused here.
    ``tests/unit/virtual_node/translate/pods/test_references.py`` lists the treatment of each field.
    """
    for volume in pod["spec"].get("volumes") or ():
        where = f"spec.volumes[{volume['name']}]"
        fields = [(f"{where}.{field}", f"volumes.{field}") for field in volume]
        fields += [
            (f"{where}.projected.sources[{field}]", f"volumes.projected.sources.{field}")
            for source in (volume.get("projected") or {}).get("sources") or ()
            for field in source
        ]
        for field, path in fields:
            if path in REFUSED:
                kind, advice = REFUSED[path]
                return (
                    f"Pods with {field} are not mirrored to lower clusters: {kind} stay in the upper cluster; {advice}, "
                    "or keep this pod off virtual nodes"
                )
    return ""
