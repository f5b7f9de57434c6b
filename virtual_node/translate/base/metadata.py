"""Labels and annotations of lower objects: what is copied, our record of it, and patches that keep what others set.

Admission, network plugins and the scheduler of the lower cluster change our objects, too. The annotation ``applied`` records a
digest of each value that we sent for a user, as ``kubectl apply`` records the last applied configuration. A value is sent again
only if it differs from the recorded value, so a value that was changed in the lower cluster stays until it changes in the upper
cluster. A key that the lower cluster had set before we sent it is not ours, and stays. Our own labels and annotations, which
prove ownership, are always restored.

The ``managedFields`` of an API server cannot replace the record: what admission changes in our request counts as ours, a
binding is not recorded, and caches omit them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from clusterset.model import names
from clusterset.model.policy.config import MetadataRules
from clusterset.model.policy.copied_keys import KeyPatterns, allowed_metadata, of_controllers
from controller_runtime.apimachinery.decoding import decode

DEFAULT_RULES = MetadataRules()
"""``policy.metadata`` if it is not set."""
_NOT_OF_COPIES = (names.ANNOTATION_PLACEHOLDER, names.LABEL_TOKEN_OF, names.ANNOTATION_TOKEN_EXPIRES)
"""Keys that a copy must not have. The first marks a placeholder. Earlier releases copied the others from
users' objects."""
_FIELDS = ("labels", "annotations")
_DIGEST = 6
"""Bytes of a digest, eight characters: each object in the cache has one for each label and annotation."""
_UNKNOWN = ""
"""Digest of a value that an earlier release sent."""
_to_compact_json = json.JSONEncoder(separators=(",", ":")).encode
"""``json.dumps`` would make an encoder for every object."""


def copied(kind: str, upper: Mapping[str, Any], rules: MetadataRules) -> dict[str, dict[str, str]]:
    """Return labels and annotations, by these names, of the copy of an object that is not a pod.

    Args:
        kind: the object's kind.
        upper: its metadata.
        rules: ``policy.metadata`` for its upper namespace.
    """
    return allowed_metadata(kind, upper.get("labels"), upper.get("annotations"), rules)._asdict()


def trip(labels: Mapping[str, str] | None, ignored: KeyPatterns) -> dict[str, str]:
    """Return the ignored labels (tensile-kube's ``tripped-labels``). They are not copied."""
    labels = labels or {}
    return {key: labels[key] for key in ignored.among(labels)}


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


def sent(metadata: Mapping[str, Any], *, own: Mapping[str, Collection[str]]) -> dict[str, dict[str, str]]:
    """Return the record of the labels and annotations that are sent for a user: digests of the values, by field and key.

    Args:
        metadata: labels and annotations that are sent.
        own: by field: keys of them that are ours.
    """
    return {
        field: {
            key: _digest(value)
            for key, value in sorted((metadata.get(field) or {}).items())
            if key not in own.get(field, ())
        }
        for field in _FIELDS
    }


def render_record(record: Mapping[str, Any]) -> str:
    """Return the value of the annotation ``applied``."""
    return _to_compact_json(record)


def metadata_patch(
    lower: Mapping[str, Any],
    desired: Mapping[str, Any],
    *,
    removable: Mapping[str, Collection[str]],
    recorded: Mapping[str, Any] | None = None,
    stays: Callable[[str, str], bool] = lambda _field, _key: False,
) -> dict[str, Any]:
    """Return a merge patch that sends labels and annotations that changed in the upper cluster, and restores ours.

    Args:
        lower: metadata of the lower object.
        desired: metadata as it would be created now, with the record of what is sent for the user. An annotation of None is
            removed.
        removable: by field: keys that are ours and that only some objects have.
        recorded: what was sent; None: as the lower object's record says.
        stays: reports for a field and key whether a value that an earlier release sent, without a digest, is not removed.
    """
    wanted_record = applied(desired)
    record = applied(lower) if recorded is None else recorded
    after, patch = dict(wanted_record), {}
    for field in _FIELDS:
        current, wanted = lower.get(field) or {}, dict(desired.get(field) or {})
        if field == "annotations":
            wanted.pop(names.ANNOTATION_APPLIED, None)
        known = recorded_digests(record, field)
        merged = _three_way(current, wanted, known, recorded_digests(wanted_record, field))
        change = merged.change
        for key, digest in known.items():
            is_unchanged = key in current and digest in (_UNKNOWN, _digest(current[key]))
            if is_unchanged and key not in wanted and not (digest == _UNKNOWN and stays(field, key)):
                change[key] = None
        change |= {key: None for key in removable.get(field, ()) if key in current and key not in wanted}
        if field in wanted_record or merged.sent:
            after[field] = merged.sent
        if change:
            patch[field] = change
    before, text = applied(lower), (lower.get("annotations") or {}).get(names.ANNOTATION_APPLIED)
    has_record = names.ANNOTATION_APPLIED in (desired.get("annotations") or {})
    is_lost = has_record and not before and text != render_record(after)
    if is_lost or (before != after and (patch or not _is_recorded(before, after))):
        patch.setdefault("annotations", {})[names.ANNOTATION_APPLIED] = render_record(after)
    return patch


