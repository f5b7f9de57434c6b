"""The API server that the programs of a lower pod use: it must be that of the cluster that issued their token.

Programs in a pod find the API server in two ways: most use the variables ``KUBERNETES_SERVICE_HOST`` and ``_PORT``, some
the name ``kubernetes.default.svc`` at port 443. A lower kubelet and the lower DNS answer both with the lower API server,
which refuses tokens of the upper cluster and has another CA. So a pod with upper tokens gets variables and ``hostAliases``
for the upper API server. The resolvers of all common C libraries and runtimes read the hosts file before DNS.

``service`` and ``endpoint_slice`` return the lower Service that leads pods to the upper API server at port 443.
Programs that use the name ``kubernetes.default.svc`` connect to port 443, but API servers often listen on another port.
Each lower namespace has a Service of its own, because the lower cluster's ``default/kubernetes`` is never changed, and
virtual-node has no other namespaces there.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from clusterset.model import names
from clusterset.model.pod.api_access import AUTO, SERVICE, UPPER, Choice, requested
from controller_runtime.objects import Object
from virtual_node.translate import services
from virtual_node.translate.base import ownership
from virtual_node.translate.base.fields import is_dns_name
from virtual_node.translate.endpoints import LABEL_MANAGED_BY, LABEL_SERVICE, MANAGED_BY
from virtual_node.translate.pods.service_account import token_requests
from virtual_node.translate.services import cluster_ip

NAME = "kubernetes.default.svc"
PORT = 443
"""Port of Service ``kubernetes``, which programs use if their URL has none."""
NOT_USABLE = "APIServerNotUsable"
"""Reason of the event of a pod that cannot use the upper API server because of the configuration or the certificate."""
MISMATCH = "APIServerMismatch"
"""Reason of the event of a pod whose settings give it the address of one cluster and a token of the other."""
_SHORT = "kubernetes.default"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where pods reach the upper API server."""

    host: str
    port: int
    ips: Sequence[str] = ()
    """IP addresses of ``host``, all of one family; empty: unknown."""
    service_ip: str = ""
    """IP address in the lower cluster where port 443 leads to the upper API server; empty: there is none."""
    uses_name: bool = False
    """Whether the certificate is valid for ``NAME``, but not for ``host``."""
    problem: str = ""
    """Why pods cannot use it, and what to do; empty: no reason is known."""

    @property
    def master(self) -> tuple[str, int]:
        """Return the values of ``KUBERNETES_SERVICE_HOST`` and ``_PORT``."""
        if not self.uses_name:
            return self.host, self.port
        return NAME, PORT if self.service_ip else self.port

    @property
    def ip(self) -> str:
        """Return the first IP address of ``host``; empty: unknown."""
        return self.ips[0] if self.ips else ""

    @property
    def named_ip(self) -> str:
        """Return the IP address for the names of the API server, which programs use with port 443; empty: unknown."""
        return self.service_ip or self.ip

    @property
    def may_change(self) -> bool:
        """Whether the IP addresses may change while pods run."""
        return not is_ip(self.host)

    @property
    def needs_service(self) -> bool:
        """Whether only a Service can provide an address that stays and port 443."""
        return bool(self.ips) and (self.may_change or self.port != PORT)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The API server of a pod."""

    upper: Endpoint | None = None
    """The upper API server; None: the lower kubelet and the lower DNS name the lower one."""
    problem: str = ""
    """Why the pod's token is not accepted there; empty: no reason is known."""
    reason: str = ""
    """Reason of an event with ``problem``."""


def may_use_upper(setting: Choice, *, identities: bool) -> bool:
    """Report whether pods without an annotation get the upper API server."""
    return setting == UPPER or (setting == AUTO and identities)


def assignment(
    pod: Mapping[str, Any], *, setting: Choice, identities: bool, endpoint: Endpoint
) -> Assignment:
    """Return the API server that a pod gets. A malformed annotation counts as missing.

    Args:
        pod: the upper pod.
        setting: ``kubernetesService``.
        identities: whether lower pods get tokens of the upper cluster.
        endpoint: where pods reach the upper API server.
    """
    choice = None
    with contextlib.suppress(ValueError):
        choice = requested(pod["metadata"].get("annotations") or {})
    source = "its annotation" if choice else f"kubernetesService: {setting}"
    chosen = choice or setting
    uses_token = identities and any(not request.audience for request in token_requests(pod))
    if not may_use_upper(chosen, identities=identities):
        mixed = (
            f"The pod gets a token of the upper cluster, but {source} gives it the address of the lower API server, which "
            "refuses the token. Use Auto, or automountServiceAccountToken: false if the pod does not use the API"
        )
        return Assignment(None, mixed, MISMATCH) if uses_token else Assignment()
    problem = endpoint.problem if uses_token else ""
    return Assignment(endpoint if endpoint.host else None, problem, NOT_USABLE if problem else "")


def with_host_aliases(spec: dict[str, Any], endpoint: Endpoint, namespace: str, *, domain: str) -> None:
    """Add the names of the API server to a lower pod's ``hostAliases``, in place; names that the pod defines are kept.

    Args:
        spec: of the lower pod.
        endpoint: where pods reach the upper API server.
        namespace: the upper namespace, in which ``kubernetes`` may be the name of a Service of the user.
        domain: DNS domain of the upper cluster. The API server refuses pods with aliases that are no DNS names.
    """
    aliases = spec.get("hostAliases") or []
    own = {name for alias in aliases for name in alias.get("hostnames") or ()}
    names = [NAME, *([f"{NAME}.{domain}"] if is_dns_name(domain) else []), _SHORT]
    names += ["kubernetes"] if namespace == SERVICE[0] else []
    added = [
        {"ip": ip, "hostnames": left}
        for ip, wanted in ((endpoint.named_ip, names), (endpoint.ip, _unqualified(endpoint.host)))
        if ip and (left := [name for name in wanted if name not in own])
    ]
    if added:
        spec["hostAliases"] = [*aliases, *added]


