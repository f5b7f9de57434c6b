"""Objects as an API server returns them, for all tests. A test names only the fields that matter to it.

The builders share these arguments: ``namespace``, ``uid`` (the name; empty: the server chooses one), ``labels``, ``annotations``, ``owner``
(name of the controller) and ``metadata`` for other fields of the metadata. Empty values are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.workloads import manifest

Body = dict[str, Any]
CREATED = "2026-01-01T00:00:00Z"
HOSTNAME = "kubernetes.io/hostname"


def stored(
    kind: str,
    name: str,
    *,
    api: str = "v1",
    namespace: str = "shop",
    uid: str | None = None,
    version: str = "1",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: str = "",
    owner_kind: str = "ReplicaSet",
    metadata: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Body:
    """Return an object with the metadata that an API server adds."""
    owners = [{"apiVersion": "apps/v1", "kind": owner_kind, "name": owner, "uid": owner, "controller": True}]
    added = {
        "namespace": namespace,
        "uid": name if uid is None else uid,
        "resourceVersion": version,
        "creationTimestamp": CREATED,
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
        "ownerReferences": owners if owner else [],
        **(metadata or {}),
    }
    return manifest(
        kind, name, api=api, metadata={key: value for key, value in added.items() if value}, **fields
    )


def condition(kind: str, status: str = "True", reason: str = "", message: str = "", **more: Any) -> Body:
    """Return a condition of a status."""
    told = {"reason": reason, "message": message, **more}
    return {"type": kind, "status": status, **{key: value for key, value in told.items() if value}}


def container(
    name: str = "main", *, limits: Mapping[str, str] | None = None, image: str = "web:1", **requests: str
) -> Body:
    """Return a container with requests, such as ``cpu="1"``."""
    amounts = {"requests": requests, "limits": dict(limits or {})}
    resources = {key: value for key, value in amounts.items() if value}
    return {"name": name, "image": image, **({"resources": resources} if resources else {})}


def pod(
    name: str = "web",
    cpu: str = "",
    *,
    node: str = "",
    phase: str = "Pending",
    conditions: Sequence[Mapping[str, Any]] = (),
    status: Mapping[str, Any] | None = None,
    namespace: str = "shop",
    uid: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: str = "",
    owner_kind: str = "ReplicaSet",
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Body:
    """Return a pod of one container, which requests ``cpu``; on a node, if one is given.

    ``status`` has other fields than phase and conditions; ``spec`` has all other fields of the specification.
    """
    shown = {"phase": phase, "conditions": [dict(one) for one in conditions], **(status or {})}
    return stored(
        "Pod", name, namespace=namespace, uid=uid, labels=labels, annotations=annotations, owner=owner,
        owner_kind=owner_kind, metadata=metadata,
        spec={
            **({"nodeName": node} if node else {}),
            "containers": [container(cpu=cpu) if cpu else container()],
            **spec,
        },
        status={key: value for key, value in shown.items() if value},
    )  # fmt: skip


def node(
    name: str = "n1",
    cpu: str = "4",
    memory: str = "8Gi",
    *,
    pods: str = "110",
    more: Mapping[str, str] | None = None,
    ready: bool | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Body:
    """Return a node.

    ``more`` has amounts of further resources; an empty amount leaves out a resource. The label of the hostname is its name
    unless ``labels`` has another one, or an empty one for none. Without ``ready`` it has no condition.
    """
    known = {HOSTNAME: name, **(labels or {})}
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, **(more or {})}
    return stored(
        "Node", name, namespace="", annotations=annotations,
        labels={label: value for label, value in known.items() if value or label != HOSTNAME},
        spec=spec,
        status={
            "allocatable": {resource: amount for resource, amount in amounts.items() if amount},
            **({} if ready is None else {"conditions": [condition("Ready", str(ready))]}),
        },
    )  # fmt: skip


def virtual_node(name: str = "vn", *, labels: Mapping[str, str] | None = None, **fields: Any) -> Body:
    """Return a virtual node; arguments as of ``node``."""
    taints = [{"key": "virtual-kubelet.io/provider", "effect": "NoSchedule"}]
    return node(name, labels={"type": "virtual-kubelet", **(labels or {})}, **{"taints": taints, **fields})


def namespace(name: str = "shop", **fields: Any) -> Body:
    """Return a namespace; arguments as of ``stored``."""
    return stored("Namespace", name, namespace="", **fields)


def config_map(name: str = "settings", data: Mapping[str, str] | None = None, **fields: Any) -> Body:
    """Return a ConfigMap; arguments as of ``stored``."""
    return stored("ConfigMap", name, data=dict({"a": "1"} if data is None else data), **fields)


def secret(name: str = "native", data: Mapping[str, str] | None = None, **fields: Any) -> Body:
    """Return a Secret; arguments as of ``stored``."""
    return stored("Secret", name, data=dict({"a": "cGFzc3dvcmQ="} if data is None else data), **fields)


def service(
    name: str = "web",
    ports: Sequence[Mapping[str, Any]] = ({"port": 80, "protocol": "TCP"},),
    *,
    address: str = "10.0.0.5",
    namespace: str = "shop",
    **spec: Any,
) -> Body:
    """Return a Service with an address."""
    listed = [dict(port) for port in ports]
    return stored("Service", name, namespace=namespace, spec={"clusterIP": address, "ports": listed, **spec})


def claim(
    name: str = "data", *, volume: str = "", status: Mapping[str, Any] | None = None, spec: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Body:  # fmt: skip
    """Return a PersistentVolumeClaim, which names ``volume`` if given; other arguments as of ``stored``."""
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **(spec or {})}
    bound = {"volumeName": volume} if volume else {}
    return stored(
        "PersistentVolumeClaim",
        name,
        spec={**asked, **bound},
        status=dict(status or {"phase": "Pending"}),
        **fields,
    )


def volume(name: str = "pv-1", *, phase: str = "Available", **spec: Any) -> Body:
    """Return a PersistentVolume."""
    known = {"capacity": {"storage": "1Gi"}, "storageClassName": "fast", **spec}
    return stored("PersistentVolume", name, namespace="", spec=known, status={"phase": phase})
