"""A pod's requirements for a lower node, as the lower pod will have them. No IO.

As in the virtual node's translation, the pod's own node selectors only choose the virtual node and do not apply in the
lower cluster. There, the fields of a ``clusterSelector`` annotation apply instead, if the pod has one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller_runtime.api import cluster_selector, matching, names
from controller_runtime.api.overrides.applying import CompiledOverride, applied
from controller_runtime.api.pod import pod_resources
from controller_runtime.api.policy.rules import Effective
from controller_runtime.api.policy.scheduling import keep_off_control_plane
from multi_scheduler.fit.cluster import limits

Port = tuple[str, str, int]
"""Host IP (empty: all), protocol, port."""
NamespaceLabels = Mapping[str, Mapping[str, str]]
"""Labels of a lower cluster's namespaces by name; empty: they cannot be read."""
_LONGEST_KEY = 1000
"""Characters of a cache key; longer ones are hashed."""
_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - read, not bound
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_EVERYTHING = [{"operator": "Exists"}]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
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


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """A pod's scheduling requirements."""

    uid: str
    name: str
    namespace: str
    """The lower namespace."""
    labels: Mapping[str, str]
    requests: Mapping[str, int]
    """By resource, including ``pods``; cpu in millicores, all else in base units. Without zeros."""
    spec: Mapping[str, Any]
    """nodeSelector, affinity and tolerations as ``matching.admits`` reads them, and required node affinity of volumes."""
    key: str
    """Cache key of ``spec``: equal for pods that the same nodes admit."""
    ports: tuple[Port, ...] = ()
    anti_affinity: tuple[Term, ...] = ()
    affinity: tuple[Term, ...] = ()
    spread: tuple[Spread, ...] = ()


def demand(
    pod: Mapping[str, Any],
    rules: Effective | None = None,
    overrides: Sequence[CompiledOverride] = (),
    *,
    node_name: str,
    node_labels: Mapping[str, str],
    pool: Mapping[str, str] | None = None,
    volumes: Sequence[Mapping[str, Any]] = (),
) -> Demand:
    """Return the requirements of an upper pod for the nodes behind a virtual node.

    Args:
        pod: the upper pod with its lower namespace, overrides and defaults, as in ``GateResult.pod``.
        rules: the lower cluster's policy for the pod, which may exclude control-plane nodes.
        overrides: the lower cluster's overrides for the pod, already applied to its containers.
        node_name: name of the virtual node.
        node_labels: labels of the virtual node.
        pool: labels of the lower nodes that the virtual node represents; empty: all.
        volumes: ``spec.nodeAffinity.required`` of the lower volumes that the pod's claims are bound to.

    Raises:
        TooManyRequirementsError: there are too many requirements to compare them with all nodes.
    """
    metadata, above = pod["metadata"], pod["spec"]
    selector = cluster_selector.of(metadata.get("annotations"), names.ANNOTATION_CLUSTER_SELECTOR)
    own: Mapping[str, str] = {}
    required = None
    if selector is not None:
        selector = cluster_selector.resolve(selector, node_name=node_name, node_labels=node_labels)
        own = selector.get("nodeSelector") or {}
        required = ((selector.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
        tolerations = selector.get("tolerations") or []
    else:
        tolerations = [
            one for one in above.get("tolerations") or () if one.get("key") != names.TAINT_PROVIDER
        ]
    lower = {"metadata": {}, "spec": {"nodeSelector": own, "tolerations": tolerations}}
    lower_spec = applied(lower, overrides)["spec"]
    own = lower_spec["nodeSelector"]
    required = _both(required, own, pool or {})
    spec: dict[str, Any] = {
        "nodeSelector": {**own, **(pool or {})},
        "tolerations": lower_spec["tolerations"],
    }
    spec["affinity"] = {"nodeAffinity": {_REQUIRED: required}} if required else {}
    spec["volumes"] = list(volumes)
    if rules is not None:
        spec = keep_off_control_plane(spec, rules)
    limits.check_size(spec, node_terms(spec))
    requests = {**pod_resources.pod_requests(above), "pods": 1}
    return Demand(
        uid=metadata.get("uid", ""),
        name=metadata.get("name", ""),
        namespace=metadata.get("namespace", ""),
        labels=metadata.get("labels") or {},
        requests={name: count for name, count in requests.items() if count > 0},
        spec=spec,
        key=_key(spec),
        ports=host_ports(above),
        anti_affinity=required_terms(
            above, "podAntiAffinity", metadata.get("namespace", ""), topology_key=names.LABEL_HOSTNAME
        ),
        affinity=required_terms(
            above, "podAffinity", metadata.get("namespace", ""), topology_key=names.LABEL_HOSTNAME
        ),
        spread=_spread(above, metadata.get("labels") or {}, spec),
    )


def _both(
    required: Mapping[str, Any] | None, own: Mapping[str, str], pool: Mapping[str, str]
) -> Mapping[str, Any] | None:
    """Add to the required affinity the nodeSelector entries that the pool's labels replace, so that both apply."""
    overruled = [
        {"key": key, "operator": "In", "values": [own[key]]}
        for key, value in pool.items()
        if own.get(key, value) != value
    ]
    if not overruled:
        return required
    terms = (required or {}).get("nodeSelectorTerms") or [{}]
    return {
        "nodeSelectorTerms": [
            {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *overruled]}
            for term in terms
        ]
    }


def node_terms(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the required node selector terms of a ``Demand.spec``, also those of volumes."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    found = list(required.get("nodeSelectorTerms") or ())
    for volume in spec.get("volumes") or ():
        found += volume.get("nodeSelectorTerms") or ()
    return found


def host_ports(spec: Mapping[str, Any]) -> tuple[Port, ...]:
    """Return the host ports of a pod."""
    found = []
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            if kind == "initContainers" and container.get("restartPolicy") != "Always":
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
    terms = ((spec.get("affinity") or {}).get(kind) or {}).get(_REQUIRED) or ()
    return tuple(
        Term(
            topology_key=term.get("topologyKey") or "",
            namespaces=frozenset(term.get("namespaces") or _own(term, namespace)),
            selects=None if (selector := term.get("namespaceSelector")) is None else _compiled(selector),
            reads_labels=not _label_keys(selector or {}) <= {_NAMESPACE_NAME},
            matches=_compiled(term.get("labelSelector")),
        )
        for term in _within_limits(
            term for term in terms if not topology_key or term.get("topologyKey") == topology_key
        )
    )


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


def _spread(
    above: Mapping[str, Any], labels: Mapping[str, str], below: Mapping[str, Any]
) -> tuple[Spread, ...]:
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
                domain_key=_key(domain),
                domain_spec=domain,
            )
        )
    return tuple(found)


def _of_revision(constraint: Mapping[str, Any], labels: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the labelSelector with matchLabelKeys merged in; apiservers from 1.34 on merge them themselves."""
    selector = constraint.get("labelSelector")
    keys = [key for key in constraint.get("matchLabelKeys") or () if key in labels][: limits.MOST_TERMS]
    if selector is None or not keys:
        return selector
    mine = [{"key": key, "operator": "In", "values": [labels[key]]} for key in keys]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *mine]}


def _key(spec: Mapping[str, Any]) -> str:
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    if len(text) > limits.MOST_CHARACTERS:
        raise limits.TooManyRequirementsError(
            f"the node selectors and tolerations of the pod have {len(text)} characters as JSON, and the limit is "
            f"{limits.MOST_CHARACTERS}"
        )
    return text if len(text) <= _LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()


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
    return {*(selector.get("matchLabels") or ()), *(one.get("key", "") for one in expressions)}
