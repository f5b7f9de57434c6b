"""Labels and annotations of lower objects: what is copied, our record of it, and patches that keep what others set."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from clusterset.model import names
from clusterset.model.policy.config import MetadataRules
from clusterset.model.policy.copied_keys import allowed_metadata
from controller_runtime.apimachinery.decoding import decode

DEFAULT_RULES = MetadataRules()
"""``policy.metadata`` if it is not set."""


def carried(values: Mapping[str, str] | None, *, without: Collection[str] = ()) -> dict[str, str]:
    """Return labels or annotations of an upper pod to copy to its lower pod.

    Args:
        values: labels or annotations of the upper pod. Reserved keys are never copied.
        without: further keys that are not copied.
    """
    return {
        key: value
        for key, value in (values or {}).items()
        if key not in without and not names.is_reserved(key)
    }


def copied(kind: str, upper: Mapping[str, Any], rules: MetadataRules) -> dict[str, dict[str, str]]:
    """Return labels and annotations, by these names, of the copy of an object that is not a pod.

    Args:
        kind: the object's kind.
        upper: its metadata.
        rules: ``policy.metadata`` for its upper namespace.
    """
    return allowed_metadata(kind, upper.get("labels"), upper.get("annotations"), rules)._asdict()


def trip(labels: Mapping[str, str] | None, ignored: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split labels into those to copy, and the ignored ones that have a value (tensile-kube's ``tripped-labels``)."""
    labels = labels or {}
    tripped = {key: labels[key] for key in ignored if labels.get(key)}
    return {key: value for key, value in labels.items() if key not in tripped}, tripped


def render_tripped(tripped: Mapping[str, str]) -> str:
    """Return the value of the ``tripped-labels`` annotation."""
    return json.dumps(dict(tripped), sort_keys=True, separators=(",", ":"))


def record_labels(labels: Mapping[str, str]) -> str:
    """Return the value of the ``applied`` annotation: the labels that we set on an object, with their values."""
    return json.dumps({"labels": dict(labels)}, sort_keys=True, separators=(",", ":"))


def recorded_labels(metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the labels that ``record_labels`` recorded; None: the annotation is missing or unreadable."""
    found = applied(metadata).get("labels")
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else None


def applied(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the annotation ``applied``; empty: it is missing, or another client changed it."""
    try:
        found = decode((metadata.get("annotations") or {}).get(names.ANNOTATION_APPLIED, "{}"))
    except ValueError:  # the next patch writes it again
        return {}
    return found if isinstance(found, dict) else {}


def map_patch(
    current: Mapping[str, Any] | None, wanted: Mapping[str, Any] | None, removable: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a merge patch that sets the wanted entries and removes the others that are removable."""
    current, wanted = current or {}, wanted or {}
    patch: dict[str, Any] = {key: value for key, value in wanted.items() if current.get(key) != value}
    for key in removable:
        if key in current and key not in wanted:
            patch[key] = None
    return patch


def metadata_patch(
    lower: Mapping[str, Any], desired: Mapping[str, Any], optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return a merge patch that sets the desired labels and annotations, and removes others that we set earlier.

    Args:
        lower: metadata of the lower object.
        desired: metadata that it should have.
        optional: our annotations that only some objects have, and that ``applied`` does not record.
    """
    ours = applied(lower)
    patch = {}
    for field, more in (("labels", ()), ("annotations", optional)):
        removable = chain(ours.get(field) or (), more)
        if change := map_patch(lower.get(field), desired.get(field), removable):
            patch[field] = change
    return patch


def object_patch(
    lower: Mapping[str, Any], desired: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a merge patch with the changes and the ``metadata_patch`` of an object; None: nothing changes."""
    metadata = metadata_patch(lower["metadata"], desired["metadata"])
    return {**changes, **({"metadata": metadata} if metadata else {})} or None
