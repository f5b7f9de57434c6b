"""Reads a pod's owner and the owner's pods from the API server, so that no decision uses stale caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clusterset.model.moving import drain
from controller_runtime import resources
from controller_runtime.apimachinery import matching
from controller_runtime.client.client import Client, find
from descheduler.view.departure import Departure, Owner

_RESOURCES = {"ReplicaSet": resources.REPLICA_SETS, "StatefulSet": resources.STATEFUL_SETS}


@dataclass(frozen=True, slots=True)
class Owned:
    """An owner and the pods that its selector without the template hash matches, by UID."""

    owner: Owner
    body: dict[str, Any]
    pods: dict[str, dict[str, Any]]


async def read(client: Client, namespace: str, *, kind: str, name: str, uid: str) -> Owned | None:
    """Return a ReplicaSet or StatefulSet with its pods; None: it was deleted or is being deleted with its pods.

    An object with another UID is not the owner, because users can write any ownerReference.

    Raises:
        ApiError: a request failed.
    """
    body = await find(client, _RESOURCES[kind], name, namespace=namespace)
    if body is None or body["metadata"]["uid"] != uid:
        return None
    is_deleted = bool(body["metadata"].get("deletionTimestamp"))
    if is_deleted and "orphan" not in (body["metadata"].get("finalizers") or ()):
        return None
    spec, status = body.get("spec") or {}, body.get("status") or {}
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in wanted.items() if key != drain.TEMPLATE_HASH)
    listed = await client.list(resources.PODS, namespace=namespace, label_selector=selector or None)
    failures = (one for one in status.get("conditions") or () if one.get("type") == "ReplicaFailure")
    trouble = next((one.get("message") or "" for one in failures if one.get("status") == "True"), "")
    owner = Owner(int(spec.get("replicas", 1)), float(spec.get("minReadySeconds") or 0), trouble, is_deleted)
    return Owned(owner, body, {pod.uid: pod.to_dict() for pod in listed.items})


async def read_pods(client: Client, departures: Iterable[Departure]) -> dict[str, dict[str, Any]]:
    """Return the released pods of a deleted owner, by UID.

    Raises:
        ApiError: a request failed.
    """
    found = [await find(client, resources.PODS, one.pod_name, namespace=one.namespace) for one in departures]
    return {pod["metadata"]["uid"]: pod for pod in found if pod is not None}


async def deployment_of(client: Client, replica_set: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the Deployment of a ReplicaSet; None: it has none, or the Deployment was deleted.

    Raises:
        ApiError: the request failed.
    """
    metadata = replica_set["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == "Deployment":
            found = await find(client, resources.DEPLOYMENTS, owner["name"], namespace=metadata["namespace"])
            return found if found is not None and found["metadata"]["uid"] == owner["uid"] else None
    return None


async def is_selected_by_hash(client: Client, namespace: str, labels: Mapping[str, str]) -> bool:
    """Report whether a Service selects the pod by its template hash; such a Service would lose a released pod.

    Raises:
        ApiError: the request failed.
    """
    listed = await client.list(resources.SERVICES, namespace=namespace)
    selectors = ((service.spec or {}).get("selector") or {} for service in listed.items)
    return any(
        drain.TEMPLATE_HASH in selector and matching.compile_selector({"matchLabels": selector})(labels)
        for selector in selectors
    )
