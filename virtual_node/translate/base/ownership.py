"""Marks lower objects with the upper object they were made for, and decides whether a lower object is ours.

Only data on the lower object counts. What stands on an upper object can be written by its user, who could name any
lower object there; translation overwrites our marks, so a user cannot carry them to a lower object either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from controller_runtime.api import names


class Marked(Protocol):
    """A lower object with its marks, such as ``controller_runtime.objects.Object``."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""


class Marks(NamedTuple):
    """The marks in plain metadata; satisfies ``Marked``."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """Return the marks of an object's metadata."""
        return cls(metadata.get("labels") or {}, metadata.get("annotations") or {})


@dataclass(frozen=True, slots=True)
class Owner:
    """Who makes objects below: one upper cluster, through one virtual node."""

    cluster_id: str
    node_name: str


def ownership_labels(owner: Owner, upper_uid: str) -> dict[str, str]:
    """Labels of an object made below for the upper object of that uid."""
    return {
        names.LABEL_UPPER_CLUSTER: owner.cluster_id,
        names.LABEL_UPPER_UID: upper_uid,
        names.LABEL_NODE: owner.node_name,
    }


def made_for(cluster_id: str, upper: Mapping[str, Any]) -> str:
    """Return the annotation that names the upper object, by its metadata, that a lower one is made for."""
    return f"{cluster_id}/{upper['namespace']}/{upper['name']}/{upper['uid']}"


def is_made_for(lower: Marked, cluster_id: str, upper: Mapping[str, Any]) -> bool:
    """Return whether a lower pod was made for an upper one: each of its two marks suffices if the other was removed.

    Args:
        lower: the lower pod.
        cluster_id: identity of the upper cluster.
        upper: metadata of the upper pod.
    """
    return bool(
        lower.labels.get(names.LABEL_UPPER_UID) == upper["uid"]
        or lower.annotations.get(names.ANNOTATION_MADE_FOR) == made_for(cluster_id, upper)
    )


def proof_of_mirroring(lower_uid: str, upper_uid: str) -> str:
    """Return the mark of an upper pod that has been mirrored: ``<lower uid>/<its own uid>``.

    A copy of the pod (restored from a backup, made of ``kubectl get -o yaml``) has another uid, so the mark that it
    brings along is not valid for it.
    """
    return f"{lower_uid}/{upper_uid}"


def mirrored_as(mark: str | None, upper_uid: str) -> str:
    """Return the lower uid in a valid mark of an upper pod, else an empty string.

    The upper pod's user can write it: use it only to decide about that upper pod, never to recognise a lower one.
    """
    lower_uid, _, whose = (mark or "").partition("/")
    return lower_uid if whose == upper_uid else ""


def is_owned(labels: Mapping[str, str] | None, cluster_id: str) -> bool:
    """Return whether a lower object was made for that upper cluster, whichever its namespace there."""
    return bool(labels) and labels.get(names.LABEL_UPPER_CLUSTER) == cluster_id  # type: ignore[union-attr]


def is_owned_by(lower: Marked, cluster_id: str, upper_namespace: str, *, upper_uid: str = "") -> bool:
    """Return whether a lower object was made for an object in that namespace of that upper cluster.

    Ask before every write to, and deletion of, a lower object that was found by its name: two upper namespaces may lead
    to one lower namespace.

    Args:
        lower: the lower object.
        cluster_id: identity of the upper cluster.
        upper_namespace: namespace of the upper object. A lower object without the annotation counts as made for it.
        upper_uid: uid of the upper object, where there is one: a lower object with it in its label was made for it,
            whatever somebody did to the annotation.
    """
    if not is_owned(lower.labels, cluster_id):
        return False
    if upper_uid and lower.labels.get(names.LABEL_UPPER_UID) == upper_uid:
        return True
    return lower.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, upper_namespace) == upper_namespace
