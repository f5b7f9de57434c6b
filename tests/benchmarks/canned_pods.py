"""Pods of benchmarks: of a ReplicaSet, and mirrored ones as JSON, whose templates differ only in numbers of pod and workload."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from virtual_node.config.types import Config
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods.lower_pod import lower_pod
from virtual_node.translate.pods.status import upper_status

CLUSTER_ID = "canned"
NAMESPACE = "load"
_NUMBER, _WORKLOAD = b"@@@@@@@", b"#######"
_REPLICAS = 10
"""Pods of each workload, which have equal specs."""
_CREATED = "2026-01-01T00:00:00Z"


class Template:
    """The pods of one virtual node in one of the clusters."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._parts = msgspec.json.encode(body).split(_NUMBER)
        self._head, self._tail = b'{"type":"MODIFIED","object":', b"}\n"

    def body(self, number: int, version: int = 1) -> bytes:
        """Return a pod."""
        joined = (b"%07d" % number).join(self._parts)
        joined = joined.replace(_WORKLOAD, b"%07d" % (number // _REPLICAS))
        return joined.replace(b'"resourceVersion":"0"', b'"resourceVersion":"%d"' % version, 1)

    def event(self, number: int, version: int) -> bytes:
        """Return a watch event of a changed pod."""
        return self._head + self.body(number, version) + self._tail


def replica(name: str, node: str, *, container: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a pod as the controller of a ReplicaSet creates it, with further fields of its container and its spec."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web-7d4b9c6f5",
        "uid": "rs-1",
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "generateName": f"{name.rpartition('-')[0]}-",
            "namespace": NAMESPACE,
            "labels": {"app": "web", "pod-template-hash": "7d4b9c6f5"},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": node,
            "serviceAccountName": "default",
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "containers": [
                {
                    "name": "main",
                    "image": "registry.k8s.io/pause:3.10",
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    **container,
                }
            ],
            **spec,
        },
    }  # fmt: skip


def templates(node: str) -> tuple[Template, Template]:
    """Return the upper and the lower pods of a virtual node. Their statuses agree."""
    token = _NUMBER.decode()
    settings = [{"name": f"SETTING_{number}", "value": f"value {number}"} for number in range(5)]
    upper = replica(
        f"web-{token}",
        node,
        container={"env": [*settings, {"name": "WORKLOAD", "value": _WORKLOAD.decode()}]},
        terminationGracePeriodSeconds=30,
        tolerations=[
            {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for what in ("not-ready", "unreachable")
        ],
    )  # fmt: skip
    upper["metadata"] |= {
        "uid": f"00000000-0000-4000-8000-upper{token}",
        "resourceVersion": "0",
        "creationTimestamp": _CREATED,
        "managedFields": [
            {"manager": name, "operation": "Update", "apiVersion": "v1", "time": _CREATED, "fieldsType": "FieldsV1", "fieldsV1": _FIELDS}
            for name in ("kube-controller-manager", "kubelet")
        ],
    }  # fmt: skip
    upper["status"] = {}
    options = PodOptions(owner=Owner(CLUSTER_ID, node), service_accounts=Config().enable_serviceaccount)
    lower = copy.deepcopy(lower_pod(upper, options))
    lower["metadata"] |= {
        "uid": f"00000000-0000-4000-8000-lower{token}",
        "resourceVersion": "0",
        "creationTimestamp": _CREATED,
        "managedFields": upper["metadata"]["managedFields"],
    }
    lower["spec"]["nodeName"] = "node-00000"
    lower["status"] = _STATUS
    upper["status"] = upper_status(lower, upper)
    return Template(upper), Template(lower)


_FIELDS: dict[str, Any] = {f"f:{name}": {"f:labels": {".": {}, "f:app": {}}, "f:generateName": {}} for name in ("metadata", "spec", "status", "a", "b")}  # fmt: skip
_STATUS = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "podIPs": [{"ip": "10.0.0.1"}],
    "hostIP": "192.168.0.1",
    "startTime": _CREATED,
    "qosClass": "Burstable",
    "conditions": [
        {"type": name, "status": "True", "lastTransitionTime": _CREATED}
        for name in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ],
    "containerStatuses": [
        {"name": "main", "ready": True, "started": True, "restartCount": 0, "image": "registry.k8s.io/pause:3.10",
         "imageID": "registry.k8s.io/pause@sha256:0000", "containerID": "containerd://0",
         "state": {"running": {"startedAt": _CREATED}}, "lastState": {}}
    ],
}  # fmt: skip
