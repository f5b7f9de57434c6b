"""The requirements of a lower pod for its node. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from clusterset.model.pod import pod_resources
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
    required = ((lower.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    spec: dict[str, Any] = {
        "nodeSelector": lower.get("nodeSelector") or {},
        "tolerations": lower.get("tolerations") or [],
        "affinity": {"nodeAffinity": {_REQUIRED: required}} if required else {},
        "volumes": list(volumes),
    }
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
        anti_affinity=pod_terms.required_terms(lower, "podAntiAffinity", namespace, topology_key=_HOST),
        affinity=pod_terms.required_terms(lower, "podAffinity", namespace, topology_key=_HOST),
        spread=pod_terms.hard_constraints(lower, labels, spec),
    )


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
