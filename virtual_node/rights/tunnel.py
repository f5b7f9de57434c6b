"""The tunnel to a lower cluster that cannot be reached: konnectivity's proxy server above and its agent below.

The agent connects to the proxy server, so the lower cluster needs no open port. The virtual node uses the proxy server as the
``proxy-url`` of its kubeconfig. Each lower cluster has a proxy server of its own, because an agent gets the connections
of all clients of its server. Both programs need no rights in a cluster, and verify each other's certificates.

The chart runs the proxy servers (``templates/virtual-node/tunnel.yaml``); here are their certificates, and the agent.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from clusterset.model import names
from controller_runtime.tls.key_pairs import make_ca, sign
from virtual_node.rights import manifests

VERSION = "v0.36.0"
IMAGES = "registry.k8s.io/kas-network-proxy"
PROXY_PORT, AGENT_PORT = 8090, 8091
_HEALTH_PORT = 8093
SERVER = "https://kubernetes.default.svc:443"
"""API server of a cluster as its pods reach it, such as the agent."""
MAX_NAME = 36
"""Length of the longest name of a cluster from which the names of its Services can be made."""
FILES = frozenset(
    {"ca.crt", *(f"{holder}.{end}" for holder in ("server", "agent", "client") for end in ("crt", "key"))}
)
"""Keys of certificates in the upper Secret."""
ADDRESS, IMAGES_KEY = "address", "images"
"""Keys of the upper Secret: where the agent reaches the proxy server, and the repository of its image."""
_CERTIFICATES = "/etc/tunnel"
_USER = 65532
_GRACE_SECONDS = 5
"""A stopped agent takes no new connections, but waits for the end of the others until the kubelet kills it."""
_KEEPALIVE = "--keepalive-time=30s"
"""A silent loss of the connection is noticed within a minute; by default after an hour."""
_VALIDITY = timedelta(days=3650)
ANNOTATION_CERTIFICATES = f"{names.DOMAIN}/certificates"
"""On the pods of both programs, which read their certificates only when they start."""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """The tunnel of one lower cluster."""

    cluster: str
    """Name of the lower cluster in the upper cluster."""
    cluster_id: str
    """Identity of the upper cluster."""
    namespace: str
    """Namespace of the proxy server in the upper cluster."""
    lower_namespace: str
    """Namespace of the agent in the lower cluster."""
    address: str
    """``HOST:PORT`` at which the agent reaches the proxy server."""
    images: str = IMAGES

    @property
    def name(self) -> str:
        """Return the name of the objects in the upper cluster."""
        return upper_name(self.cluster)

    @property
    def lower_name(self) -> str:
        """Return the name of the objects in the lower cluster, which differs for each upper cluster."""
        return lower_name(self.cluster_id, self.cluster)


def upper_name(cluster: str) -> str:
    """Return the name of the objects in the upper cluster, given the name of the lower one."""
    return f"{manifests.secret_name(cluster)}-tunnel"


def secrets(cluster: str) -> set[str]:
    """Return the names of all Secrets that may be made in the upper cluster for a lower cluster of that name."""
    return {upper_name(cluster), *(manifests.secret_name(cluster, account) for account in manifests.ACCOUNTS)}


def lower_name(cluster_id: str, cluster: str) -> str:
    """Return the name of the objects in the lower cluster, given an upper cluster and its name of the lower cluster."""
    digest = hashlib.sha256(f"{cluster_id}/{cluster}".encode()).hexdigest()[:8]
    return f"virtual-node-tunnel-{digest}"


def proxy_host(cluster: str, namespace: str) -> str:
    """Return the name at which clients reach the proxy server of a lower cluster."""
    return f"{upper_name(cluster)}.{namespace}.svc"


def proxy_url(cluster: str, namespace: str) -> str:
    """Return the ``proxy-url`` of kubeconfigs for a lower cluster."""
    return f"https://{proxy_host(cluster, namespace)}:{PROXY_PORT}"


def hosts(tunnel: Tunnel) -> list[str]:
    """Return the names and addresses that the proxy server's certificate must have."""
    return [proxy_host(tunnel.cluster, tunnel.namespace), address(tunnel.address)[0]]


