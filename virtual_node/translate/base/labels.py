"""Labels left out of lower objects (tensile-kube's ``tripped-labels``), and the record of the labels that we set."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from controller_runtime.api import names
from controller_runtime.api.decoding import decode


def trip(labels: Mapping[str, str] | None, ignored: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split labels into those to copy to the lower cluster, and the ignored ones that have a value."""
    labels = labels or {}
    tripped = {key: labels[key] for key in ignored if labels.get(key)}
    return {key: value for key, value in labels.items() if key not in tripped}, tripped


def restore(labels: Mapping[str, str] | None, annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Return a lower pod's labels plus the labels left out of it (annotation ``tripped-labels``)."""
    restored = dict(labels or {})
    text = (annotations or {}).get(names.ANNOTATION_TRIPPED_LABELS)
    if text:
        try:
            tripped = decode(text)
        except ValueError:
            return restored
        if isinstance(tripped, dict):
            restored |= {str(key): str(value) for key, value in tripped.items()}
    return restored


def render(tripped: Mapping[str, str]) -> str:
    """Return the value of the ``tripped-labels`` annotation."""
    return json.dumps(dict(tripped), sort_keys=True, separators=(",", ":"))


def record(labels: Mapping[str, str]) -> str:
    """Return the value of the ``applied`` annotation: the labels that we set on an object, with their values."""
    return json.dumps({"labels": dict(labels)}, sort_keys=True, separators=(",", ":"))


def recorded(metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the labels in the ``applied`` annotation of metadata; None: it is missing or unreadable."""
    try:
        found = decode((metadata.get("annotations") or {})[names.ANNOTATION_APPLIED])
        return {str(key): str(value) for key, value in found["labels"].items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
