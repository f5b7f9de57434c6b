"""Volumes on storage that several lower clusters share, and the record of the clusters that use such a volume.

The *home* cluster of a volume provisioned it and alone decides about its data. A *guest* cluster has a volume with the
same CSI handle and reclaim policy Retain while pods use it there. The upper mirror carries the facts that both need.
Tenants cannot write PersistentVolumes, so these facts are proof:

- The node affinity, which never changes, names the shared storage.
- An annotation names the lower clusters in which pods may use the volume.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from clusterset.config import SharedStorage
from clusterset.model import names
from clusterset.model.moving import movable
from clusterset.model.policy.config import MetadataRules
from controller_runtime.apimachinery.decoding import decode
from controller_runtime.objects import Object
from virtual_node.translate.base.metadata import DEFAULT_RULES
from virtual_node.translate.base.ownership import Owner, ownership_labels
from virtual_node.translate.storage import pv, pvc

LABEL_SHARED = f"{names.DOMAIN}/shared-storage"
"""On a mirror: name of the shared storage of its volume; selects mirrors."""
LABEL_GUEST = f"{names.DOMAIN}/guest-of"
"""On a claim and a volume of a guest cluster: uid of the mirror."""
ANNOTATION_USED_IN = f"{names.DOMAIN}/used-in"
"""On a mirror: names of the lower clusters in which pods may use the volume, separated by commas."""
_SECRETS = (
    "controllerPublishSecretRef",
    "nodeStageSecretRef",
    "nodePublishSecretRef",
    "controllerExpandSecretRef",
    "nodeExpandSecretRef",
)
_CARRIED = ("accessModes", "volumeMode", "capacity")


class UnusableError(Exception):
    """A volume cannot be used in a guest cluster; the text says why."""


def node_label(storage: str) -> str:
    """Return the label of the virtual nodes that reach a shared storage."""
    return f"storage.{names.DOMAIN}/{storage}"


def storage_of(lower: Mapping[str, Any], shared: Sequence[SharedStorage]) -> str:
    """Return the name of the shared storage of a lower volume; empty: it is on none."""
    if (lower["spec"].get("nodeAffinity") or {}).get("required"):
        return ""  # only some lower nodes reach it, and their labels mean nothing in other clusters
    driver = (lower["spec"].get("csi") or {}).get("driver")
    return next((one.name for one in shared if driver in one.drivers), "")


def share(mirror: dict[str, Any], *, storage: str, cluster: str) -> dict[str, Any]:
    """Return a new mirror that all virtual nodes of the storage reach, with ``cluster`` recorded as its user."""
    metadata, spec = mirror["metadata"], mirror["spec"]
    reaches = {"matchExpressions": [{"key": node_label(storage), "operator": "Exists"}]}
    terms = [*spec["nodeAffinity"]["required"]["nodeSelectorTerms"], reaches]
    return {
        **mirror,
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], LABEL_SHARED: storage},
            # Pods may have started in the home cluster before the mirror exists.
            "annotations": {**metadata["annotations"], ANNOTATION_USED_IN: cluster},
        },
        "spec": {**spec, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
    }


def shared_name(mirror: Mapping[str, Any]) -> str:
    """Return the shared storage that a mirror's node affinity names; empty: none."""
    required = (mirror["spec"].get("nodeAffinity") or {}).get("required") or {}
    prefix = node_label("")
    for term in required.get("nodeSelectorTerms") or ():
        for one in term.get("matchExpressions") or ():
            if one["operator"] == "Exists" and one["key"].startswith(prefix) and pv.is_mirror(mirror):
                return str(one["key"].removeprefix(prefix))
    return ""


def used_in(mirror: Mapping[str, Any]) -> frozenset[str]:
    """Return the lower clusters in which pods may use a volume."""
    value = (mirror["metadata"].get("annotations") or {}).get(ANNOTATION_USED_IN) or ""
    return frozenset(one for one in value.split(",") if one)


def blocked_by(mirror: Mapping[str, Any], claim: Mapping[str, Any], cluster: str) -> Collection[str]:
    """Return the other clusters that must stop using a volume before pods of this cluster may use it.

    Empty if the access modes of both volume and claim allow several writers.
    """
    others = used_in(mirror) - {cluster}
    is_single = movable.is_single_writer(mirror) or movable.is_single_writer(claim)
    return sorted(others) if is_single else ()


def use_patch(mirror: Mapping[str, Any], clusters: Collection[str], *, uses: bool) -> dict[str, Any] | None:
    """Return a merge patch that records whether clusters use a volume; None: it is recorded already.

    Send it with the mirror's resourceVersion, so that only one of two concurrent writes succeeds.
    """
    before = used_in(mirror)
    after = before.union(clusters) if uses else before.difference(clusters)
    if after == before:
        return None
    return {"metadata": {"annotations": {ANNOTATION_USED_IN: ",".join(sorted(after)) or None}}}


