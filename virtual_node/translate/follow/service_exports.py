"""The lower copy of a ServiceExport, so that a multi-cluster service implementation connects the lower clusters (KEP-1645).

An export has the name and namespace of its Service. Its status belongs to each cluster, so it is not copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtual_node.translate.base.metadata import copied
from virtual_node.translate.base.view import NOT_NEEDED, Translation, View

_METADATA = {"exportedLabels": "labels", "exportedAnnotations": "annotations"}
"""Fields of ``spec``, which ServiceImports get as labels and annotations."""


def service_of(name: str, _labels: Mapping[str, str]) -> str:
    """Return the name of the Service that is exported, given the name and labels of the export."""
    return name


def lower_export(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of a ServiceExport; no content if its Service has no copy in the lower cluster.

    Exported labels and annotations follow ``policy.metadata``, as if they were those of the copy.
    """
    metadata, spec = upper["metadata"], upper.get("spec") or {}
    if not view.has_service(metadata["namespace"], metadata["name"]):
        return NOT_NEEDED
    exported = {field: spec.get(name) for name, field in _METADATA.items()}
    kept = copied(upper["kind"], exported, view.rules_of(metadata["namespace"]))
    below = {name: kept[field] for name, field in _METADATA.items() if kept[field]}
    ignored = sorted(spec.keys() - _METADATA.keys())
    notes = (f"{', '.join(ignored)} is left out",) if ignored else ()
    return Translation({"spec": below} if below else {}, notes)
