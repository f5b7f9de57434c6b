"""The requirements of a lower pod for its node, with its topology spread constraints and pod (anti-)affinity terms. No IO.

Sources: kube-scheduler's plug-ins PodTopologySpread, InterPodAffinity and NodeDeclaredFeatures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import declared_features, names
from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import is_sidecar
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.matching import REQUIRED
from multi_scheduler.state.cluster import limits

NamespaceLabels = Mapping[str, Mapping[str, str]]
"""Labels of a lower cluster's namespaces by name; empty: they cannot be read."""
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_EVERYTHING = [{"operator": "Exists"}]
_HARD = "DoNotSchedule"


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A required pod (anti-)affinity term."""

    topology_key: str
    namespaces: frozenset[str]
    selects: matching.Matcher | None
    """The namespaceSelector; None: there is none."""
    reads_labels: bool
    """Whether the namespaceSelector refers to other labels than the one with the namespace's name."""
    matches: matching.Matcher

    def is_known(self, namespaces: NamespaceLabels) -> bool:
        """Report whether ``covers`` can be evaluated with these labels."""
        return bool(namespaces) or not self.reads_labels

    def covers(self, namespace: str, namespaces: NamespaceLabels) -> bool:
        """Report whether the term applies to pods in a namespace."""
        if namespace in self.namespaces:
            return True
        if self.selects is None:
            return False
        return self.selects({_NAMESPACE_NAME: namespace, **namespaces.get(namespace, {})})


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """A required topology spread constraint over ``kubernetes.io/hostname``."""

    max_skew: int
    min_domains: int
    """With fewer eligible nodes than this, the lowest count of matching pods is taken as 0."""
    counts: matching.Matcher
    """Decides by its labels whether an existing pod counts."""
    counts_itself: bool
    """Whether the pod itself counts where it is placed."""
    domain_key: str
    domain_spec: Mapping[str, Any]
    """Requirements that select the nodes of the constraint, by nodeAffinityPolicy and nodeTaintsPolicy."""


def required_terms(
    spec: Mapping[str, Any], kind: str, namespace: str, *, topology_key: str = ""
) -> tuple[Term, ...]:
    """Return the required terms of one kind of pod affinity, within the limits of terms.

    Args:
        spec: the pod's spec.
        kind: ``podAffinity`` or ``podAntiAffinity``.
        namespace: the pod's namespace.
        topology_key: return only terms with this key; empty: all terms.
    """
    terms = ((spec.get("affinity") or {}).get(kind) or {}).get(REQUIRED) or ()
    return tuple(
        Term(
            topology_key=term.get("topologyKey") or "",
            namespaces=frozenset(term.get("namespaces") or _own(term, namespace)),
            selects=None if (selector := term.get("namespaceSelector")) is None else _compiled(selector),
            reads_labels=not _label_keys(selector or {}) <= {_NAMESPACE_NAME},
            matches=_compiled(_of_any_cluster(term.get("labelSelector"))),
        )
        for term in _within_limits(
            term for term in terms if not topology_key or term.get("topologyKey") == topology_key
        )
    )


