"""Requests with the token of the descheduler: those that RBAC or the admission policy refuses, and those it needs."""

from __future__ import annotations

from clusterset.model import names
from hack.sandbox.commands.helm import NAMESPACE
from tests.clusters.attacks.replacement_pods import (
    POWERFUL,
    TO_VIRTUAL,
    plain_pod,
    replacement,
    required_affinity,
    with_container,
)
from tests.clusters.attacks.stolen_tokens import DESCHEDULER, Attack
from tests.clusters.attacks.victims import (
    FORCED,
    GONE,
    NOTE,
    OPERATORS,
    OURS,
    OWN,
    PODS,
    REAL,
    SHOP,
    TAINT,
    eviction,
)

_COST = {
    "metadata": {
        "annotations": {names.ANNOTATION_DELETION_COST: "7", names.ANNOTATION_DELETION_COST_WRITTEN: "7"}
    }
}
_RELEASED, _RESTORED = (
    {"metadata": {"labels": {"pod-template-hash": label}, "annotations": {"virtual-node.io/leaving": mark}}}
    for label, mark in (("x", "h1"), ("h1", None))
)
_SILENCE = {"metadata": {"annotations": {names.ANNOTATION_SILENCE: "s", names.ANNOTATION_DRAIN_STATUS: "d"}}}
_STALE = {"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
REFUSED: list[tuple[Attack, str]] = [
    ((DESCHEDULER, "DELETE", f"{PODS}/a-real", None), "this pod is on node real"),
    ((DESCHEDULER, "DELETE", f"{PODS}/waiting", None), "this pod is on no node"),
    (
        (DESCHEDULER, "DELETE", "/api/v1/namespaces/kube-system/pods/system", None),
        "may not move pods of kube-system",
    ),
    (
        (
            DESCHEDULER,
            "POST",
            "/api/v1/namespaces/kube-system/pods/system/eviction",
            eviction("system", "kube-system"),
        ),
        "may not move pods of kube-system",
    ),
    (
        (DESCHEDULER, "POST", PODS, plain_pod("unlabelled", "")),
        "only pods labelled create-by-descheduler, with the annotation",
    ),
    (
        (DESCHEDULER, "POST", PODS, replacement("bound", REAL)),
        "with the annotation virtual-node.io/replaces, on no node",
    ),
    (
        (DESCHEDULER, "POST", PODS, replacement("first", replaces="")),
        "with the annotation virtual-node.io/replaces, on no node",
    ),
    *(
        (
            (DESCHEDULER, "POST", f"/api/v1/namespaces/{namespace}/pods", replacement("x")),
            "may not move pods of",
        )
        for namespace in (NAMESPACE, "kube-public", OPERATORS)
    ),
    *(((DESCHEDULER, "POST", PODS, body), "add nodeSelector type: virtual-kubelet") for body in POWERFUL),
    (
        (DESCHEDULER, "POST", f"{OWN}/pods/any/eviction", eviction("any", NAMESPACE)),
        "may not move pods of",
    ),
    ((DESCHEDULER, "PATCH", f"{PODS}/a-real", _RELEASED), "may change only the label pod-template-hash"),
    ((DESCHEDULER, "PATCH", f"{PODS}/waiting", _RELEASED), "may change only the label pod-template-hash"),
    ((DESCHEDULER, "PATCH", f"{PODS}/web-ours", NOTE), "may change only the label pod-template-hash"),
    (
        (DESCHEDULER, "PATCH", f"{PODS}/web-ours", {"metadata": {"labels": {"app": "x"}}}),
        "may change only the label pod-template-hash",
    ),
    (
        (DESCHEDULER, "PATCH", f"{PODS}/web-ours", {"spec": {"activeDeadlineSeconds": 1}}),
        "may change only the label pod-template-hash",
    ),
    ((DESCHEDULER, "PATCH", "/api/v1/nodes/real", NOTE), "cannot patch resource"),
    *(
        (
            (DESCHEDULER, "PATCH", f"/api/v1/nodes/{OURS}", change),
            "may change only the taint virtual-node.io/stale-cluster",
        )
        for change in (
            NOTE,
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"labels": {"type": None}}},
            {"metadata": {"ownerReferences": [GONE]}},
            {"metadata": {"finalizers": ["example.com/forever"]}},
            {"spec": {"taints": None}},
            {"spec": {"taints": [TAINT, {**_STALE, "effect": "NoExecute"}]}},
            {"spec": {"taints": [TAINT, {**_STALE, "key": "example.com/theirs"}]}},
            {"spec": {"unschedulable": True}},
            {"spec": {"podCIDR": "10.0.0.0/8", "podCIDRs": ["10.0.0.0/8"]}},
        )
    ),
    (
        (DESCHEDULER, "POST", "/api/v1/namespaces/kube-system/configmaps", {"metadata": {"name": "coredns"}}),
        "cannot create resource",
    ),
    ((DESCHEDULER, "GET", f"{OWN}/secrets/virtual-node-tokyo", None), "cannot get resource"),
]
ALLOWED: list[Attack] = [
    (DESCHEDULER, "DELETE", f"{PODS}/b-ours", FORCED),
    (DESCHEDULER, "POST", PODS, replacement("replacement")),
    *(
        (DESCHEDULER, "POST", f"{PODS}?dryRun=All", replacement("root", hostPID=True, **pinned))
        for pinned in (
            {"nodeSelector": {"type": "virtual-kubelet"}},
            {"affinity": required_affinity(TO_VIRTUAL)},
        )
    ),
    (
        *(DESCHEDULER, "POST", f"{PODS}?dryRun=All"),
        with_container(securityContext={"capabilities": {"add": ["NET_BIND_SERVICE"]}, "privileged": False}),
    ),
    (DESCHEDULER, "DELETE", f"{PODS}/replacement", FORCED),
    (DESCHEDULER, "POST", f"{PODS}/c-ours/eviction", eviction("c-ours", SHOP)),
    (DESCHEDULER, "PATCH", f"{PODS}/web-ours", _RELEASED),
    (DESCHEDULER, "PATCH", f"{PODS}/web-ours", _COST),
    (DESCHEDULER, "PATCH", f"{PODS}/web-ours", _RESTORED),
    (DESCHEDULER, "PATCH", f"/api/v1/nodes/{OURS}", {**_SILENCE, "spec": {"taints": [TAINT, _STALE]}}),
    (DESCHEDULER, "PATCH", f"/api/v1/nodes/{OURS}", {"spec": {"taints": [TAINT]}}),
]
