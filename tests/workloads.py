"""Bodies of objects that several tests create."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model import names


def manifest(kind: str, name: str, *, api: str = "v1", **fields: Any) -> dict[str, Any]:
    """Return an object; ``metadata`` among the fields adds to its name."""
    metadata = {"name": name, **fields.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def pod(name: str, container: Mapping[str, Any], *, metadata: Any = None, **spec: Any) -> dict[str, Any]:
    """Return a pod that may run on every virtual node and ends within a second; its label ``app`` is its name."""
    spec = {
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"key": names.TAINT_PROVIDER, "operator": "Exists"}],
        "containers": [{"name": "main", "image": "busybox:1.36", **container}],
        **spec,
    }
    return manifest("Pod", name, metadata={"labels": {"app": name}, **(metadata or {})}, spec=spec)


def kwok_pod(name: str, *, cpu: str = "1", annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a pod for simulated lower nodes."""
    container = {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    return pod(name, container, metadata={"annotations": annotations or {}})


def deployment(pod: dict[str, Any], *, replicas: int) -> dict[str, Any]:
    """Return a Deployment of pods like this one, with its name. The label ``app`` selects them."""
    name = pod["metadata"]["name"]
    metadata = {field: value for field, value in pod["metadata"].items() if field != "name"}
    template = {
        "metadata": {**metadata, "labels": {**metadata.get("labels", {}), "app": name}},
        "spec": pod["spec"],
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return manifest("Deployment", name, api="apps/v1", spec=spec)


def service(port: Mapping[str, Any]) -> dict[str, Any]:
    """Return Service ``web`` of the pods with this label ``app``."""
    return manifest("Service", "web", spec={"selector": {"app": "web"}, "ports": [port]})
