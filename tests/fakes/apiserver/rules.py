"""What an API server makes of single objects: defaults, UIDs, times, grace periods, and changes that it refuses."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from controller_runtime.errors import BadRequest, Conflict, Invalid

FINISHED = frozenset({"Succeeded", "Failed"})
"""Phases that a pod does not leave."""
PROTECTED = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}
"""Finalizers that admission adds (StorageObjectInUseProtection)."""
SERVICE_RANGE = "10.97."
"""What the addresses that a Service can request begin with."""
_MAY_CHANGE = frozenset({"containers", "initContainers", "activeDeadlineSeconds", "tolerations", "nodeName"})
_KEPT = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion",
    "name", "namespace",
)  # fmt: skip
"""Metadata that no update changes."""
_EMPTY_IS_NONE = ("labels", "annotations", "finalizers", "ownerReferences")
_BY_SUBRESOURCE = {"resize": {"containers"}, "ephemeralcontainers": {"ephemeralContainers"}}
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def new_object(plural: str, body: Mapping[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """Return an object as it is stored at first, with defaults; ``metadata`` has its UID already."""
    whole = {**body, "metadata": metadata}
    if plural in {"pods", "nodes", "services", "namespaces", *PROTECTED}:
        whole.pop("status", None)
    if plural == "pods":
        metadata["generation"] = 1
        whole["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        whole["spec"] = {"terminationGracePeriodSeconds": 30, **whole["spec"]}
    elif plural == "services":
        whole["spec"] = with_address(whole["spec"], metadata["uid"])
    elif plural in PROTECTED:
        metadata["finalizers"] = [*(metadata.get("finalizers") or ()), PROTECTED[plural]]
        whole["status"] = {"phase": "Pending"}
    elif plural == "namespaces":
        whole["status"] = {"phase": "Active"}
        metadata["labels"] = {
            **(metadata.get("labels") or {}),
            "kubernetes.io/metadata.name": metadata["name"],
        }
    elif plural == "secrets":
        whole.setdefault("type", "Opaque")
    elif plural == "nodes" and "status" in body:
        whole["status"] = body["status"]
    check_keys(plural, whole)
    return whole


def metadata_update(old: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object's metadata after a change.

    Raises:
        Invalid: the UID differs, or a finalizer is added to an object that is being deleted.
        Conflict: the resourceVersion differs.
        BadRequest: the name or the namespace differs.
    """
    new = dict(asked)
    if any(new.get(field, old.get(field)) != old.get(field) for field in ("name", "namespace")):
        raise BadRequest("the name of the object does not match the name on the URL", code=400)
    # An empty version is no precondition (store.Update, AllowUnconditionalUpdate).
    if (new.get("resourceVersion") or old["resourceVersion"]) != old["resourceVersion"]:
        raise Conflict("the object has been modified", code=409, reason="Conflict")
    if new.get("uid", old["uid"]) != old["uid"]:
        causes = {"details": {"causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]}}
        raise Invalid("field is immutable", code=422, reason="Invalid", status=causes)
    if "deletionTimestamp" in old and set(new.get("finalizers") or ()) - set(old.get("finalizers") or ()):
        raise Invalid("no new finalizers can be added if it is being deleted", code=422, reason="Invalid")
    kept = {field: old[field] for field in _KEPT if field in old}
    lists = {field: new[field] for field in _EMPTY_IS_NONE if new.get(field)}
    others = {field: value for field, value in new.items() if field not in {*_KEPT, *_EMPTY_IS_NONE}}
    return {**others, **lists, **kept}


def is_deletable(metadata: Mapping[str, Any]) -> bool:
    """Report whether nothing keeps an object that is being deleted."""
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )


def check_pod_update(stored: Mapping[str, Any], whole: Mapping[str, Any], subresource: str | None) -> None:
    """Raise Invalid if a change of a pod's spec is forbidden."""
    if subresource == "status":
        return
    allowed = _BY_SUBRESOURCE.get(subresource or "", _MAY_CHANGE)
    old, new = stored["spec"], whole["spec"]
    changed = {field for field in {*old, *new} if old.get(field) != new.get(field)}
    if changed - allowed:
        raise Invalid(f"spec: Forbidden: {sorted(changed)}", code=422, reason="Invalid")


def check_content_update(plural: str, stored: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    """Raise Invalid if a change of a ConfigMap or Secret is forbidden."""
    fixed = ("type", "data", "binaryData", "immutable") if stored.get("immutable") else ("type",)
    if any((whole.get(field) or None) != (stored.get(field) or None) for field in fixed):
        raise Invalid("field is immutable", code=422, reason="Invalid")
    check_keys(plural, whole)


def check_keys(plural: str, body: Mapping[str, Any]) -> None:
    """Raise Invalid if a ConfigMap or Secret has a key that cannot be a file name."""
    if plural in {"configmaps", "secrets"}:
        for key in body.get("data") or ():
            if not _DATA_KEY.fullmatch(key) or key in {".", ".."}:
                message = f"data[{key}]: a valid config key must consist of alphanumeric characters"
                raise Invalid(message, code=422, reason="Invalid")


def check_addresses(
    spec: Mapping[str, Any], services: Iterable[Mapping[str, Any]], families: Collection[str]
) -> None:
    """Raise Invalid if a new Service cannot have the families or addresses that it requests."""
    if set(spec.get("ipFamilies") or ()) - set(families):
        raise Invalid("spec.ipFamilies[0]: Invalid value: not configured on this cluster", code=422)
    taken = {service["spec"].get("clusterIP") for service in services}
    for address in spec.get("clusterIPs") or ():
        message = f"spec.clusterIPs: Invalid value: failed to allocate IP {address}"
        if address != "None" and not address.startswith(SERVICE_RANGE):
            raise Invalid(f"{message}: the provided network does not match the current range", code=422)
        if address != "None" and address in taken:
            raise Invalid(f"{message}: provided IP is already allocated", code=422)


def grace_period(pod: Mapping[str, Any], asked: int | None) -> int:
    """Return the seconds that a pod may still run after its deletion."""
    if not pod["spec"].get("nodeName") or (pod.get("status") or {}).get("phase") in FINISHED:
        return 0
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30)) if asked is None else asked


def with_address(spec: Mapping[str, Any], uid: str) -> dict[str, Any]:
    """Return a Service's spec with a cluster IP if its type has one."""
    if spec.get("type") == "ExternalName":
        return {key: value for key, value in spec.items() if key not in {"clusterIP", "clusterIPs"}}
    if spec.get("clusterIP"):
        return dict(spec)
    return {"type": "ClusterIP", **spec, "clusterIP": f"10.96.{uid[:8]}"}


def new_uid(of: str) -> str:
    """Return a UID that is the same in each run."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, of))


def stamp(version: int) -> str:
    """Return a time that grows with the version."""
    days, seconds = divmod(version, 86400)
    return f"2026-01-{1 + days:02}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
