"""Translation of a lower object's events to events of the upper object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime.api import names

_CARRIED = (
    "reason",
    "message",
    "type",
    "count",
    "firstTimestamp",
    "lastTimestamp",
    "eventTime",
    "series",
    "action",
    "reportingComponent",
    "reportingInstance",
)

_NAME_LENGTH = 230
"""Characters of an upper object's name in the name of an event, which may have 253."""


def name_suffix(lower_uid: str) -> str:
    """Return the part of the upper event's name after the last dot, given the lower event's uid."""
    return lower_uid.replace("-", "")[:16]


def upper_event(
    lower_event: Mapping[str, Any], upper: Mapping[str, Any], *, node_name: str
) -> dict[str, Any]:
    """Return the event to create in the upper cluster for a lower event.

    Its name is derived from the lower event's uid, so that an event that the watch delivers twice is created
    once.

    Args:
        lower_event: a core/v1 Event about the lower object.
        upper: the upper object.
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
        "fieldPath": (lower_event.get("involvedObject") or {}).get("fieldPath"),
    }
    source = lower_event.get("source")
    source = {**(source if isinstance(source, dict) else {}), "host": node_name}
    if not source.get("component"):
        source["component"] = lower_event.get("reportingComponent") or "lower-cluster"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{_beginning(metadata['name'])}.{name_suffix(lower_event['metadata'].get('uid', ''))}",
            "namespace": metadata["namespace"],
            "labels": {names.LABEL_NODE: node_name},
        },
        "involvedObject": {field: value for field, value in reference.items() if value},
        "source": source,
        **{field: value for field in _CARRIED if (value := lower_event.get(field)) is not None},
    }


def _beginning(name: str) -> str:
    """Return a name with room for a suffix; before the suffix's dot, it must not end with another or with a hyphen."""
    return name[:_NAME_LENGTH].rstrip("-.")