def hard_constraints(
    above: Mapping[str, Any], labels: Mapping[str, str], below: Mapping[str, Any]
) -> tuple[Spread, ...]:
    """Return the required topology spread constraints over hosts, within the limits of terms.

    Args:
        above: spec of the pod.
        labels: labels of the pod.
        below: nodeSelector, affinity and tolerations of the lower pod.
    """
    required = (
        constraint
        for constraint in above.get("topologySpreadConstraints") or ()
        if constraint.get("topologyKey") == names.LABEL_HOSTNAME
        and constraint.get("whenUnsatisfiable", _HARD) == _HARD
    )
    found = []
    for constraint in _within_limits(required):
        selector = _of_revision(constraint, labels)
        matches = _compiled(selector)
        honors = constraint.get("nodeAffinityPolicy", "Honor") == "Honor"
        domain = {
            "nodeSelector": below["nodeSelector"] if honors else {},
            "affinity": below["affinity"] if honors else {},
            "tolerations": (
                below["tolerations"] if constraint.get("nodeTaintsPolicy") == "Honor" else _EVERYTHING
            ),
        }
        found.append(
            Spread(
                max_skew=int(constraint.get("maxSkew") or 1),
                min_domains=int(constraint.get("minDomains") or 1),
                # kube-scheduler counts no existing pod for an empty selector (countPodsMatchSelector), but the pod
                # itself (Filter).
                counts=matches if selector is None or limits.selector_size(selector) else _no_pod,
                counts_itself=matches(labels),
                domain_key=limits.cache_key(domain),
                domain_spec=domain,
            )
        )
    return tuple(found)


