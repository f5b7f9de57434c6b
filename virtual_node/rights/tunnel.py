"""The tunnel to a lower cluster that cannot be reached: konnectivity's proxy server above and its agent below, as objects.

The agent connects to the proxy server, so the lower cluster needs no open port. The virtual node uses the proxy server as the
``proxy-url`` of its kubeconfig. Each lower cluster has a proxy server of its own, because an agent gets the connections
of all clients of its server. Both programs need no rights in a cluster, and verify each other's certificates.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from clusterset.model import names
from controller_runtime.tls.key_pairs import make_ca, sign
from virtual_node.rights import manifests

VERSION = "v0.36.0"
IMAGES = "registry.k8s.io/kas-network-proxy"
PROXY_PORT, AGENT_PORT = 8090, 8091
_ADMIN_PORT, _HEALTH_PORT = 8095, 8092
_AGENT_HEALTH_PORT = 8093
SERVER = "https://kubernetes.default.svc:443"
"""API server of a cluster as its pods reach it, such as the agent."""
_NODE_PORTS = range(30000, 32768)
_CERTIFICATES = "/etc/tunnel"
_USER = 65532
_KEEPALIVE = "--keepalive-time=30s"
"""A silent loss of the connection is noticed within a minute; by default after an hour."""
_VALIDITY = timedelta(days=3650)
ANNOTATION_CERTIFICATES = f"{names.DOMAIN}/certificates"
_ALWAYS = {"publishNotReadyAddresses": True}
"""The proxy server is ready only while an agent is connected, and must be reached by the first agent, too."""
_HOLDERS = ("server", "agent", "client")


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
    host: str
    """Name or address at which the agent reaches the proxy server."""
    port: int
    images: str = IMAGES

    @property
    def name(self) -> str:
        """Return the name of the objects in the upper cluster."""
        return upper_name(self.cluster)

    @property
    def lower_name(self) -> str:
        """Return the name of the objects in the lower cluster, which differs for each upper cluster."""
        return lower_name(self.cluster_id, self.cluster)

    @property
    def proxy_host(self) -> str:
        """Return the name at which the virtual node reaches the proxy server."""
        return f"{self.name}.{self.namespace}.svc"

    @property
    def proxy_url(self) -> str:
        """Return the ``proxy-url`` of kubeconfigs."""
        return f"https://{self.proxy_host}:{PROXY_PORT}"


def upper_name(cluster: str) -> str:
    """Return the name of the objects in the upper cluster, given the name of the lower one."""
    return f"{manifests.secret_name(cluster)}-tunnel"


def lower_name(cluster_id: str, cluster: str) -> str:
    """Return the name of the objects in the lower cluster, given an upper cluster and its name of the lower cluster."""
    digest = hashlib.sha256(f"{cluster_id}/{cluster}".encode()).hexdigest()[:8]
    return f"virtual-node-tunnel-{digest}"


def certificates(tunnel: Tunnel) -> dict[str, str]:
    """Return new certificates of server, agent and client (PEM), as data of a Secret.

    The key of their CA is not kept, so no further agent or client can be made.
    """
    ca = make_ca(tunnel.name)
    pairs = {
        "server": sign(ca, tunnel.name, hosts=[tunnel.proxy_host, tunnel.host], validity=_VALIDITY),
        "agent": sign(ca, "agent", usage="client", validity=_VALIDITY),
        "client": sign(ca, manifests.NAME, usage="client", validity=_VALIDITY),
    }
    found = {"ca.crt": ca.certificate.decode()}
    for holder, pair in pairs.items():
        found |= {f"{holder}.crt": pair.certificate.decode(), f"{holder}.key": pair.key.decode()}
    return found


def upper_objects(tunnel: Tunnel, data: dict[str, str]) -> list[dict[str, Any]]:
    """Return the objects of the proxy server, with those that others refer to first.

    Args:
        tunnel: the tunnel.
        data: of ``certificates``.
    """
    name = tunnel.name
    arguments = [
        "--mode=http-connect",
        "--uds-name=",
        f"--server-port={PROXY_PORT}",
        f"--agent-port={AGENT_PORT}",
        f"--admin-port={_ADMIN_PORT}",
        f"--health-port={_HEALTH_PORT}",
        *(
            f"--{side}-{what}={_CERTIFICATES}/{file}"
            for side in ("server", "cluster")
            for what, file in (("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt"))
        ),
        "--proxy-strategies=default",
        "--backend-dial-timeout=10s",
        _KEEPALIVE,
        "--v=1",
    ]
    files = ("ca.crt", "server.crt", "server.key")
    metadata = _metadata(name, tunnel.namespace)
    own = _own(name)
    kept = {"type": "NodePort"} if tunnel.port in _NODE_PORTS else {"type": "LoadBalancer"}
    agents: dict[str, Any] = {"name": "agents", "port": tunnel.port, "targetPort": AGENT_PORT}
    if tunnel.port in _NODE_PORTS:
        agents |= {"port": AGENT_PORT, "nodePort": tunnel.port}
    return [
        _secret(metadata, data, [*files, *(f"{each}.{end}" for each in _HOLDERS for end in ("crt", "key"))]),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {**_ALWAYS, "selector": own, "ports": [{"name": "proxy", "port": PROXY_PORT}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(f"{name}-agents", tunnel.namespace, name),
            "spec": {**_ALWAYS, **kept, "selector": own, "ports": [agents]},
        },
        _deployment(
            metadata,
            f"{tunnel.images}/proxy-server:{VERSION}",
            arguments,
            files=files,
            health=_HEALTH_PORT,
            data=data,
        ),
    ]


def lower_objects(tunnel: Tunnel, data: dict[str, str]) -> list[dict[str, Any]]:
    """Return the objects of the agent; the arguments are those of ``upper_objects``."""
    metadata = _metadata(tunnel.lower_name, tunnel.lower_namespace)
    files = ("ca.crt", "agent.crt", "agent.key")
    arguments = [
        f"--proxy-server-host={tunnel.host}",
        f"--proxy-server-port={tunnel.port}",
        f"--ca-cert={_CERTIFICATES}/ca.crt",
        f"--agent-cert={_CERTIFICATES}/agent.crt",
        f"--agent-key={_CERTIFICATES}/agent.key",
        f"--health-server-port={_AGENT_HEALTH_PORT}",
        "--sync-interval=1s",
        "--sync-interval-cap=10s",
        _KEEPALIVE,
        "--v=1",
    ]
    return [
        _secret(metadata, data, files),
        _deployment(
            metadata,
            f"{tunnel.images}/proxy-agent:{VERSION}",
            arguments,
            files=files,
            health=_AGENT_HEALTH_PORT,
            data=data,
        ),
    ]


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


def _own(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/component": "tunnel", "app.kubernetes.io/instance": name}


def _metadata(name: str, namespace: str, instance: str = "") -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": manifests.NAME, **_own(instance or name)}
    return {"name": name, "namespace": namespace, "labels": labels}


def _secret(metadata: dict[str, Any], data: dict[str, str], files: Iterable[str]) -> dict[str, Any]:
    kept = {file: data[file] for file in sorted(set(files))}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "stringData": kept}


def _deployment(
    metadata: dict[str, Any],
    image: str,
    arguments: list[str],
    *,
    files: tuple[str, ...],
    health: int,
    data: dict[str, str],
) -> dict[str, Any]:
    """Return a Deployment of one pod, which Pod Security "restricted" admits; new certificates replace it."""
    own = _own(metadata["name"])
    digest = hashlib.sha256(data["ca.crt"].encode()).hexdigest()[:16]
    container = {
        "name": "tunnel",
        "image": image,
        "args": arguments,
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": health}, "periodSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": health}, "failureThreshold": 5},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "certificates", "mountPath": _CERTIFICATES, "readOnly": True}],
    }
    items = [{"key": file, "path": file} for file in files]
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "certificates", "secret": {"secretName": metadata["name"], "items": items}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {
                    "labels": metadata["labels"],
                    "annotations": {ANNOTATION_CERTIFICATES: digest},
                },
                "spec": pod,
            },
        },
    }
