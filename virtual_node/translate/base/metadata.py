"""Labels and annotations of lower objects: what is copied, our record of it, and patches that keep what others set."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from clusterset.model import names
from clusterset.model.key_patterns import KeyPatterns
from clusterset.model.policy.config import MetadataRules
from clusterset.model.policy.copied_keys import allowed_metadata
from controller_runtime.apimachinery.decoding import decode

DEFAULT_RULES = MetadataRules()
"""``policy.metadata`` if it is not set."""
_NOT_OF_COPIES = (names.ANNOTATION_PLACEHOLDER, names.LABEL_TOKEN_OF, names.ANNOTATION_TOKEN_EXPIRES)
"""Keys that a copy must not have. The first marks a placeholder. Earlier releases copied the others from
users' objects."""


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


def trip(values: Mapping[str, str] | None, ignored: KeyPatterns) -> tuple[dict[str, str], dict[str, str]]:
    """Split labels or annotations into those to copy, and the ignored ones (tensile-kube's ``tripped-labels``)."""
    values = values or {}
    tripped = {key: values[key] for key in ignored.among(values)}
    return {key: value for key, value in values.items() if key not in tripped}, tripped


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


def copy_metadata(
    kind: str,
    upper: Mapping[str, Any],
    *,
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str | None],
    rules: MetadataRules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Return the metadata of a lower copy: labels and annotations of the original, plus ownership.

    Args:
        kind: kind of the copy.
        upper: the original's metadata.
        name: the copy's name.
        namespace: the copy's namespace.
        labels: labels that override the original's.
        annotations: annotations that override the original's; None: the copy must not have the annotation.
        rules: ``policy.metadata`` for the upper namespace.
    """
    kept = copied(kind, upper, rules)
    record = {field: sorted(keys) for field, keys in kept.items() if keys}
    source = {names.ANNOTATION_SOURCE: upper["name"]} if name != upper["name"] else {}
    return {
        "name": name,
        "namespace": namespace,
        "labels": {**kept["labels"], **labels},
        "annotations": {
            **kept["annotations"],
            **source,
            **annotations,
            names.ANNOTATION_GLOBAL: "true",
            names.ANNOTATION_UPPER_NAMESPACE: upper["namespace"],
            names.ANNOTATION_APPLIED: json.dumps(record, sort_keys=True, separators=(",", ":")),
        },
    }


def copy_metadata_patch(
    lower: Mapping[str, Any], desired: Mapping[str, Any], upper: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a merge patch that makes the metadata of a copy equal to the desired one.

    Labels and annotations that other clients added in the lower cluster are kept.

    Args:
        lower: metadata of the copy.
        desired: what it should be.
        upper: metadata of the upper object; empty: there is none.
    """
    ours = applied(lower)
    has_record = names.ANNOTATION_APPLIED in (lower.get("annotations") or {})
    patch: dict[str, Any] = {}
    for field in ("labels", "annotations"):
        current, above = lower.get(field) or {}, upper.get(field) or {}
        # A copy of an earlier release has no record. What it has as the upper object has was copied.
        recorded = (
            ours.get(field) or () if has_record else [key for key in above if current.get(key) == above[key]]
        )
        change = map_patch(current, desired.get(field), chain(_NOT_OF_COPIES, recorded))
        if field == "labels" and names.LABEL_NODE in current:
            # Virtual nodes of one upper cluster share copies, so the name of the first one stays.
            change.pop(names.LABEL_NODE, None)
        if change:
            patch[field] = change
    return patch


def merge_patch(current: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON merge patch (RFC 7386); empty lists and maps, which servers omit, are equal to missing ones."""
    patch: dict[str, Any] = {key: None for key in current if key not in desired}
    for key, wanted in desired.items():
        found = current.get(key)
        if isinstance(found, Mapping) and isinstance(wanted, Mapping):
            if inner := merge_patch(found, wanted):
                patch[key] = inner
        elif found != wanted and not (found is None and wanted in ([], {})):
            patch[key] = wanted
    return patch
