"""The whole copy of a followed object, and the patch that makes an existing copy equal to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model import names
from clusterset.model.policy.config import MetadataRules
from virtual_node.translate.base.metadata import DEFAULT_RULES, object_patch
from virtual_node.translate.services.services import mirror_labels, mirrored_metadata


def copy_of(
    upper: Mapping[str, Any],
    *,
    name: str,
    namespace: str,
    cluster_id: str,
    spec: Mapping[str, Any],
    rules: MetadataRules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Return the lower object to create.

    Args:
        upper: the upper object.
        name: the name of the copy.
        namespace: the lower namespace.
        cluster_id: the upper cluster's identity, for the ownership label.
        spec: the translated ``spec``.
        rules: ``policy.metadata`` for the upper namespace.
    """
    above = upper["metadata"]
    labels = mirror_labels(cluster_id, above["uid"])
    metadata = mirrored_metadata(
        upper["kind"], above, name=name, namespace=namespace, labels=labels, rules=rules
    )
    if name != above["name"]:
        metadata["annotations"][names.ANNOTATION_SOURCE] = above["name"]
    return {
        "apiVersion": upper["apiVersion"],
        "kind": upper["kind"],
        "metadata": metadata,
        "spec": spec,
    }


def copy_patch(current: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch that makes a copy equal to the desired one; None: they are equal.

    Labels and annotations that other programs added to the copy are kept.
    """
    spec = _difference(current.get("spec") or {}, desired["spec"])
    return object_patch(current, desired, {"spec": spec} if spec else {})


def _difference(current: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON merge patch (RFC 7386)."""
    patch: dict[str, Any] = {key: None for key in current if key not in desired}
    for key, wanted in desired.items():
        found = current.get(key)
        if isinstance(found, Mapping) and isinstance(wanted, Mapping):
            if inner := _difference(found, wanted):
                patch[key] = inner
        elif found != wanted and not (
            found is None and wanted in ([], {})
        ):  # servers omit empty lists and maps
            patch[key] = wanted
    return patch
