"""Decide which changes of a running pod the policy of its lower cluster allows.

A change may not add a violation. Violations that the running pod already has do not make other changes fail.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model.policy import pod_annotations
from clusterset.model.policy.decision import Violation, violations
from clusterset.model.policy.findings import DEBUG_CONTAINERS
from clusterset.model.policy.rules import Effective, field_of
from clusterset.model.policy.scheduling import keep_off_control_plane
from virtual_node.translate.pods.update import without_annotations, without_note

Patch = Mapping[str, Any]


class ChangePolicy:
    """The policy for changes of one lower pod.

    Args:
        lower: the current lower pod.
        rules: the rules for the pod's upper namespace.
    """

    def __init__(self, lower: Mapping[str, Any], rules: Effective) -> None:
        self._lower = lower
        self._rules = rules

    def debug_containers(
        self, added: Sequence[Patch], requested: Sequence[Patch]
    ) -> tuple[list[Patch], list[Violation]]:
        """Return the debug containers that are allowed, and the violations of the others.

        Each one is allowed or refused alone, because users cannot remove a refused one.

        Args:
            added: debug containers that the lower pod does not have.
            requested: the same without overrides, to which the policy applies; empty: there are no overrides.
        """
        if not added:
            return [], []
        refused = self._new_violations("spec", {"ephemeralContainers": requested or added})
        # All debug containers are checked in one call. One call for each would take quadratic time, and a pod can
        # have thousands.
        forbidden = {one.field.removeprefix(DEBUG_CONTAINERS).partition("]")[0] for one in refused}
        if any(not one.field.startswith(DEBUG_CONTAINERS) for one in refused):
            return [], refused
        return [container for container in added if container["name"] not in forbidden], refused

    def annotations(self, patch: Patch, requested: Patch) -> tuple[Patch, list[Violation]]:
        """Return a patch of metadata and spec without forbidden annotations, and the violations of these.

        Each annotation is allowed or refused alone, and its removal is always allowed.

        Args:
            patch: the patch.
            requested: the patch without overrides, to which the policy applies.
        """
        sent, wanted = ((part.get("metadata") or {}).get("annotations") for part in (patch, requested))
        if not sent or not wanted:
            return patch, []
        carried = {key: value for key, value in {**self._annotations, **wanted}.items() if value is not None}
        refused = self._new_violations("metadata", {"annotations": carried})
        fields = {one.field for one in refused}
        own = {key for key in wanted if key in sent and sent[key] == wanted[key]}
        forbidden = {key for key in own if pod_annotations.field_of(key) in fields}
        return without_annotations(patch, forbidden, self._annotations), refused

    def spec(self, patch: Patch, requested: Patch) -> tuple[Patch, list[Violation]]:
        """Return a patch of metadata and spec without a forbidden spec, and its violations.

        The changes of the spec are allowed or refused together. The lower pod's annotation does not record a refused
        change as requested, so the change is tried again.

        Args:
            patch: the patch.
            requested: the patch without overrides, to which the policy applies.
        """
        if not patch.get("spec"):
            return patch, []
        current = self._lower["spec"]
        of_user = _patched(current, requested.get("spec") or {})
        refused = [
            *self._new_violations("spec", of_user),
            *self._opens_control_plane(_patched(current, patch["spec"])),
        ]
        if not refused:
            return patch, []
        kept = {field: change for field, change in patch.items() if field != "spec"}
        return without_note(kept, self._annotations), refused

    @property
    def _annotations(self) -> Mapping[str, str]:
        return self._lower["metadata"].get("annotations") or {}

    @functools.cached_property
    def _before(self) -> set[Violation]:
        return set(violations(self._lower, self._rules))

    def _new_violations(self, field: str, changed: Mapping[str, Any]) -> list[Violation]:
        """Return the violations that the lower pod would have after a change of its spec or metadata, and has not now."""
        after = violations({**self._lower, field: {**self._lower[field], **changed}}, self._rules)
        return [one for one in after if one not in self._before]

    def _opens_control_plane(self, changed: Mapping[str, Any]) -> list[Violation]:
        """Return a violation if new tolerations would let a pod that is not bound yet run on control-plane nodes.

        A new pod with such tolerations gets an affinity that excludes these nodes, but the affinity of an
        existing pod cannot change.
        """
        spec = {**self._lower["spec"], **changed}
        is_bound = bool(spec.get("nodeName"))
        if "tolerations" not in changed or is_bound or keep_off_control_plane(spec, self._rules) == spec:
            return []
        source = self._rules.sources["control_plane"]
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
