"""Plans the changes that make a running lower pod match its upper pod, as far as its lower cluster's policy allows.

A change may not add a violation of the policy. Violations that the running pod already has do not make other changes fail.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterset.model import names
from clusterset.model.overrides import OverrideSet
from clusterset.model.policy import decision
from clusterset.model.policy.decision import Violation, summary, violations
from clusterset.model.policy.findings import DEBUG_CONTAINERS
from clusterset.model.policy.rules import Effective, field_of
from clusterset.model.policy.scheduling import keep_off_control_plane
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from controller_runtime.objects import Object
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.pods import update
from virtual_node.translate.pods.lower_pod import lower_pod, overridden
from virtual_node.translate.pods.update import PodChanges, without_annotations, without_note

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
        forbidden = {key for key in own if decision.annotation_field(key) in fields}
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


_FIRST_GENERATION = 1
"""Generation of a pod whose spec never changed since its creation (KEP-5067; 0 on API servers without it)."""


@dataclass(frozen=True, slots=True)
class SpecPlan:
    """The changes of a lower pod."""

    upper_pod: dict[str, Any]
    changes: PodChanges
    """The changes that the policy allows. Debug containers have no Service variables yet."""
    refused: list[Violation]
    """Why the other changes are not allowed."""
    budget: TranslationBudget
    """What is left for the Service variables."""

    @property
    def is_spec_refused(self) -> bool:
        """Report whether a change of the spec is not allowed."""
        return any(not one.field.startswith("metadata.") for one in self.refused)

    @property
    def refusal(self) -> str:
        """Return why changes are not allowed, for users; empty: all are allowed."""
        return f"its policy does not allow the change: {summary(self.refused)}" if self.refused else ""


def plan(
    above: Object, below: Object, options: PodOptions, rules: Effective, *, was_resized: bool = False
) -> SpecPlan:
    """Compare a lower pod with the translation of its upper pod.

    Args:
        above: the upper pod.
        below: the lower pod.
        options: translation options.
        rules: the policy for the upper namespace.
        was_resized: a resize was sent that the lower pod does not record as requested.

    Raises:
        TooLargeError: the translation exceeds its budget.
    """
    upper, lower, budget = above.to_dict(), below.to_dict(), TranslationBudget()
    requested = lower_pod(upper, options, budget)
    desired = overridden(requested, upper, options, budget)
    changes = update.pod_patch(lower, desired, upper, options, budget)
    main: Mapping[str, Any] = changes.metadata_and_spec or {}
    resize = changes.resize
    is_as_created = above.metadata.generation == _FIRST_GENERATION
    if not was_resized and update.is_already_requested(lower, desired, is_as_created=is_as_created):
        main, resize = update.without_spec(main), None
    # The policy applies to the changes without overrides.
    asked, asked_main = changes, main
    if names.ANNOTATION_OVERRIDES in desired["metadata"]["annotations"]:
        asked = update.pod_patch(lower, requested, upper, replace(options, overrides=OverrideSet()))
        asked_main = asked.metadata_and_spec or {}
    policy = ChangePolicy(lower, rules)
    debugging, of_debugging = policy.debug_containers(changes.debug_containers, asked.debug_containers)
    main, of_annotations = policy.annotations(main, asked_main)
    main, of_spec = policy.spec(main, asked_main)
    allowed = PodChanges(
        dict(main) or None, resize, {"spec": {"ephemeralContainers": debugging}} if debugging else None
    )
    return SpecPlan(upper, allowed, [*of_debugging, *of_annotations, *of_spec], budget)
