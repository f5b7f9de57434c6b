"""A pod's requirements for a lower node, as the lower pod will have them. No IO.

As in the virtual node's translation, the pod's own node selectors only choose the virtual node and do not apply in the
lower cluster. There, the fields of a ``clusterSelector`` annotation apply instead, if the pod has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model import cluster_selector, names
from clusterset.model.overrides.applying import CompiledOverride, applied
from clusterset.model.pod import pod_resources
from clusterset.model.policy.rules import Effective
from clusterset.model.policy.scheduling import keep_off_control_plane
from multi_scheduler.state.cluster import limits, pod_terms
from multi_scheduler.state.cluster.pod_terms import Spread, Term

Port = tuple[str, str, int]
"""Host IP (empty: all), protocol, port."""
_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - read, not bound
_HOST = names.LABEL_HOSTNAME
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


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
        pod: the upper pod with its lower namespace, lower affinity terms, overrides and defaults, as in ``GateResult.pod``.
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
    namespace = metadata.get("namespace", "")
    labels = {**(metadata.get("labels") or {}), names.LABEL_UPPER_CLUSTER: ""}
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
        labels=labels,
        requests={name: count for name, count in requests.items() if count > 0},
        spec=spec,
        key=limits.cache_key(spec),
        ports=host_ports(above),
        anti_affinity=pod_terms.required_terms(above, "podAntiAffinity", namespace, topology_key=_HOST),
        affinity=pod_terms.required_terms(above, "podAffinity", namespace, topology_key=_HOST),
        spread=pod_terms.hard_constraints(above, labels, spec),
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
