"""Decides whether a lower cluster takes an upper pod, and computes the scheduling fields of the pod there. No IO.

The virtual node creates the pods that are admitted here, and the multi-scheduler asks before a pod is bound. So a pod is
never promised to a cluster that refuses it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from clusterset.config import PV_CONTROLLERS, Cluster
from clusterset.model import cluster_selector, names, namespace_map
from clusterset.model.namespace_map import NEVER_MIRRORED, NamespaceMap
from clusterset.model.overrides import OverrideSet, applied
from clusterset.model.pod import resource_claims
from clusterset.model.pod.affinity_terms import Reach, UpperNamespaces
from clusterset.model.pod.conditions import claim_names
from clusterset.model.pod.lower_spec import depends_on_cluster, lower_spec
from clusterset.model.pod.spec_fields import not_mirrored
from clusterset.model.policy.copied_keys import TOPOLOGY, IgnoredKeys, KeyPatterns
from clusterset.model.policy.decision import Violation, summary, violations
from clusterset.model.policy.rules import Effective, PolicySet
from clusterset.model.policy.scheduling import keep_off_control_plane
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.translation_budget import TranslationBudget


def within(spec: dict[str, Any], pool: Mapping[str, str]) -> dict[str, Any]:
    """Return a lower pod's spec restricted to nodes of the pool.

    Args:
        spec: the lower pod's spec.
        pool: labels of the pool's nodes; empty: all nodes of the lower cluster belong to it.
    """
    return {**spec, "nodeSelector": {**(spec.get("nodeSelector") or {}), **pool}} if pool else spec


def contradiction(spec: Mapping[str, Any], pool: Mapping[str, str], *, node_name: str, cluster: str) -> str:
    """Return why no node of the pool can run a lower pod; empty: nodeSelector and pool do not conflict.

    They conflict if both require the same label with different values.

    Args:
        spec: the lower pod's spec, before ``within``.
        pool: labels of the pool's nodes.
        node_name: the virtual node.
        cluster: the lower cluster.
    """
    selector = spec.get("nodeSelector") or {}
    others = [key for key in pool if key in selector and selector[key] != pool[key]]
    if not others:
        return ""
    wanted = ", ".join(f"{key}={selector[key]}" for key in others)
    has = ", ".join(f"{key}={pool[key]}" for key in others)
    return (
        f"0 nodes of lower cluster {cluster} are available: the pod selects nodes with {wanted} (nodeSelector of its "
        f"clusterSelector), virtual node {node_name} stands for those with {has} only (nodeSelector in its "
        "configuration). Have the pod choose another virtual node, or change one of the two"
    )


class TargetNode(Protocol):
    """The virtual node that a pod is bound to."""

    @property
    def name(self) -> str:
        """Return the name of the node."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the node, against which clusterSelectors are matched."""

    @property
    def pool(self) -> Mapping[str, str]:
        """Return the labels of the lower nodes that the node represents; empty: all nodes of the lower cluster."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a lower cluster does not run a pod."""

    reason: str
    violations: tuple[Violation, ...] = ()
    """Fields of the pod that the policy forbids; empty: the policy is not the cause."""
    is_unschedulable: bool = False
    """Whether the pod may run in the cluster, but not on the nodes of the virtual node's pool."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A pod that a lower cluster takes."""

    requested: dict[str, Any]
    """The lower pod's spec as the user requests it: fields for the lower scheduler, all else as in the upper pod."""
    pod: dict[str, Any]
    """The upper pod with its lower namespace, and with ``requested`` as the operator changes it: with overrides, kept off
    control-plane nodes and in the pool of the virtual node."""
    rules: Effective
    """The policy for the pod's upper namespace."""
    key: str
    """Cache key: equal for the same pod in clusters that give it the same spec."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A pod that a policy allowed."""

    pod: Mapping[str, Any]
    will_select: str
    rules: Effective
    requested: dict[str, Any]
    """The lower spec that the policy was asked about."""
    is_same: bool
    """Whether clusters with these rules have the same lower spec for the pod."""
    lower: dict[Hashable, tuple[dict[str, Any], str]] = field(default_factory=dict)
    """The pod with overrides and on the allowed nodes, and its ``Admitted.key``, by pool and overrides. The lower namespace
    is not set."""