def guest_volume_name(mirror_uid: str, cluster_id: str) -> str:
    """Return the name of a volume in guest clusters, always the same for a mirror."""
    text = f"{cluster_id}/{mirror_uid}"
    return f"virtual-node-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def is_guest(lower: Object, cluster_id: str) -> bool:
    """Report whether we created a claim or volume for a guest cluster, so that its deletion deletes no data.

    A label is no proof, because others may write it. The name of a volume and the volume of a bound claim never change.
    """
    uid = lower.labels.get(LABEL_GUEST)
    if not uid or lower.labels.get(names.LABEL_UPPER_CLUSTER) != cluster_id:
        return False
    spec, expected = lower.spec or {}, guest_volume_name(uid, cluster_id)
    if lower.namespace:
        return bool(spec.get("volumeName") == expected)
    return lower.name == expected and spec.get("persistentVolumeReclaimPolicy") == "Retain"


def guest_claim(
    upper: Mapping[str, Any],
    mirror: Mapping[str, Any],
    *,
    namespace: str,
    owner: Owner,
    rules: MetadataRules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Return the claim of a guest cluster, which only the guest volume can satisfy.

    Args:
        upper: the upper claim.
        mirror: the mirror that the upper claim is bound to.
        namespace: the lower namespace.
        owner: upper cluster and virtual node, for the ownership labels.
        rules: ``policy.metadata`` for the upper namespace.
    """
    body = pvc.lower_claim(
        upper,
        namespace=namespace,
        owner=owner,
        storage_class="",
        volume_name=guest_volume_name(mirror["metadata"]["uid"], owner.cluster_id),
        rules=rules,
    )
    spec = mirror["spec"]
    body["spec"] = {
        **{field: spec[field] for field in ("accessModes", "volumeMode") if field in spec},
        "resources": {"requests": {"storage": spec["capacity"]["storage"]}},
        "storageClassName": "",
        "volumeName": body["spec"]["volumeName"],
    }
    body["metadata"]["labels"][LABEL_GUEST] = mirror["metadata"]["uid"]
    return body


def guest_volume(
    mirror: Mapping[str, Any], lower_claim: Mapping[str, Any], *, storage: SharedStorage, owner: Owner
) -> dict[str, Any]:
    """Return the volume of a guest cluster, bound to a claim there.

    Args:
        mirror: the mirror; its annotation has the source that the home cluster reported.
        lower_claim: the claim of the guest cluster, with its uid.
        storage: the guest cluster's own declaration of the storage.
        owner: upper cluster and virtual node, for the ownership labels.

    Raises:
        UnusableError: the source is not a CSI volume of a driver that this cluster declares.
    """
    spec = {field: mirror["spec"][field] for field in _CARRIED if field in mirror["spec"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": lower_claim["spec"]["volumeName"],
            "labels": {
                **ownership_labels(owner, lower_claim["metadata"]["labels"][names.LABEL_UPPER_UID]),
                LABEL_GUEST: mirror["metadata"]["uid"],
            },
            "annotations": {
                names.ANNOTATION_GLOBAL: "true",
                names.ANNOTATION_UPPER_NAMESPACE: (mirror["spec"].get("claimRef") or {}).get("namespace", ""),
            },
        },
        "spec": {
            **spec,
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": pv.claim_reference(lower_claim),
            **_source(mirror, storage),
        },
    }


def _source(mirror: Mapping[str, Any], storage: SharedStorage) -> dict[str, Any]:
    text = (mirror["metadata"].get("annotations") or {}).get(pv.ANNOTATION_SOURCE_OF_VOLUME) or ""
    try:
        source = decode(text)
    except ValueError:
        raise UnusableError(
            f"annotation {pv.ANNOTATION_SOURCE_OF_VOLUME} of its mirror is not JSON"
        ) from None
    if not isinstance(source, dict) or not isinstance(source.get("csi"), dict):
        raise UnusableError("its source is not a CSI driver")
    csi, options = dict(source["csi"]), source.get("mountOptions")
    if csi.get("driver") not in storage.drivers:
        raise UnusableError(
            f"its driver {csi.get('driver')} is not in volumes.shared[{storage.name}].drivers"
        )
    secrets = [field for field in _SECRETS if csi.pop(field, None)]
    if secrets and storage.secret is None:
        raise UnusableError(f"it needs a Secret; set volumes.shared[{storage.name}].secret")
    if storage.secret is not None:
        reference = {"name": storage.secret.name, "namespace": storage.secret.namespace}
        csi |= dict.fromkeys(secrets, reference)
    return {"csi": csi, **({"mountOptions": options} if options else {})}
