"""Bodies of workloads that several tests create."""

from __future__ import annotations

from typing import Any

from controller_runtime.api import names


def kwok_pod(name: str, *, cpu: str = "1", annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a pod that may run on every virtual node, for simulated lower nodes."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations or {}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"key": names.TAINT_PROVIDER, "operator": "Exists"}],
            "containers": [{"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}],
        },
    }


def deployment(pod: dict[str, Any], *, replicas: int) -> dict[str, Any]:
    """Return a Deployment of pods like this one, with its name. The label ``app`` selects them."""
    name = pod["metadata"]["name"]
    metadata = {field: value for field, value in pod["metadata"].items() if field != "name"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {**metadata, "labels": {**metadata.get("labels", {}), "app": name}},
                "spec": pod["spec"],
            },
        },
    }