class _Merged(NamedTuple):
    """The result of a three-way merge."""

    change: dict[str, Any]
    sent: dict[str, str]
    """Digests of the user's values that were sent, by key."""


def _three_way(
    current: Mapping[str, str],
    wanted: Mapping[str, Any],
    before: Mapping[str, str],
    of_user: Mapping[str, str],
) -> _Merged:
    """Compare what the lower object has, what it should have, and digests of what was sent before and is sent now."""
    merged = _Merged({}, {})
    for key, value in wanted.items():
        is_same = current.get(key) == value
        if key not in of_user:
            is_sent = not is_same
        elif key in before:
            is_sent = not is_same and before[key] != of_user[key]
            merged.sent[key] = of_user[key]
        elif is_same or key not in current:
            is_sent = not is_same
            merged.sent[key] = of_user[key]
        else:
            continue  # the lower cluster has set it first
        if is_sent:
            merged.change[key] = value
    return merged


def recorded_digests(record: Mapping[str, Any], field: str) -> dict[str, str]:
    """Return a record's digests by key. Earlier releases recorded a list of keys, without digests."""
    keys = record.get(field)
    if isinstance(keys, dict):
        return {key: digest for key, digest in keys.items() if isinstance(digest, str)}
    return {key: _UNKNOWN for key in keys if isinstance(key, str)} if isinstance(keys, list) else {}


def left_as_changed(lower: Mapping[str, Any], desired: Mapping[str, Any]) -> list[str]:
    """Return the fields of a lower object's metadata that ``metadata_patch`` leaves as the lower cluster has set them.

    Args:
        lower: metadata of the lower object.
        desired: metadata as it would be created now.
    """
    record = applied(desired)
    differing = [
        (field, key)
        for field in _FIELDS
        for key in sorted(recorded_digests(record, field))
        if (lower.get(field) or {}).get(key) != (desired.get(field) or {}).get(key)
    ]
    patch = metadata_patch(lower, desired, removable={}) if differing else {}
    return [f"metadata.{field}[{key}]" for field, key in differing if key not in patch.get(field, {})]


def _is_recorded(record: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Report whether a record need not be written again.

    That of an earlier release, without digests, is written with the next change, and not for all objects at an upgrade.
    """
    return record.keys() == after.keys() and all(
        {*value} == {*after[field]} if isinstance(value, list) and field in _FIELDS else value == after[field]
        for field, value in record.items()
    )


def _digest(value: Any) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(str(value).encode()).digest()[:_DIGEST]).decode()


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
    own = {"labels": labels, "annotations": annotations}
    record = {field: keys for field, keys in sent(kept, own=own).items() if keys}
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
            names.ANNOTATION_APPLIED: render_record(record),
        },
    }


def of_earlier_release(
    kind: str, lower: Mapping[str, Any], upper: Mapping[str, Any]
) -> dict[str, list[str]] | None:
    """Return the record of a copy that an earlier release created without one; None: the copy has a record.

    What the copy has as the upper object has was copied, except the keys of controllers: those of the lower cluster
    write the same values.

    Args:
        kind: kind of the copy.
        lower: metadata of the copy.
        upper: metadata of the upper object; empty: there is none.
    """
    if names.ANNOTATION_APPLIED in (lower.get("annotations") or {}):
        return None
    theirs = of_controllers(kind)
    return {
        field: [
            key
            for key, value in (upper.get(field) or {}).items()
            if current.get(key) == value and key not in theirs
        ]
        for field in _FIELDS
        if (current := lower.get(field) or {})
    }


def copy_metadata_patch(
    kind: str, lower: Mapping[str, Any], desired: Mapping[str, Any], upper: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a merge patch as ``metadata_patch`` does, for a copy that is not a pod.

    Args:
        kind: kind of the copy.
        lower: metadata of the copy.
        desired: what it should be.
        upper: metadata of the upper object; empty: there is none.
    """
    recorded = of_earlier_release(kind, lower, upper)
    removable = dict.fromkeys(_FIELDS, _NOT_OF_COPIES)
    patch = metadata_patch(lower, desired, removable=removable, recorded=recorded)
    if names.LABEL_NODE in (lower.get("labels") or {}) and names.LABEL_NODE in patch.get("labels", {}):
        # Virtual nodes of one upper cluster share copies, so the name of the first one stays.
        del patch["labels"][names.LABEL_NODE]
        patch = {field: change for field, change in patch.items() if change}
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
