"""Whose is it? The labels that mark what was made below, and the test for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller_runtime.api import names


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


def proof_of_mirroring(lower_uid: str, upper_uid: str) -> str:
    """What an upper pod is marked with once it has a lower one: ``<lower uid>/<its own uid>``.

    A copy of the pod (restored from a backup, made of ``kubectl get -o yaml``) has another uid, so the mark that it
    brings along proves nothing.
    """
    return f"{lower_uid}/{upper_uid}"


def mirrored_as(mark: str | None, upper_uid: str) -> str:
    """Uid of the lower pod that an upper pod's mark proves; empty: it proves none."""
    lower_uid, _, whose = (mark or "").partition("/")
    return lower_uid if whose == upper_uid else ""


def is_owned(labels: Mapping[str, str] | None, cluster_id: str) -> bool:
    """Whether an object below was made for that upper cluster."""
    return bool(labels) and labels.get(names.LABEL_UPPER_CLUSTER) == cluster_id  # type: ignore[union-attr]
