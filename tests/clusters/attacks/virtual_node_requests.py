"""Requests with the token of the virtual node: those that RBAC or the admission policy refuses, and those it needs."""

from __future__ import annotations

from typing import Any

from clusterset.model import names
from clusterset.model.policy.copied_keys import ZONES
from hack.sandbox.commands.helm import NAMESPACE
from tests.clusters.attacks.stolen_tokens import DESCHEDULER, VIRTUAL_NODE, Attack
from tests.clusters.attacks.victims import (
    BOUND,
    CLAIM,
    CSR,
    FORCED,
    GATEWAY,
    GONE,
    NOTE,
    OURS,
    OWN,
    PODS,
    PROTECTION,
    REAL,
    SELECTED,
    SHOP,
    for_node,
    for_pod,
    lease,
    node,
    signing_request,
    token,
    volume,
)
from virtual_node.translate.storage.pv import DRIVER

_ADDRESSES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        f"/apis/networking.k8s.io/v1/namespaces/{SHOP}/ingresses/front",
        {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.5"}]}}},
    ),
    (GATEWAY, {"status": {"addresses": [{"value": "203.0.113.5"}]}}),
)
_RESIZING = {"type": "Resizing", "status": "True"}
_FORGED = {"status": {"message": "forged"}}
_REPORTED = {
    "metadata": {
        "annotations": {
            names.ANNOTATION_LOWER_UID: "u",
            names.ANNOTATION_ALLOCATED_DEVICES: "{}",
            names.ANNOTATION_REQUIRED_NODE: "",
        },
        "labels": dict.fromkeys(ZONES, "a"),
    },
    **_FORGED,
}
_PROVISIONER, _MIGRATED = "pv.kubernetes.io/provisioned-by", "pv.kubernetes.io/migrated-to"
_HEARTBEATS, _ELECTIONS = (
    f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    for namespace in ("kube-node-lease", NAMESPACE)
)
"""Paths of the Leases of nodes, and of the programs' elections."""
_APPROVED = {
    **signing_request(REAL),
    "status": {
        "conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": "by a test"}]
    },
}
REFUSED: list[tuple[Attack, str]] = [
    (
        (VIRTUAL_NODE, "DELETE", f"{PODS}/a-real", None),
        "only on nodes that it may patch; this pod is on node real",
    ),
    ((VIRTUAL_NODE, "DELETE", f"{PODS}/a-real", FORCED), "this pod is on node real"),
    ((VIRTUAL_NODE, "DELETE", f"{PODS}/waiting", None), "this pod is on no node"),
    ((VIRTUAL_NODE, "PATCH", f"{PODS}/a-real/status", _FORGED), "this pod is on node real"),
    ((VIRTUAL_NODE, "PATCH", f"{PODS}/waiting/status", _FORGED), "this pod is on no node"),
    ((VIRTUAL_NODE, "PATCH", f"{PODS}/a-ours", NOTE), "cannot patch resource"),
    *(
        ((VIRTUAL_NODE, "PATCH", f"{PODS}/a-ours/status", change), "together with the status of a pod only")
        for change in (
            # With the label, the pod gets the traffic of a Service.
            {"metadata": {"labels": {"app": "web"}}},
            {"metadata": {"labels": {**dict.fromkeys(ZONES, "a"), names.LABEL_HOSTNAME: "a"}}},
            {"metadata": {"finalizers": ["example.com/forever"]}},
            {"metadata": {"annotations": {"a": "b"}}, **_FORGED},
        )
    ),
    (
        (
            *(VIRTUAL_NODE, "PATCH", f"{PODS}/claiming/status"),
            {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "theirs"}]}},
        ),
        "together with the status of a pod only",
    ),
    *(
        ((VIRTUAL_NODE, "POST", path, lease(name)), f"this is {name}")
        for path, name in ((_HEARTBEATS, REAL), (_ELECTIONS, "virtual-node-webhook"))
    ),
    ((VIRTUAL_NODE, "DELETE", PODS, None), "cannot deletecollection resource"),
    ((VIRTUAL_NODE, "PATCH", "/api/v1/nodes/real", NOTE), "cannot patch resource"),
    ((VIRTUAL_NODE, "PATCH", "/api/v1/nodes/real/status", NOTE), "cannot patch resource"),
    ((VIRTUAL_NODE, "DELETE", "/api/v1/nodes/real", None), "cannot delete resource"),
    ((VIRTUAL_NODE, "POST", "/api/v1/nodes", node("paris")), "only nodes that it may patch; this is paris"),
    (
        (VIRTUAL_NODE, "DELETE", "/api/v1/persistentvolumes/foreign", None),
        "only volumes of driver lower-cluster",
    ),
    (
        (VIRTUAL_NODE, "PATCH", "/api/v1/persistentvolumes/foreign", NOTE),
        "only volumes of driver lower-cluster",
    ),
    (
        (VIRTUAL_NODE, "POST", "/api/v1/persistentvolumes", volume("theirs", "ebs.csi.aws.com")),
        "only volumes of driver lower-cluster",
    ),
    # The provisioner of the annotation would delete the disk `volumeHandle` when the claim of the volume is gone.
    *(
        ((VIRTUAL_NODE, method, path, body), "may not name another provisioner on a volume")
        for key in (_PROVISIONER, _MIGRATED)
        for method, path, body in (
            ("POST", "/api/v1/persistentvolumes", volume("disk", annotations={key: "ebs.csi.aws.com"})),
            (
                "PATCH",
                "/api/v1/persistentvolumes/mirror",
                {"metadata": {"annotations": {key: "ebs.csi.aws.com"}}},
            ),
        )
    ),
    (
        (
            VIRTUAL_NODE,
            "PATCH",
            CLAIM,
            {"spec": {"volumeName": "foreign"}},
        ),
        "may not write the spec of a claim",
    ),
    *(
        (
            (VIRTUAL_NODE, "PATCH", CLAIM, {"metadata": change}),
            "may change only its own finalizer of a claim",
        )
        for change in (
            {"ownerReferences": [GONE]},
            {"labels": {"a": "b"}},
            {"annotations": {"a": "b"}},
            {"annotations": {SELECTED: OURS}},
            {"annotations": {"kept": None}},
            {"finalizers": None},
            {"finalizers": [PROTECTION, "example.com/forever"]},
        )
    ),
    *(
        (
            (VIRTUAL_NODE, "PATCH", f"{path}/status", {"metadata": change}),
            "may not write the metadata of a claim, Ingress",
        )
        for path in (CLAIM, BOUND, *(path for path, _ in _ADDRESSES[:1]))
        for change in (
            {"ownerReferences": [GONE]},
            {"labels": {"a": "b"}},
            {"annotations": {"a": "b"}},
            {"finalizers": ["example.com/forever"]},
        )
    ),
    *(
        (
            (VIRTUAL_NODE, "PATCH", f"{path}/status", {"status": change}),
            "only the capacity and the conditions of a bound claim",
        )
        for path, change in (
            (BOUND, {"phase": "Lost"}),
            (BOUND, {"accessModes": ["ReadWriteMany"]}),
            (BOUND, {"currentVolumeAttributesClassName": "slow"}),
            (CLAIM, {"phase": "Bound"}),
            (CLAIM, {"capacity": {"storage": "2Gi"}}),
        )
    ),
    (
        (VIRTUAL_NODE, "PATCH", f"{GATEWAY}/status", {"status": {"conditions": []}}),
        "only the addresses of a Gateway",
    ),
    (
        (VIRTUAL_NODE, "PATCH", f"{GATEWAY}/status", {"status": {"listeners": [{"name": "x"}]}}),
        "only the addresses of a Gateway",
    ),
    (
        (VIRTUAL_NODE, "POST", f"/api/v1/namespaces/{SHOP}/serviceaccounts/default/token", token()),
        "tokens only for pods",
    ),
    (
        (
            VIRTUAL_NODE,
            "POST",
            f"/api/v1/namespaces/{SHOP}/serviceaccounts/default/token",
            token(boundObjectRef=for_node(REAL)),
        ),
        "tokens only for pods and its own nodes",
    ),
    (
        (
            VIRTUAL_NODE,
            "POST",
            "/api/v1/namespaces/kube-system/serviceaccounts/default/token",
            token(boundObjectRef=for_pod("system")),
        ),
        "not for protected namespaces such as kube-system",
    ),
    (
        (
            VIRTUAL_NODE,
            "POST",
            f"{OWN}/serviceaccounts/{DESCHEDULER}/token",
            token(boundObjectRef=for_pod("any")),
        ),
        "or our other programs",
    ),
    ((VIRTUAL_NODE, "DELETE", f"{CSR}/of-real", None), "serving certificates of its own nodes"),
    ((VIRTUAL_NODE, "PUT", f"{CSR}/of-real/approval", _APPROVED), "serving certificates of its own nodes"),
]
ALLOWED: list[Attack] = [
    (VIRTUAL_NODE, "PATCH", f"{PODS}/a-ours/status", _FORGED),
    (VIRTUAL_NODE, "PATCH", f"{PODS}/a-ours/status", _REPORTED),
    *(
        (VIRTUAL_NODE, "POST", path, lease(name))
        for path, name in ((_HEARTBEATS, OURS), (_ELECTIONS, VIRTUAL_NODE))
    ),
    (VIRTUAL_NODE, "DELETE", f"{PODS}/a-ours", FORCED),
    (VIRTUAL_NODE, "PATCH", f"/api/v1/nodes/{OURS}", NOTE),
    (VIRTUAL_NODE, "PATCH", f"/api/v1/nodes/{OURS}/status", NOTE),
    (VIRTUAL_NODE, "GET", f"/api/v1/nodes?fieldSelector=metadata.name={OURS}", None),
    (VIRTUAL_NODE, "POST", "/api/v1/persistentvolumes", volume("mine", annotations={_PROVISIONER: DRIVER})),
    (VIRTUAL_NODE, "PATCH", "/api/v1/persistentvolumes/mirror", NOTE),
    (VIRTUAL_NODE, "DELETE", "/api/v1/persistentvolumes/mirror", None),
    (
        VIRTUAL_NODE,
        "PATCH",
        CLAIM,
        {"metadata": {"finalizers": [PROTECTION, "virtual-node.io/lower-claim"]}},
    ),
    (VIRTUAL_NODE, "PATCH", CLAIM, {"metadata": {"annotations": {SELECTED: None}}}),
    (VIRTUAL_NODE, "PATCH", CLAIM, {"metadata": {"finalizers": [PROTECTION]}}),
    (VIRTUAL_NODE, "PATCH", f"{BOUND}/status", {"status": {"capacity": {"storage": "2Gi"}}}),
    (VIRTUAL_NODE, "PATCH", f"{BOUND}/status", {"status": {"conditions": [_RESIZING]}}),
    *((VIRTUAL_NODE, "PATCH", f"{path}/status", address) for path, address in _ADDRESSES),
    (
        VIRTUAL_NODE,
        "POST",
        f"/api/v1/namespaces/{SHOP}/serviceaccounts/default/token",
        token(boundObjectRef=for_pod("b-ours")),
    ),
    (
        VIRTUAL_NODE,
        "POST",
        f"/api/v1/namespaces/{SHOP}/serviceaccounts/default/token",
        token(boundObjectRef=for_node(OURS)),
    ),
    (VIRTUAL_NODE, "DELETE", f"{CSR}/of-ours", None),
]
