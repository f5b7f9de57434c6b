"""The rule about annotations: programs in the lower cluster act on some, for example to grant an identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clusterset.model import names
from clusterset.model.policy.config import AnnotationRules
from clusterset.model.policy.findings import FieldValue
from clusterset.model.policy.rules import matches

_OURS = frozenset(
    {
        names.ANNOTATION_CLUSTER_SELECTOR,
        names.ANNOTATION_TRIPPED_LABELS,
        names.ANNOTATION_UNSCHEDULABLE_NODE,
        names.ANNOTATION_DESCHEDULE_COUNT,
        names.ANNOTATION_GLOBAL,
    }
)
"""Annotations that only this project reads. Other rules check what they request."""


def field_of(key: str) -> str:
    """Return the field of an annotation, as violations name it."""
    return f"metadata.annotations[{key}]"


def check(pod: Mapping[str, Any], allowed: AnnotationRules) -> Iterator[FieldValue]:
    """Yield the annotations that are not allowed; those that stay in the upper cluster are skipped."""
    for key, value in (pod["metadata"].get("annotations") or {}).items():
        if key in _OURS or key in names.UPPER_ONLY_ON_PODS or names.is_reserved(key):
            continue
        if not matches(key, allowed.allow) or matches(key, allowed.deny):
            yield field_of(key), value or "empty"