class LastVerdict:
    """The last verdict of a policy that allowed a pod. Clusters share it, because most clusters have the same policy."""

    def __init__(self) -> None:
        self.last: _Verdict | None = None

    def find(self, pod: Mapping[str, Any], rules: Effective, will_select: str) -> _Verdict | None:
        """Return the verdict of equal rules about this pod; None: it is not the last one."""
        last = self.last
        if last is None or last.pod is not pod or last.will_select != will_select:
            return None
        return last if last.rules.values == rules.values else None


@dataclass(eq=False, repr=False)
class ClusterRules:
    """The parts of a lower cluster's configuration that decide which pods run there, and how."""

    config: Cluster
    """Configuration of the lower cluster."""
    _: KW_ONLY
    controllers: Collection[str]
    """``enableControllers`` of the virtual node."""
    cluster_id: str = ""
    """Identity of the upper cluster; empty: unknown."""
    upper_namespaces: UpperNamespaces | None = None
    """Labels of the upper namespaces, for affinity terms; None: there are none."""
    ignored: IgnoredKeys = field(default_factory=IgnoredKeys)
    """Labels and annotations of upper pods that lower pods do not get."""
    last_verdict: LastVerdict | None = None
    """Shared with the rules of other clusters; None: no verdict is reused."""

    def __post_init__(self) -> None:
        """Compile selectors, policy and overrides."""
        self.cluster, self._namespaces = self.config.name, self.config.namespaces
        self.namespace_map = NamespaceMap(self.config.namespaces.prefix, self.config.namespaces.map)
        self.policy = PolicySet(
            self.config.policy, cluster=self.config.name, host_paths=self.config.volumes.allowed_host_paths
        )
        self.overrides = OverrideSet(self.config.overrides)
        self.changed_labels = KeyPatterns(
            (*sorted(self.overrides.labels), *self.ignored.labels.patterns, *sorted(TOPOLOGY))
        )
        self.reach = Reach(
            UpperNamespaces() if self.upper_namespaces is None else self.upper_namespaces,
            self.namespace_map,
            self.config.namespaces.allowed,
            self.cluster_id,
            self.changed_labels,
        )
        self._selects = matching.compile_selector(self.config.pod_selector)
        self._takes_resource_claims = self.config.resource_claims.enabled
        self._takes_volume_claims = PV_CONTROLLERS in self.controllers

    def admit(
        self,
        pod: Mapping[str, Any],
        node: TargetNode,
        budget: TranslationBudget | None = None,
        *,
        will_select: str = "",
    ) -> Admitted | Refusal:
        """Return the pod that the lower cluster gets for an upper pod, or why it gets none.

        Args:
            pod: the upper pod.
            node: the virtual node that the pod is bound to.
            budget: the pod's budget, shared by all functions that translate it; None: a new budget.
            will_select: label of lower nodes that the pod will select when it is bound; empty: none.

        Raises:
            TooLargeError: the translation exceeds the budget. ``too_large`` returns the reason for users.
        """
        budget = budget or TranslationBudget()
        if why := self._ineligible(pod):
            return Refusal(why)
        selector = cluster_selector.of(pod["metadata"].get("annotations"), names.ANNOTATION_CLUSTER_SELECTOR)
        if why := self.reach.refusal(cluster_selector.with_anti_affinity(pod["spec"], selector)):
            return Refusal(f"Lower cluster {self.cluster} does not take the pod: {why}")
        verdict = self._verdict(pod, node, budget, will_select)
        return verdict if isinstance(verdict, Refusal) else self._placed(verdict, node, budget)

    def _ineligible(self, pod: Mapping[str, Any]) -> str:
        """Return why an upper pod is not created in this cluster, apart from the policy; empty: there is no such reason."""
        metadata = pod["metadata"]
        namespace = metadata.get("namespace", "")
        if namespace == NEVER_MIRRORED:
            return f"Pods in {namespace} are not mirrored to lower clusters; keep this pod off virtual nodes"
        if not namespace_map.allowed(namespace, self._namespaces.allowed):
            return (
                f"Lower cluster {self.cluster} takes no pods of namespace {namespace} "
                "(namespaces.allowed in the virtual node's configuration)"
            )
        if not self._selects(metadata.get("labels") or {}):
            return (
                f"Lower cluster {self.cluster} does not take pods with these labels "
                "(podSelector in the virtual node's configuration)"
            )
        # Also checked here, because without the webhook a pod with an invalid selector would run on any lower node.
        if why := cluster_selector.refusal(metadata.get("annotations"), names.ANNOTATION_CLUSTER_SELECTOR):
            return why
        if why := self._claims_refusal(pod):
            return why
        return not_mirrored(pod)

    def _claims_refusal(self, pod: Mapping[str, Any]) -> str:
        """Return why a pod is refused because of its ResourceClaims or PersistentVolumeClaims; empty: it is not."""
        if why := resource_claims.invalid(pod):
            return f"{why}; correct or remove the annotation"
        if not self._takes_resource_claims and resource_claims.references(pod):
            return (
                f"Pods with resourceClaims are not mirrored to lower cluster {self.cluster}: set "
                "resourceClaims.enabled of this cluster in the virtual node's configuration, or keep this pod off "
                "virtual nodes"
            )
        # Generic ephemeral volumes have claims, too. A claim's name would mean an unmanaged lower claim.
        if not self._takes_volume_claims and claim_names(pod):
            return (
                f"Pods with PersistentVolumeClaims are not mirrored to lower cluster {self.cluster}: add "
                f"{PV_CONTROLLERS} to enableControllers in the virtual node's configuration, or keep this pod off "
                "virtual nodes"
            )
        return ""

    def _verdict(
        self, pod: Mapping[str, Any], node: TargetNode, budget: TranslationBudget, will_select: str
    ) -> _Verdict | Refusal:
        """Return the policy's verdict about a pod, which may be the last one."""
        rules = self.policy.of(pod["metadata"].get("namespace", ""))
        known = self.last_verdict.find(pod, rules, will_select) if self.last_verdict is not None else None
        if known is not None and known.is_same:
            return known
        requested = lower_spec(
            pod, rules, node_name=node.name, node_labels=node.labels, reach=self.reach, budget=budget
        )
        if known is not None and requested == known.requested:
            return known
        checked = requested
        if will_select:  # the policy checks only the key
            selector = {**(requested.get("nodeSelector") or {}), will_select: ""}
            checked = {**requested, "nodeSelector": selector}
        if found := violations({**pod, "metadata": self._sent(pod["metadata"]), "spec": checked}, rules):
            reason = f"Lower cluster {self.cluster} does not take the pod: {summary(found)}"
            return Refusal(reason, tuple(found))
        is_same = self.last_verdict is not None and not depends_on_cluster(pod)
        verdict = _Verdict(pod, will_select, rules, requested, is_same=is_same)
        if self.last_verdict is not None:
            self.last_verdict.last = verdict
        return verdict

    def _sent(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the metadata of an upper pod without the labels and annotations that ``ignore`` keeps in the upper cluster."""
        sent = dict(metadata)
        for kind, ignored in self.ignored._asdict().items():
            texts = metadata.get(kind) or {}
            if kept := ignored.among(texts):
                sent[kind] = {key: texts[key] for key in texts.keys() - kept}
        return sent

    def _placed(self, verdict: _Verdict, node: TargetNode, budget: TranslationBudget) -> Admitted | Refusal:
        """Return the lower pod of a pod that the policy allows, or why the virtual node has no lower node for it."""
        pod = verdict.pod
        overrides = self.overrides.of(pod)
        changes = (*node.pool.items(), *(override.key for override in overrides))
        if (known := verdict.lower.get(changes)) is None:
            # The virtual node applies overrides again, to the complete lower pod, and that counts.
            lower = applied({**pod, "spec": verdict.requested}, overrides, budget.copy())
            if why := contradiction(lower["spec"], node.pool, node_name=node.name, cluster=self.cluster):
                return Refusal(why, is_unschedulable=True)
            spec = lower["spec"] = on_allowed_nodes(lower["spec"], verdict.rules, node.pool)
            key = repr([*map(spec.get, ("nodeSelector", "affinity", "tolerations")), changes])
            known = verdict.lower[changes] = lower, key
        lower, key = known
        namespace = self.namespace_map(pod["metadata"].get("namespace", ""))
        lower = {**lower, "metadata": {**lower["metadata"], "namespace": namespace}}
        return Admitted(verdict.requested, lower, verdict.rules, key)

    def too_large(self, error: Exception) -> str:
        """Return why a pod is refused, for users, if its translation or the request to create it is too large."""
        return f"Lower cluster {self.cluster} cannot take the pod: {error}"

    def namespace_refusal(
        self, namespace: str, upper: str, marks: Sequence[tuple[str, str]]
    ) -> NamespaceRefusal | None:
        """Return why an existing lower namespace must not be used for an upper one; None: it may. One valid mark suffices.

        Args:
            namespace: name of the lower namespace.
            upper: name of the upper namespace.
            marks: of the lower namespace, as ``namespace_map.marks`` returns them.
        """
        for owner, recorded in marks:
            is_ours = not self.cluster_id or owner == self.cluster_id
            if is_ours and (recorded == upper or (not recorded and len(marks) == 1)):
                return None
        if marks:
            owner, recorded = marks[-1]
            if self.cluster_id and owner != self.cluster_id:
                return self._taken(namespace, f"a namespace of another upper cluster ({owner})")
            return self._taken(namespace, f"upper namespace {recorded}, not {upper}")
        if rival := self.namespace_map.conflicting_upper(upper):
            return self._taken(namespace, f"upper namespace {rival}, not {upper}")
        if namespace_map.adopts(namespace, self._namespaces.adopt):
            return None
        text = (
            f"Namespace {namespace} exists in lower cluster {self.cluster} and was not created by virtual-node. "
            "Create the pod in another namespace, which the lower cluster does not have. Or, as an administrator: to use this "
            "namespace, add it to clusters[].namespaces.adopt of this lower cluster (--adopt-namespaces without a "
            "configuration file); to keep all apart, set clusters[].namespaces.prefix"
        )
        return NamespaceRefusal(text, is_taken=False)

    def _taken(self, namespace: str, made_for: str) -> NamespaceRefusal:
        text = (
            f"Namespace {namespace} in lower cluster {self.cluster} stands for {made_for}; upper namespaces never share a "
            "lower one. Set another clusters[].namespaces.prefix or namespaces.map for this lower cluster"
        )
        return NamespaceRefusal(text, is_taken=True)


@dataclass(frozen=True, slots=True)
class NamespaceRefusal:
    """The reason why an existing lower namespace is not used for an upper one."""

    reason: str
    is_taken: bool
    """Whether it stands for another upper namespace or upper cluster; otherwise virtual-node did not create it."""


def on_allowed_nodes(spec: dict[str, Any], rules: Effective, pool: Mapping[str, str]) -> dict[str, Any]:
    """Return a lower pod's spec restricted to the nodes that the policy allows, and to the pool of its virtual node."""
    return within(keep_off_control_plane(spec, rules), pool)
