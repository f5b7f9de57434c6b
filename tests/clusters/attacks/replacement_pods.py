"""Pods that a stolen token of the descheduler tries to create."""

from __future__ import annotations

from typing import Any

from clusterset.model import names
from tests.clusters.virtual_nodes import pod


def plain_pod(name: str, node: str) -> dict[str, Any]:
    """Return a pod without node selector, on a node or on none."""
    made = pod(name, "sleep 3600")
    del made["spec"]["nodeSelector"]
    return made if not node else {**made, "spec": {**made["spec"], "nodeName": node}}


def replacement(name: str, node: str = "", *, replaces: str = "u-1", **spec: Any) -> dict[str, Any]:
    """Return a pod as the descheduler creates it in place of another one."""
    made = plain_pod(name, node)
    metadata = {
        "name": name,
        "labels": {names.LABEL_CREATED_BY_DESCHEDULER: "true"},
        "annotations": {names.ANNOTATION_REPLACES: replaces} if replaces else {},
    }
    return {**made, "metadata": metadata, "spec": {**made["spec"], **spec}}


def with_container(**fields: Any) -> dict[str, Any]:
    """Return a replacement with fields in its container."""
    return replacement("powerful", containers=[{"name": "c", "image": "busybox", **fields}])


def required_affinity(*terms: Any) -> dict[str, Any]:
    """Return an affinity that requires nodes of one of the terms."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": required}


TO_VIRTUAL = {"matchExpressions": [{"key": "type", "operator": "In", "values": ["virtual-kubelet"]}]}
_ELSEWHERE = {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}
_OTHER_WAYS = {"matchExpressions": [{"key": "type", "operator": "In", "values": ["virtual-kubelet", "real"]}]}
_CONTEXTS: tuple[dict[str, Any], ...] = (
    {"privileged": True},
    {"capabilities": {"add": ["SYS_ADMIN"]}},
    {"seccompProfile": {"type": "Unconfined"}},
    {"appArmorProfile": {"type": "Unconfined"}},
    {"seLinuxOptions": {"type": "spc_t"}},
)
_FIELDS: tuple[dict[str, Any], ...] = tuple({field: True} for field in ("hostNetwork", "hostPID", "hostIPC"))
POWERFUL: list[dict[str, Any]] = [
    *(replacement("powerful", **fields) for fields in _FIELDS),
    replacement("powerful", volumes=[{"name": "root", "hostPath": {"path": "/"}}]),
    replacement("powerful", volumes=[{"name": "driver", "flexVolume": {"driver": "example.com/run"}}]),
    replacement("powerful", volumes=[{"name": "hook", "gitRepo": {"repository": "https://example.com"}}]),
    with_container(livenessProbe={"httpGet": {"host": "127.0.0.1", "port": 10250}}),
    with_container(lifecycle={"preStop": {"httpGet": {"host": "169.254.169.254", "port": 80}}}),
    replacement("powerful", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
    replacement("powerful", securityContext={"seccompProfile": {"type": "Unconfined"}}),
    replacement(
        "powerful",
        initContainers=[{"name": "i", "image": "busybox", "securityContext": {"privileged": True}}],
    ),
    with_container(ports=[{"containerPort": 80, "hostPort": 80}]),
    *(with_container(securityContext=context) for context in _CONTEXTS),
    replacement(
        "powerful",
        hostUsers=False,
        containers=[{"name": "c", "image": "busybox", "securityContext": {"procMount": "Unmasked"}}],
    ),
    *(
        replacement("powerful", hostPID=True, affinity=required_affinity(*terms))
        for terms in ([_ELSEWHERE], [TO_VIRTUAL, _ELSEWHERE], [_OTHER_WAYS])
    ),
    replacement("powerful", hostPID=True, nodeSelector={"type": "real"}),
]
"""Pods with access to their node that may run on a real node."""
