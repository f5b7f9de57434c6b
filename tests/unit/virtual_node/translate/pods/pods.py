"""Pods as API servers return them, and their translation options."""

from __future__ import annotations

import copy
from typing import Any

from clusterset.model.policy.copied_keys import KeyPatterns
from tests.unit.clusterset.model.policy.pods import INJECTED
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import service_account

CLUSTER = "0f8e7d6c-upper"


OPTIONS = PodOptions(owner=Owner(CLUSTER, "vn"), ignore_labels=KeyPatterns(("batch.io/group",)))


def upper_pod(**spec: Any) -> dict[str, Any]:
    """Return a pod as the API server returns it once it is bound to a virtual node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-0",
            "namespace": "shop",
            "uid": "11111111-2222-3333-4444-555555555555",
            "resourceVersion": "42",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generateName": "web-",
            "labels": {"app": "web", "batch.io/group": "g1"},
            "annotations": {"note": "kept", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "ownerReferences": [{"kind": "StatefulSet", "name": "web", "uid": "x"}],
            "finalizers": ["example.com/hold"],
            "managedFields": [{}],
        },
        "spec": {
            "nodeName": "vn",
            "nodeSelector": {"type": "virtual-kubelet"},
            "schedulerName": "default-scheduler",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "serviceAccountName": "shopkeeper",
            "serviceAccount": "shopkeeper",
            "tolerations": [
                {"key": "virtual-kubelet.io/provider", "operator": "Exists"},
                {"key": "gpu", "operator": "Exists"},
            ],
            "readinessGates": [{"conditionType": "lb"}],
            "futureField": {"kept": True},
            "containers": [
                {
                    "name": "main",
                    "image": "web:1",
                    "env": [
                        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                        for name, path in (
                            ("UID", "metadata.uid"),
                            ("NODE", "spec.nodeName"),
                            ("IP", "status.podIP"),
                        )
                    ],
                    "volumeMounts": [{"name": "kube-api-access-x", "mountPath": service_account.MOUNT_PATH}],
                }
            ],
            "volumes": [
                {
                    "name": "kube-api-access-x",
                    "projected": {"defaultMode": 420, "sources": copy.deepcopy(list(INJECTED))},
                }
            ],
            **spec,
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }


def ready(status: str) -> dict[str, str]:
    return {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
