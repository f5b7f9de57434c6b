"""Decides which pods the configuration keeps out of a lower cluster, before any object is created for them."""

from __future__ import annotations

from typing import Any

from controller_runtime.api import cluster_selector, matching, names
from controller_runtime.api.namespace_map import NEVER_MIRRORED
from controller_runtime.api.pods import claim_names
from controller_runtime.api.policy.decision import summary, violations
from controller_runtime.api.policy.rules import Effective
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.translate.pods import references


class Eligibility:
    """The part of a lower cluster's configuration that decides which pods may run there."""

    def __init__(self, context: ClusterContext, namespaces: Namespaces, *, has_volumes: bool) -> None:
        """Compile the pod selector.

        Args:
            context: of the lower cluster.
            namespaces: decides which upper namespaces are allowed.
            has_volumes: whether PersistentVolumeClaims are mirrored.
        """
        self._context = context
        self._namespaces = namespaces
        self._has_volumes = has_volumes
        self._selects = matching.compile_selector(context.config.pod_selector)

    def why_not(
        self, upper: Object, upper_pod: dict[str, Any], lower_pod: dict[str, Any], rules: Effective
    ) -> str:
        """Return why the configuration or the pod's own fields keep it out of this lower cluster; empty: it may run."""
        if upper.namespace == NEVER_MIRRORED:
            return f"Pods in {NEVER_MIRRORED} are not mirrored to lower clusters; keep this pod off virtual nodes"
        if not self._namespaces.allowed(upper.namespace):
            return (
                f"Lower cluster {self._context.name} takes no pods of namespace {upper.namespace} "
                "(namespaces.allowed in the virtual node's configuration)"
            )
        if not self._selects(upper.labels):
            return (
                f"Lower cluster {self._context.name} does not take pods with these labels "
                "(podSelector in the virtual node's configuration)"
            )
        # The webhook refuses it in pods that it sees; without the webhook the pod would run on any lower
        # node.
        if why := cluster_selector.refusal(upper.annotations, names.ANNOTATION_CLUSTER_SELECTOR):
            return why
        if what := references.not_mirrored(upper_pod):
            return (
                f"Pods with {what} are not mirrored to lower clusters: the object stays in the upper cluster; "
                "keep this pod off virtual nodes"
            )
        if not self._has_volumes and claim_names(upper_pod):
            return (
                f"Claims do not follow pods to lower cluster {self._context.name} "
                "(enableControllers in the virtual node's configuration lacks PVControllers)"
            )
        if found := violations(lower_pod, rules):
            return f"Lower cluster {self._context.name} does not take the pod: {summary(found)}"
        return ""
