"""Plans the changes that make a running lower pod match its upper pod, as far as its lower cluster's policy allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusterset.model import names
from clusterset.model.overrides.applying import OverrideSet
from clusterset.model.policy.decision import Violation, summary
from clusterset.model.policy.rules import Effective
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from controller_runtime.objects import Object
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.pods import update
from virtual_node.translate.pods.lower_pod import lower_pod, overridden
from virtual_node.translate.pods.policy import ChangePolicy
from virtual_node.translate.pods.update import PodChanges

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