def alias(spec: Mapping[str, Any]) -> str:
    """Return the IP address of ``NAME`` in a pod's ``hostAliases``; empty: it has none."""
    aliases = spec.get("hostAliases") or ()
    return next((str(one.get("ip")) for one in aliases if NAME in (one.get("hostnames") or ())), "")


def _unqualified(host: str) -> list[str]:
    """Return the host if it is a name without a domain, which only the DNS or hosts file of the virtual node may know."""
    return [host] if host not in {"", "kubernetes"} and not is_ip(host) and "." not in host else []


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and the port of a URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (PORT if parts.scheme == "https" else 80)


def is_ip(host: str) -> bool:
    """Report whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_local(host: str) -> bool:
    """Report whether a host is reached only from this machine: a loopback, link-local or unspecified address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    if not is_ip(host):
        return False
    address = ipaddress.ip_address(host)
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_link_local or address.is_unspecified


def is_cluster_internal(host: str, cluster_ips: Collection[str]) -> bool:
    """Report whether a host is Service ``kubernetes`` of the upper cluster, which leads elsewhere in another cluster."""
    return host in cluster_ips or host in {NAME, _SHORT, "kubernetes"} or host.startswith(f"{NAME}.")


_PORT_NAME = "https"


def name_of(cluster_id: str) -> str:
    """Return the name of the Service and its EndpointSlice for an upper cluster."""
    return f"kubernetes-{hashlib.sha256(cluster_id.encode()).hexdigest()[:8]}"


def is_api_service(name: str, labels: Mapping[str, str]) -> bool:
    """Report whether a lower object with that name is such a Service or EndpointSlice, and not a copy."""
    cluster_id = labels.get(names.LABEL_UPPER_CLUSTER, "")
    return names.LABEL_API_SERVER in labels and bool(cluster_id) and name == name_of(cluster_id)


def is_ours(found: Object, cluster_id: str) -> bool:
    """Report whether a lower object is such a Service or EndpointSlice, also if only our label with the cluster is left.

    A copy of an upper object with that name has another label, with the uid of the upper object.
    """
    return (
        found.name == name_of(cluster_id)
        and ownership.is_owned(found.labels, cluster_id)
        and names.LABEL_UPPER_UID not in found.labels
    )


def service(cluster_id: str, *, namespace: str, upper_namespace: str, ip: str = "") -> dict[str, Any]:
    """Return the Service; ``ip``: the address to request, which running pods use; empty: any."""
    metadata = _metadata(cluster_id, namespace, upper_namespace)
    spec = {
        "type": "ClusterIP",
        "ipFamilyPolicy": "PreferDualStack",
        "ports": [{"name": _PORT_NAME, "protocol": "TCP", "port": PORT, "targetPort": PORT}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {**spec, "clusterIP": ip} if ip else spec,
    }


def endpoint_slice(
    cluster_id: str, *, namespace: str, upper_namespace: str, ips: Sequence[str], port: int
) -> dict[str, Any]:
    """Return the EndpointSlice with the addresses of the upper API server, all of one IP family."""
    metadata = _metadata(cluster_id, namespace, upper_namespace)
    metadata["labels"] |= {LABEL_SERVICE: metadata["name"], LABEL_MANAGED_BY: MANAGED_BY}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": "IPv6" if ":" in ips[0] else "IPv4",
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}} for ip in ips],
        "ports": [{"name": _PORT_NAME, "protocol": "TCP", "port": port}],
    }


def address(spec: Mapping[str, Any], ips: Sequence[str]) -> str:
    """Return the address of the Service that leads to endpoints with these IP addresses; empty: it has none of their family."""
    if not (first := cluster_ip(spec)):
        return ""
    return next((ip for ip in spec.get("clusterIPs") or [first] if (":" in ip) == (":" in ips[0])), "")


def repair(current: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch that restores a Service or EndpointSlice; empty: nothing has changed.

    Labels and annotations that others added stay.
    """
    patch: dict[str, Any] = {}
    metadata = current["metadata"]
    for field in ("labels", "annotations"):
        has = metadata.get(field) or {}
        if missing := {
            key: value for key, value in desired["metadata"][field].items() if has.get(key) != value
        }:
            patch.setdefault("metadata", {})[field] = missing
    if desired["kind"] == "Service":
        return patch | services.changes(current, desired)
    if _endpoints(current) != _endpoints(desired):
        patch |= {field: desired[field] for field in ("endpoints", "ports")}
    return patch


def _endpoints(found: Mapping[str, Any]) -> object:
    """Return what counts of an EndpointSlice; the API server adds fields."""
    return (
        [
            (endpoint.get("addresses"), (endpoint.get("conditions") or {}).get("ready") is not False)
            for endpoint in found.get("endpoints") or ()
        ],
        [(port.get("name"), port.get("port")) for port in found.get("ports") or ()],
    )


def _metadata(cluster_id: str, namespace: str, upper_namespace: str) -> dict[str, Any]:
    return {
        "name": name_of(cluster_id),
        "namespace": namespace,
        "labels": {names.LABEL_UPPER_CLUSTER: cluster_id, names.LABEL_API_SERVER: "true"},
        "annotations": {names.ANNOTATION_UPPER_NAMESPACE: upper_namespace},
    }
