"""Mark lower objects with the upper object they were created for, and decide whether a lower object is owned.

Only data on the lower object counts, because users can write to upper objects and could name any lower object
in them. Translation overwrites our labels and annotations, so users cannot set them on lower objects through an
upper one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from clusterset.model import names
from controller_runtime.objects import Object

_LONGEST_CONTROLLER = 320
"""Characters of a lower controller's kind and name in messages. API servers allow 63 and 253."""


class Marks(NamedTuple):
    """Labels and annotations of plain metadata."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """Return the labels and annotations in an object's metadata."""
        return cls(metadata.get("labels") or {}, metadata.get("annotations") or {})


@dataclass(frozen=True, slots=True)
class Owner:
    """The creator of lower objects: one upper cluster, through one virtual node."""

    cluster_id: str
    node_name: str


def ownership_labels(owner: Owner, upper_uid: str) -> dict[str, str]:
    """Return the labels of a lower object that is created for the upper object with that uid."""
    return {
        names.LABEL_UPPER_CLUSTER: owner.cluster_id,
        names.LABEL_UPPER_UID: upper_uid,
        names.LABEL_NODE: owner.node_name,
    }


def made_for(cluster_id: str, upper: Mapping[str, Any]) -> str:
    """Return the value of the ``made-for`` annotation for an upper object, given its metadata."""
    return f"{cluster_id}/{upper['namespace']}/{upper['name']}/{upper['uid']}"


def is_made_for(lower: Object, cluster_id: str, upper: Mapping[str, Any]) -> bool:
    """Report whether a lower pod belongs to an upper pod by its uid label or its ``made-for`` annotation.

    Either one suffices, in case the other was removed.
    """
    return bool(
        lower.labels.get(names.LABEL_UPPER_UID) == upper["uid"]
        or lower.annotations.get(names.ANNOTATION_MADE_FOR) == made_for(cluster_id, upper)
    )


def proof_of_mirroring(lower_uid: str, upper_uid: str) -> str:
    """Return the annotation value of an upper pod that has been mirrored: ``<lower uid>/<upper uid>``.

    A copy of the pod (from a backup or from ``kubectl get -o yaml``) has another uid, so a copied value is
    not valid.
    """
    return f"{lower_uid}/{upper_uid}"


def mirrored_as(mark: str | None, upper_uid: str) -> str:
    """Return the lower uid in an upper pod's ``proof_of_mirroring`` value; empty: missing or not valid.

    The upper pod's user can write that value. Use it only to decide about that upper pod, never to decide
    which lower pod is ours.
    """
    lower_uid, _, marked_uid = (mark or "").partition("/")
    return lower_uid if marked_uid == upper_uid else ""


def is_confirmed(lower: Object, upper: Object) -> bool:
    """Report whether two pods name each other: the lower one by label, the upper one by ``proof_of_mirroring``.

    A user of one of the two clusters can write only one of the two.
    """
    mark = upper.annotations.get(names.ANNOTATION_LOWER_UID)
    return (
        lower.name == upper.name
        and lower.labels.get(names.LABEL_UPPER_UID) == upper.uid
        and mirrored_as(mark, upper.uid) == lower.uid
    )


def is_owned(labels: Mapping[str, str] | None, cluster_id: str) -> bool:
    """Report whether a lower object was created for that upper cluster, in any namespace."""
    return bool(labels) and labels.get(names.LABEL_UPPER_CLUSTER) == cluster_id  # type: ignore[union-attr]


def controller_reference(namespace: str, uid: str) -> dict[str, Any]:
    """Return the controller reference of a lower pod: its Namespace, so that no controller of the lower cluster adopts it.

    ReplicaSets, Jobs and similar objects adopt pods that match their selector and have no controller, and delete excess
    pods. A Namespace exists as long as its pods, and its deletion deletes them anyway.
    """
    return {"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": uid, "controller": True}


def lower_controller(lower: Object) -> str:
    """Return the controller of the lower cluster that has adopted or created a lower pod, as ``Kind name``; empty: none."""
    controller = lower.controller
    if controller is None or (controller.get("kind") == "Namespace" and controller.get("apiVersion") == "v1"):
        return ""
    return f"{controller.get('kind', '')} {controller.get('name', '')}"[:_LONGEST_CONTROLLER]


def upper_namespace(lower: Object) -> str:
    """Return the namespace of the upper object that a lower object was created for."""
    return lower.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, lower.namespace)


def upper_key(lower: Object) -> str:
    """Return ``namespace/name`` of the upper object that a lower object of the same name was created for."""
    return f"{upper_namespace(lower)}/{lower.name}"


def is_owned_by(lower: Object | Marks, cluster_id: str, upper_namespace: str, *, upper_uid: str = "") -> bool:
    """Report whether a lower object was created for an object in that namespace of that upper cluster.

    Check this before every write or delete of a lower object that was found by name, because two upper
    namespaces may map to one lower namespace.

    Args:
        lower: the lower object.
        cluster_id: identity of the upper cluster.
        upper_namespace: namespace of the upper object. A lower object without the namespace annotation counts
            as created for this namespace.
        upper_uid: uid of the upper object, if there is one. A lower object with this uid in its label was
            created for that object, even if the annotation was changed.
    """
    if not is_owned(lower.labels, cluster_id):
        return False
    if upper_uid and lower.labels.get(names.LABEL_UPPER_UID) == upper_uid:
        return True
    return lower.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, upper_namespace) == upper_namespace