def _within_limits(terms: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first terms or constraints, up to the limits for terms."""
    kept: list[Mapping[str, Any]] = []
    size = 0
    for term in terms:
        size += sum(limits.selector_size(term.get(field)) for field in ("labelSelector", "namespaceSelector"))
        if len(kept) == limits.MOST_TERMS or size > limits.MOST_POD_REQUIREMENTS:
            break
        kept.append(term)
    return kept


def _own(term: Mapping[str, Any], namespace: str) -> list[str]:
    """Return the pod's namespace, unless the term has a namespaceSelector."""
    return [namespace] if term.get("namespaceSelector") is None else []


def _of_revision(constraint: Mapping[str, Any], labels: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the labelSelector with matchLabelKeys merged in; apiservers from 1.34 on merge them themselves."""
    selector = constraint.get("labelSelector")
    keys = [key for key in constraint.get("matchLabelKeys") or () if key in labels][: limits.MOST_TERMS]
    if selector is None or not keys:
        return selector
    mine = [{"key": key, "operator": "In", "values": [labels[key]]} for key in keys]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *mine]}


def _of_any_cluster(selector: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a labelSelector for the lower pods of all upper clusters, because the identity of this one is unknown.

    Terms of lower pods select only the pods of their upper cluster (``clusterset.model.pod.affinity_terms``).
    """
    expressions = (selector or {}).get("matchExpressions") or ()
    if selector is None or not any(
        expression.get("key") == names.LABEL_UPPER_CLUSTER for expression in expressions
    ):
        return selector
    loose = {"key": names.LABEL_UPPER_CLUSTER, "operator": "Exists"}
    kept = [
        loose if expression.get("key") == names.LABEL_UPPER_CLUSTER else expression
        for expression in expressions
    ]
    return {**selector, "matchExpressions": kept}


def _compiled(selector: Mapping[str, Any] | None) -> matching.Matcher:
    """Compile a selector: an absent one matches nothing, an empty one matches everything, an invalid one nothing."""
    if selector is None:
        return _no_pod
    try:
        return matching.compile_selector(selector)
    except ValueError:
        return _no_pod


def _no_pod(_labels: Mapping[str, str]) -> bool:
    return False


def _label_keys(selector: Mapping[str, Any]) -> set[str]:
    """Return the label keys that a LabelSelector refers to."""
    expressions = selector.get("matchExpressions") or ()
    return {*(selector.get("matchLabels") or ()), *(expression.get("key", "") for expression in expressions)}


Port = tuple[str, str, int]
"""Host IP (empty: all), protocol, port."""
_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - read, not bound
_HOST = names.LABEL_HOSTNAME


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """A pod's scheduling requirements."""

    uid: str
    name: str
    namespace: str
    """The lower namespace."""
    labels: Mapping[str, str]
    """The upper pod's labels, and the ownership label of lower pods with an empty value."""
    requests: Mapping[str, int]
    """By resource, including ``pods``; cpu in millicores, all else in base units. Without zeros."""
    spec: Mapping[str, Any]
    """nodeSelector, affinity and tolerations as ``matching.admits`` reads them, required node affinity of volumes, and required
    features."""
    key: str
    """Cache key of ``spec``: equal for pods that the same nodes admit."""
    ports: tuple[Port, ...] = ()
    anti_affinity: tuple[Term, ...] = ()
    affinity: tuple[Term, ...] = ()
    spread: tuple[Spread, ...] = ()


def demand(pod: Mapping[str, Any], volumes: Sequence[Mapping[str, Any]] = ()) -> Demand:
    """Return the requirements of a lower pod.

    Args:
        pod: the lower pod as ``ClusterRules`` admitted it, with the defaults of lower admission.
        volumes: ``spec.nodeAffinity.required`` of the lower volumes that the pod's claims are bound to.

    Raises:
        TooManyRequirementsError: there are too many requirements to compare them with all nodes.
    """
    metadata, lower = pod["metadata"], pod["spec"]
    namespace = metadata.get("namespace", "")
    labels = {**(metadata.get("labels") or {}), names.LABEL_UPPER_CLUSTER: ""}
    required = ((lower.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    spec: dict[str, Any] = {
        "nodeSelector": lower.get("nodeSelector") or {},
        "tolerations": lower.get("tolerations") or [],
        "affinity": {"nodeAffinity": {REQUIRED: required}} if required else {},
        "volumes": list(volumes),
    }
    if features := declared_features.required(lower):
        spec["features"] = features
    limits.check_size(spec, node_terms(spec))
    requests = {**pod_resources.pod_requests(lower), "pods": 1}
    return Demand(
        uid=metadata.get("uid", ""),
        name=metadata.get("name", ""),
        namespace=namespace,
        labels=labels,
        requests={name: count for name, count in requests.items() if count > 0},
        spec=spec,
        key=limits.cache_key(spec),
        ports=host_ports(lower),
        anti_affinity=required_terms(lower, "podAntiAffinity", namespace, topology_key=_HOST),
        affinity=required_terms(lower, "podAffinity", namespace, topology_key=_HOST),
        spread=hard_constraints(lower, labels, spec),
    )


def node_terms(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the required node selector terms of a ``Demand.spec``, also those of volumes."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    found = list(required.get("nodeSelectorTerms") or ())
    for volume in spec.get("volumes") or ():
        found += volume.get("nodeSelectorTerms") or ()
    return found


def host_ports(spec: Mapping[str, Any]) -> tuple[Port, ...]:
    """Return the host ports of a pod."""
    found = []
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            if kind == "initContainers" and not is_sidecar(container):
                continue
            for port in container.get("ports") or ():
                number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else 0)
                if number:
                    address = port.get("hostIP") or ""
                    found.append(
                        (
                            "" if address in _ALL_ADDRESSES else address,
                            port.get("protocol") or "TCP",
                            int(number),
                        )
                    )
    return tuple(found)


@dataclass(slots=True, eq=False)
class Placed:
    """A pod on a lower node, or a reservation of room there for a pod."""

    node: str
    requests: Mapping[str, int]
    ports: tuple[Port, ...] = ()
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    anti_affinity: tuple[Term, ...] = ()
    is_ending: bool = False
    """Whether the pod is being deleted: it still takes room and repels others, but does not count for topology spread."""
    devices: Sequence[int] = ()
    """Numbers of the node's devices from which the pod's divisible resource is taken. Empty: unknown."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of cpu and memory that are above the requests."""
    since: float = math.inf
    """When the lower scheduler bound the pod, in seconds since the epoch. Infinite for reservations."""


def placed_on(node: str, wanted: Demand) -> Placed:
    """Return a reservation of room on a lower node for a pod with these requirements."""
    return Placed(
        node=node,
        requests=wanted.requests,
        ports=wanted.ports,
        namespace=wanted.namespace,
        labels=wanted.labels,
        anti_affinity=wanted.anti_affinity,
    )
