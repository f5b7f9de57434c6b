"""Decide which changes of a running pod the policy of its lower cluster allows.

A change may not add a violation. Violations that the running pod already has do not make other changes fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterset.model.policy import pod_annotations
from clusterset.model.policy.decision import Violation, violations
from clusterset.model.policy.findings import DEBUG_CONTAINERS
from clusterset.model.policy.rules import Effective, field_of
from clusterset.model.policy.scheduling import keep_off_control_plane
from virtual_node.translate.pods.update import PodChanges, without_annotations, without_note


def allowed_changes(
    lower: Mapping[str, Any], changes: PodChanges, rules: Effective, requested: PodChanges | None = None
) -> tuple[PodChanges, list[Violation]]:
    """Return the allowed part of the changes, and the violations that the refused part would add.

    Each debug container is allowed or refused alone, because users cannot remove a refused one. All other
    changes of the spec are allowed or refused together. The lower pod's annotation does not record a refused
    spec change as requested, so the change is tried again. Each annotation is allowed or refused alone, and
    its removal is always allowed.

    Args:
        lower: the current lower pod.
        changes: the result of ``pod_patch``.
        rules: the rules for the pod's upper namespace.
        requested: the changes without overrides, to which the policy applies; None: there are no
            overrides, so ``changes`` is used.
    """
    requested = requested or changes
    asked = requested.metadata_and_spec or {}
    before: set[Violation] | None = None

    def added(field: str, changed: Mapping[str, Any]) -> list[Violation]:
        nonlocal before
        if before is None:
            before = set(violations(lower, rules))
        after = violations({**lower, field: {**lower[field], **changed}}, rules)
        return [one for one in after if one not in before]

    refused: list[Violation] = []
    if debugging := changes.ephemeral_containers:
        debuggers = (requested.ephemeral_containers or debugging)["spec"]["ephemeralContainers"]
        found = added("spec", {"ephemeralContainers": debuggers})
        refused += found
        # All debug containers are checked in one call. One call for each would take quadratic time, and a pod can
        # have thousands.
        forbidden = {one.field.removeprefix(DEBUG_CONTAINERS).partition("]")[0] for one in found}
        is_of_pod = any(not one.field.startswith(DEBUG_CONTAINERS) for one in found)
        allowed = [
            container
            for container in debugging["spec"]["ephemeralContainers"]
            if not is_of_pod and container["name"] not in forbidden
        ]
        patch = {"spec": {"ephemeralContainers": allowed}} if allowed else None
        changes = replace(changes, ephemeral_containers=patch)
    main = changes.metadata_and_spec or {}
    current = lower["metadata"].get("annotations") or {}
    sent = (main.get("metadata") or {}).get("annotations")
    if sent and (wanted := (asked.get("metadata") or {}).get("annotations")):
        carried = {key: value for key, value in {**current, **wanted}.items() if value is not None}
        found = added("metadata", {"annotations": carried})
        refused += found
        fields = {one.field for one in found}
        own = {key for key in wanted if key in sent and sent[key] == wanted[key]}
        main = without_annotations(
            main, {key for key in own if pod_annotations.field_of(key) in fields}, current
        )
        changes = replace(changes, metadata_and_spec=main)
    if spec := main.get("spec"):
        changed = _patched(lower["spec"], spec)
        of_user = _patched(lower["spec"], asked.get("spec") or {})
        found = [*added("spec", of_user), *_opens_control_plane(lower["spec"], changed, rules)]
        refused += found
        if found:
            kept = {field: change for field, change in main.items() if field != "spec"}
            changes = replace(changes, metadata_and_spec=without_note(kept, current))
    return changes, refused


def _opens_control_plane(
    current: Mapping[str, Any], changed: Mapping[str, Any], rules: Effective
) -> list[Violation]:
    """Return a violation if new tolerations would let a pod that is not bound yet run on control-plane nodes.

    A new pod with such tolerations gets an affinity that excludes these nodes, but the affinity of an
    existing pod cannot change.
    """
    spec = {**current, **changed}
    if "tolerations" not in changed or spec.get("nodeName") or keep_off_control_plane(spec, rules) == spec:
        return []
    source = rules.sources["control_plane"]
    rule = field_of("control_plane")
    return [Violation(rule, "spec.tolerations", "every taint", "no control-plane nodes", source)]


def _patched(current: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec fields that a patch of ``pod_patch`` changes, with their new values."""
    changed: dict[str, Any] = {}
    for field, value in patch.items():
        if field in {"containers", "initContainers"}:
            images = {container["name"]: container for container in value}
            changed[field] = [
                {**container, **images.get(container["name"], {})} for container in current.get(field) or ()
            ]
        else:
            changed[field] = value
    return changed