def certificates(tunnel: Tunnel) -> dict[str, str]:
    """Return new certificates of server, agent and client (PEM), as data of a Secret.

    The key of their CA is not kept, so no further agent or client can be made.
    """
    ca = make_ca(tunnel.name)
    pairs = {
        "server": sign(ca, tunnel.name, hosts=hosts(tunnel), validity=_VALIDITY),
        "agent": sign(ca, "agent", usage="client", validity=_VALIDITY),
        "client": sign(ca, manifests.NAME, usage="client", validity=_VALIDITY),
    }
    found = {"ca.crt": ca.certificate.decode()}
    for holder, pair in pairs.items():
        found |= {f"{holder}.crt": pair.certificate.decode(), f"{holder}.key": pair.key.decode()}
    return found


def upper_secret(tunnel: Tunnel, data: Mapping[str, str]) -> dict[str, Any]:
    """Return the Secret that the proxy server mounts. A later ``join`` reads the tunnel's address and images from it.

    Args:
        tunnel: the tunnel.
        data: keys and certificates, as ``certificates`` returns them.
    """
    kept = {file: data[file] for file in sorted(FILES)}
    known = {ADDRESS: tunnel.address, IMAGES_KEY: tunnel.images}
    return _secret(_metadata(tunnel.name, tunnel.namespace), {**kept, **known})


def lower_objects(tunnel: Tunnel, data: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return Secret and Deployment of the agent; the arguments are those of ``upper_secret``."""
    metadata = _metadata(tunnel.lower_name, tunnel.lower_namespace)
    files = ("agent.crt", "agent.key", "ca.crt")
    return [_secret(metadata, {file: data[file] for file in files}), _deployment(tunnel, metadata, data)]


def digest(data: Mapping[str, str]) -> str:
    """Return a short text that differs for other certificates."""
    return hashlib.sha256(data["ca.crt"].encode()).hexdigest()[:16]


def address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Raises:
        ValueError: the text is something else.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is not HOST:PORT")
    if ":" in host:
        ipaddress.IPv6Address(host)
    return host, int(port)


def _metadata(name: str, namespace: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/name": manifests.NAME, **_own(name)},
    }


def _own(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/component": "tunnel", "app.kubernetes.io/instance": name}


def _secret(metadata: dict[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": metadata,
        "stringData": dict(data),
    }


def _deployment(tunnel: Tunnel, metadata: dict[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
    """Return the agent's Deployment, which Pod Security "restricted" admits; new certificates replace its pod."""
    host, port = address(tunnel.address)
    container = {
        "name": "agent",
        "image": f"{tunnel.images}/proxy-agent:{VERSION}",
        "args": [
            f"--proxy-server-host={host}",
            f"--proxy-server-port={port}",
            f"--ca-cert={_CERTIFICATES}/ca.crt",
            f"--agent-cert={_CERTIFICATES}/agent.crt",
            f"--agent-key={_CERTIFICATES}/agent.key",
            f"--health-server-port={_HEALTH_PORT}",
            "--sync-interval=1s",
            "--sync-interval-cap=10s",
            _KEEPALIVE,
            "--v=1",
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": _HEALTH_PORT}, "periodSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": _HEALTH_PORT}, "failureThreshold": 5},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "certificates", "mountPath": _CERTIFICATES, "readOnly": True}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "certificates", "secret": {"secretName": metadata["name"]}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": _own(metadata["name"])},
            "template": {
                "metadata": {
                    "labels": metadata["labels"],
                    "annotations": {ANNOTATION_CERTIFICATES: digest(data)},
                },
                "spec": pod,
            },
        },
    }
