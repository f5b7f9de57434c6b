"""Names, labels and owner references of the objects of a Swarm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterset.model.names import SWARMS
from controller_runtime import resources
from controller_runtime.cache.namespace_budget import is_stub
from controller_runtime.errors import ApiError
from controller_runtime.objects import Object, ObjectMeta
from controller_runtime.resources import Resource
from swarm import share
from swarm.handover.ledger import Holder
from swarm.spec import GROUP

LABEL_SWARM = f"{GROUP}/swarm"
ANNOTATION_VERSION = f"{GROUP}/version"
ANNOTATION_CHECKSUM = f"{GROUP}/checksum"
ANNOTATION_PARTS = f"{GROUP}/parts"
ANNOTATION_POD_UID = f"{GROUP}/pod-uid"
ANNOTATION_ACKNOWLEDGED = f"{GROUP}/acknowledged"
ANNOTATION_ENDED = f"{GROUP}/ended"
_ANNOTATIONS = frozenset(
    {
        ANNOTATION_VERSION,
        ANNOTATION_CHECKSUM,
        ANNOTATION_PARTS,
        ANNOTATION_POD_UID,
        ANNOTATION_ACKNOWLEDGED,
        ANNOTATION_ENDED,
    }
)
ORIGINAL_KEY = "config.yml"
CHECKSUM = "checksum"
"""Field of a cached ConfigMap's data: see ``shrink_config_map``."""
_LONGEST_VERSION = 16
"""Number of digits from which a version is invalid, because versions must stay below 2^53."""

INDEX_SWARM = "swarm"


def by_swarm(found: Object) -> Iterable[str]:
    """Return the key of the Swarm that an object's label names; no key without the label."""
    swarm = found.labels.get(LABEL_SWARM)
    return [f"{found.namespace}/{swarm}"] if swarm else []


def shrink_config_map(found: Object) -> Object:
    """Reduce a ConfigMap to the checksum of its content, because informers cache the ConfigMaps of all Swarms."""
    data = found.field("data") or {}
    text = data.get(share.KEY) or data.get(ORIGINAL_KEY) or ""
    shrunk = found.without("data", "binaryData").with_fields(data={CHECKSUM: share.checksum(text)})
    return _shrink_metadata(shrunk)


def shrink_lease(found: Object) -> Object:
    """Reduce the metadata of a Lease to what is read."""
    return _shrink_metadata(found)


def _shrink_metadata(found: Object) -> Object:
    return found.with_only(
        labels=lambda key: key == LABEL_SWARM,
        annotations=lambda key: key in _ANNOTATIONS,
        owners=lambda one: bool(one.get("controller")) or one.get("kind") == SWARMS.kind,
    )


def owned_stub(found: Object) -> Object:
    """Return a ConfigMap or Lease without content and version; it counts as an object of the Swarm in its label."""
    swarm = found.labels.get(LABEL_SWARM, "")
    kept = ObjectMeta(name=found.name, namespace=found.namespace, uid=found.uid, labels={LABEL_SWARM: swarm})
    return Object(kept, found.api_version, found.kind)


def check_whole(found: Object) -> None:
    """Check that an object is not a stub, which cannot be compared with what it should be.

    Raises:
        NotCached: it is one.
    """
    if is_stub(found):
        raise NotCached(
            f"{found.kind} {found.name} is not written: the ConfigMaps and Leases with label {LABEL_SWARM} in namespace "
            f"{found.namespace} are too large for the controller's memory. Delete those that belong to no Swarm, or "
            "divide the Swarms over namespaces"
        )


def owner(found: Object | Mapping[str, Any]) -> str:
    """Return the UID of the owner that is marked as controller; empty if there is none."""
    return next((one.get("uid", "") for one in _owners(found) if one.get("controller")), "")


def _owners(found: Object | Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    if isinstance(found, Object):
        return found.metadata.owner_references
    return found["metadata"].get("ownerReferences") or []


def check_owner(swarm: Object, found: Object | Mapping[str, Any], name: str) -> None:
    """Check that the Swarm owns an object.

    Raises:
        NameTaken: the Swarm is not an owner of the object.
    """
    if not any(one.get("uid") == swarm.uid for one in _owners(found)):
        raise NameTaken(f"{name} exists and does not belong to Swarm {swarm.name}: delete or rename it")


def check_adoptable(swarm: Object, found: Object | Mapping[str, Any], name: str) -> None:
    """Check that a ConfigMap is the Swarm's, or was created by k8s-swarm's manifests.

    Raises:
        NameTaken: the Swarm does not own it, and another controller or Swarm uses it, or it has data but no table.
    """
    if isinstance(found, Object):
        labels, has_table = found.labels, True
    else:
        data = found.get("data") or {}
        labels, has_table = found["metadata"].get("labels") or {}, not data or ORIGINAL_KEY in data
    if owner(found) or labels.get(LABEL_SWARM, swarm.name) != swarm.name or not has_table:
        check_owner(swarm, found, f"spec.configMap: ConfigMap {name}")


def adopted(there: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an existing ConfigMap with our labels, annotations and table.

    Its owners and other keys stay, except shares of deleted workers. So it is not deleted with the Swarm.
    """
    metadata = dict(there["metadata"])
    for field in ("labels", "annotations"):
        metadata[field] = {**(metadata.get(field) or {}), **body["metadata"][field]}
    others = {
        key: text
        for key, text in (there.get("data") or {}).items()
        if not (key.endswith(".json") and '"kind":"Share"' in text)
    }
    return {**there, "metadata": metadata, "data": {**others, **body["data"]}}


def version_in(annotations: Mapping[str, str]) -> int:
    """Return the version in an object's annotations; 0 if there is no valid one."""
    text = annotations.get(ANNOTATION_VERSION, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _LONGEST_VERSION else 0


class NotCached(ApiError):  # noqa: N818 - a state that the user must end
    """The namespace has no room for the object in the controller's cache."""


class NameTaken(ApiError):  # noqa: N818 - a state that the user must end
    """An object that the Swarm does not own has a name that the Swarm needs."""


def lease(swarm: Object, name: str, holder: Holder, settings: share.Settings) -> dict[str, Any]:
    """Return the Lease in which a pod acknowledges its share."""
    body = head(swarm, resources.LEASES, name)
    body["metadata"]["annotations"] = {ANNOTATION_POD_UID: holder.uid}
    spec = {"leaseDurationSeconds": settings.fence_seconds} if settings.fence_seconds else {}
    return {**body, "spec": spec}


def config_map(swarm: Object, name: str, version: int, data: dict[str, str]) -> dict[str, Any]:
    """Return a ConfigMap with the jobs of one pod, or with the table of all jobs as k8s-swarm writes it."""
    body = head(swarm, resources.CONFIG_MAPS, name)
    text = data.get(share.KEY) or data[ORIGINAL_KEY]
    body["metadata"]["annotations"] = {
        ANNOTATION_VERSION: str(version),
        ANNOTATION_CHECKSUM: share.checksum(text),
    }
    return {**body, "data": data}


def head(swarm: Object, resource: Resource, name: str) -> dict[str, Any]:
    """Return an object without content, owned by the Swarm."""
    reference = {
        "apiVersion": SWARMS.api_version,
        "kind": SWARMS.kind,
        "name": swarm.name,
        "uid": swarm.uid,
        "controller": True,
    }
    metadata = {
        "name": name,
        "namespace": swarm.namespace,
        "labels": {LABEL_SWARM: swarm.name},
        "ownerReferences": [reference],
    }
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
