"""The DNS settings of lower pods, which resolve names as in the upper cluster if there is a name server for them.

The lower kubelet would write the lower namespace and the lower cluster's domain to the pod's ``resolv.conf``. So a pod that
uses the cluster's DNS gets the policy ``None`` with a complete ``dnsConfig``. As in a kubelet, the ``dnsConfig`` of the
upper pod is added: its servers and domains come last, and its options win.

Source: kubelet ``pkg/kubelet/network/dns/dns.go``; limits: ``pkg/apis/core/validation``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterset.model.namespace_map import NamespaceConfig

_MOST_SERVERS = 3
_MOST_DOMAINS = 32
_LONGEST_DOMAINS = 2048
"""Maximum characters of all search domains with the spaces between them."""
_DEFAULT_OPTIONS = ({"name": "ndots", "value": "5"},)
"""Options that a kubelet writes for the cluster's DNS."""


def with_upper_names(spec: dict[str, Any], namespace: str, *, servers: Sequence[str], domain: str) -> None:
    """Make a lower pod spec, in place, resolve names as in the upper cluster; without servers it stays unchanged.

    Pods that do not use the cluster's DNS stay unchanged, too.

    Args:
        spec: spec of the lower pod.
        namespace: namespace of the upper pod.
        servers: addresses of name servers that know the names of the upper cluster.
        domain: DNS domain of the upper cluster.
    """
    if not servers or not _uses_cluster_dns(spec):
        return
    own = spec.get("dnsConfig") or {}
    domains = [f"{namespace}.svc.{domain}", f"svc.{domain}", domain, *(own.get("searches") or ())]
    options = {one["name"]: one for one in (*_DEFAULT_OPTIONS, *(own.get("options") or ()))}
    spec["dnsPolicy"] = "None"
    spec["dnsConfig"] = {
        "nameservers": _unique([*servers, *(own.get("nameservers") or ())])[:_MOST_SERVERS],
        "searches": _fitting(_unique(domains)),
        "options": list(options.values()),
    }


def renamed(namespaces: NamespaceConfig) -> str:
    """Return which settings give upper namespaces other names in the lower cluster; empty: none."""
    found = ["namespaces.prefix"] if namespaces.prefix else []
    if any(lower != upper for upper, lower in namespaces.map.items()):
        found.append("namespaces.map")
    return (
        f"{' and '.join(found)} {'change' if len(found) > 1 else 'changes'} the namespaces" if found else ""
    )


def _uses_cluster_dns(spec: Mapping[str, Any]) -> bool:
    """Report whether a kubelet would write the cluster's DNS to the pod's ``resolv.conf``."""
    match spec.get("dnsPolicy") or "ClusterFirst":
        case "ClusterFirstWithHostNet":
            return True
        case "ClusterFirst":
            return not spec.get("hostNetwork")
        case _:
            return False


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _fitting(domains: Sequence[str]) -> list[str]:
    """Return the first domains that the API server accepts, as a kubelet leaves out those beyond the limits."""
    fitting: list[str] = []
    length = -1
    for domain in domains[:_MOST_DOMAINS]:
        length += len(domain) + 1
        if length > _LONGEST_DOMAINS:
            break
        fitting.append(domain)
    return fitting
