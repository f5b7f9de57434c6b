"""Whole copies of upper objects, and their patches, for tests of translations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model.policy.config import MetadataRules
from virtual_node.translate.base.metadata import DEFAULT_RULES
from virtual_node.translate.base.view import Translation, View
from virtual_node.translate.kinds import KINDS

BY_NAME = {kind.kind: kind for kind in KINDS}


def view_of(
    namespace: str = "shop", *, cluster_id: str = "upper-1", rules: MetadataRules = DEFAULT_RULES, **more: Any
) -> View:
    """Return a lower cluster with one namespace, one pod in it, and a copy of every Service."""
    return View(
        cluster_id=cluster_id, nodes=("vn",), lower_namespace=lambda _upper: namespace,
        rules_of=lambda _upper: rules, **{"has_service": lambda _namespace, _name: True, "pods": lambda _namespace: [{}], **more},
    )  # fmt: skip


def lower_copy(kind: str, upper: Mapping[str, Any], view: View | None = None) -> dict[str, Any]:
    """Return the copy of an object that has one."""
    copy = BY_NAME[kind].copy_of(upper, view or view_of())
    assert copy is not None
    annotations = copy["metadata"]["annotations"]
    copy["metadata"]["annotations"] = {key: text for key, text in annotations.items() if text is not None}
    return copy


def patch(
    kind: str, current: Mapping[str, Any], desired: Mapping[str, Any], upper: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the patch that makes a copy equal to the desired one."""
    return BY_NAME[kind].patch(current, desired, upper)


def parts(translation: Translation) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    """Return ``spec``, notes and Secrets of a translation."""
    return translation.spec, translation.notes, translation.secrets
