"""Translation of a lower object's events to events of the upper object.

A copy is built from known fields with bounded sizes (``fields``), because a hostile lower API server sends anything,
and lower users write events of a megabyte. ``reduced`` bounds an event before it waits for its copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from clusterset.model import names
from virtual_node.translate.base import fields

_MESSAGE = 1024
"""Maximum bytes of a message: the limit of events.k8s.io, at which client-go's recorders cut, too."""
_WORD = 128
"""Maximum bytes of reason, action and component: the limit of events.k8s.io."""
_word = fields.text(_WORD)
_CARRIED_FIELDS = {
    "reason": _word,
    "message": fields.text(_MESSAGE),
    "count": fields.count,
    "firstTimestamp": fields.moment,
    "lastTimestamp": fields.moment,
    "eventTime": fields.moment,
    "series": fields.fields({"count": fields.count, "lastObservedTime": fields.moment}, required=("count",)),
    "action": _word,
    "reportingComponent": _word,
    "reportingInstance": _word,
}
_CARRIED = fields.fields(_CARRIED_FIELDS)
_field_path = fields.word(_WORD)
_reference = {field: fields.word(fields.LONGEST_NAME) for field in ("namespace", "name", "uid")}
_KEPT = fields.fields(
    {
        "metadata": fields.fields({field: _reference[field] for field in ("namespace", "uid")}),
        "involvedObject": fields.fields({**_reference, "fieldPath": _field_path}),
        "source": fields.fields({"component": _word}),
        "type": fields.choice("Normal", "Warning"),
        **_CARRIED_FIELDS,
    }
)
_NAME_LENGTH = 230
"""Characters of an upper object's name in the name of an event, which may have 253."""


def name_suffix(lower_uid: str) -> str:
    """Return the part of the upper event's name after the last dot, given the lower event's uid.

    It is a hash, because an existing event of this name is overwritten: a hostile lower API server chooses the uid, and
    other components name their events ``<object>.<16 hexadecimal digits>``.
    """
    return hashlib.sha256(lower_uid.encode("utf-8", "replace")).hexdigest()[:20]


def reduced(lower_event: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a lower event that ``upper_event`` reads, a few KiB; None: its uid is invalid or too long."""
    kept: dict[str, Any] = _KEPT(lower_event) or {}
    if not _object(kept, "metadata").get("uid"):
        return None
    return {field: value for field, value in kept.items() if value is not None}


def upper_event(
    lower_event: Mapping[str, Any], upper: Mapping[str, Any], *, node_name: str
) -> dict[str, Any]:
    """Return the event to create in the upper cluster for a lower event.

    Its name is derived from the lower event's uid, so that an event that the watch delivers twice is created
    once.

    Args:
        lower_event: a core/v1 Event about the lower object, complete or reduced.
        upper: apiVersion, kind and metadata of the upper object.
        node_name: the virtual node, shown as the source's host.
    """
    metadata = upper["metadata"]
    reference = {
        "apiVersion": upper["apiVersion"],
        "kind": upper["kind"],
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "resourceVersion": metadata.get("resourceVersion"),
        "fieldPath": _field_path(_object(lower_event, "involvedObject").get("fieldPath")),
    }
    carried = {field: value for field, value in (_CARRIED(lower_event) or {}).items() if value is not None}
    component = _word(_object(lower_event, "source").get("component"))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{_beginning(metadata['name'])}.{name_suffix(str(lower_event['metadata'].get('uid', '')))}",
            "namespace": metadata["namespace"],
            "labels": {names.LABEL_NODE: node_name},
        },
        "involvedObject": {field: value for field, value in reference.items() if value},
        "source": {
            "component": component or carried.get("reportingComponent") or "lower-cluster",
            "host": node_name,
        },
        "type": "Warning" if lower_event.get("type") == "Warning" else "Normal",
        **carried,
    }


def _object(event: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = event.get(field)
    return value if isinstance(value, Mapping) else {}


def _beginning(name: str) -> str:
    """Return a name with room for a suffix; before the suffix's dot, it must not end with another or with a hyphen."""
    return name[:_NAME_LENGTH].rstrip("-.")
