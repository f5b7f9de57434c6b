"""The name server of a lower cluster for the names of the upper cluster: a CoreDNS and its Corefile, as objects.

It rewrites an upper name to the lower name, asks the lower cluster's DNS, and rewrites the names in the answer back. It
needs no rights and knows no objects. It listens on a port of its own, so it needs no capability either.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig, NamespaceMap
from clusterset.model.pod.api_access import SERVICE
from virtual_node.rights import manifests

ANNOTATION_COREFILE = f"{names.DOMAIN}/corefile"
COREFILE = "Corefile"
DEFAULT_DOMAIN = "cluster.local"
"""DNS domain of most clusters."""
IMAGE = "registry.k8s.io/coredns/coredns:v1.13.1"
_PORT = 5353
_READY = 8181
_HEALTH = 8080
_LONGEST = 62
"""Longest lower namespace that is written as prefix and upper name; longer ones may end with a hash (``namespace_map``)."""
_DONE = "upper.invalid"
"""End of a name that was changed; no real name has it (RFC 6761)."""
_USER = 65532
COMPONENT = {"app.kubernetes.io/name": manifests.NAME, "app.kubernetes.io/component": "dns"}
_FORWARD = re.compile(r"^    forward \. (\S+)$", re.MULTILINE)
_LOWER_DOMAIN = re.compile(r"\.\{[23]\}\.([^{}\s]+)\. answer ")


@dataclass(frozen=True, slots=True)
class NameServer:
    """What the name server answers."""

    cluster: str
    """Name of the lower cluster in the upper cluster."""
    cluster_id: str
    """Identity of the upper cluster."""
    upper_domain: str
    lower_domain: str
    lower_dns: str
    """Address of the lower cluster's DNS server."""
    namespaces: NamespaceConfig = field(default_factory=NamespaceConfig)

    @property
    def name(self) -> str:
        """Return the name of the objects, which differs for each upper cluster and each of its lower clusters."""
        return object_name(self.cluster_id, self.cluster)


def object_name(cluster_id: str, cluster: str) -> str:
    """Return the name of the objects of a name server, given an upper cluster and its name of the lower cluster."""
    digest = hashlib.sha256(f"{cluster_id}/{cluster}".encode()).hexdigest()[:8]
    return f"virtual-node-dns-{digest}"


def corefile(server: NameServer) -> str:
    """Return the configuration of CoreDNS."""
    lines = "\n".join(f"    {line}" for line in _rewrites(server))
    return f""".:{_PORT} {{
    errors
    ready :{_READY}
    health :{_HEALTH} {{
        lameduck 5s
    }}
{lines}
    forward . {server.lower_dns}
}}
"""


def _rewrites(server: NameServer) -> Iterator[str]:
    """Yield the rules; the first that matches the name in a question is used."""
    upper, given = re.escape(server.upper_domain), server.namespaces
    lower_of = NamespaceMap(given.prefix, given.map)
    lower = server.lower_domain
    backs = []
    if lower_of(SERVICE[0]) != SERVICE[0] or server.upper_domain != lower:
        # As with the lower cluster's own DNS. Pods for which it is the upper API server have the name in their hosts file.
        name = f"{SERVICE[1]}.{SERVICE[0]}.svc"
        back = (rf"^{re.escape(name)}\.{re.escape(lower)}\.$", f"{name}.{_DONE}.")
        yield rf"rewrite stop name regex ^{re.escape(name)}\.{upper}\.$ {name}.{lower}. {_answers(server, [back])}"
    for name in _misled(given):
        # It is not mirrored, and its name would lead to Services of the namespace that is mapped there.
        yield rf"rewrite stop name regex ^(.+\.)?{re.escape(name)}\.(svc|pod)\.{upper}\.$ not-mirrored.{{2}}.{lower}."
    for name, target in sorted(given.map.items()):
        question = rf"^(.+\.)?{re.escape(name)}\.(svc|pod)\.{upper}\.$"
        backs.append(_back(server, re.escape(target), f"{name}.{{2}}"))
        yield f"rewrite stop name regex {question} {{1}}{target}.{{2}}.{lower}. {_answers(server, backs[-1:])}"
    if given.prefix or server.upper_domain != lower:
        label = f"([-a-z0-9]{{1,{_LONGEST - len(given.prefix)}}})"
        question = rf"^(.+\.)?{label}\.(svc|pod)\.{upper}\.$"
        # Inserted first: CoreDNS applies the last pattern first, and the other patterns are more specific.
        backs.insert(0, _back(server, given.prefix + label, "{2}.{3}"))
        to = f"{{1}}{given.prefix}{{2}}.{{3}}.{lower}."
        yield f"rewrite stop name regex {question} {to} {_answers(server, backs[:1])}"
        # The lower name of a longer namespace ends with a hash, which no rule can compute. Such names do not exist.
        yield rf"rewrite stop name regex ^(.+\.)?[^.]+\.(svc|pod)\.{upper}\.$ too-long.{{2}}.{lower}."
    if server.upper_domain != lower:
        # The lower cluster's DNS answers that the name does not exist, instead of the servers that it asks for other names.
        yield (
            rf"rewrite stop name regex ^(.+\.)?{upper}\.$ {{1}}{lower}. "
            rf"answer name ^(.+\.)?{re.escape(lower)}\.$ {{1}}{server.upper_domain}."
        )
    if backs:
        yield rf"rewrite stop name regex ^(.+\.(in-addr|ip6)\.arpa)\.$ {{1}}. {_answers(server, backs)}"


def _misled(given: NamespaceConfig) -> list[str]:
    """Return the upper namespaces without an entry in ``map`` of which the lower name is that of another, which has one."""
    names_of = (
        target.removeprefix(given.prefix) for target in given.map.values() if target.startswith(given.prefix)
    )
    return sorted(name for name in names_of if name and name not in given.map)


def _back(server: NameServer, target: str, name: str) -> tuple[str, str]:
    """Return pattern and replacement that change a lower name back; the result ends with ``_DONE``."""
    return rf"^(.+\.)?{target}\.(svc|pod)\.{re.escape(server.lower_domain)}\.$", f"{{1}}{name}.{_DONE}."


def _answers(server: NameServer, backs: Sequence[tuple[str, str]]) -> str:
    """Return the part of a rule that changes lower names in an answer back.

    CoreDNS applies the last change first, and each change to the previous result. A name that ends with ``_DONE`` is
    not changed again, and gets the upper domain at the end.
    """
    changes = [(rf"^(.+)\.{re.escape(_DONE)}\.$", f"{{1}}.{server.upper_domain}."), *backs]
    return " ".join(f"answer {part} {old} {new}" for part in ("name", "value") for old, new in changes)


def objects(server: NameServer, *, namespace: str, image: str = IMAGE) -> list[dict[str, Any]]:
    """Return the objects of the name server, with those that others refer to first.

    Args:
        server: what it answers.
        namespace: its namespace in the lower cluster.
        image: image of CoreDNS.
    """
    text = corefile(server)
    own = {"app.kubernetes.io/instance": server.name}
    labels = {**COMPONENT, **own}
    metadata = {"name": server.name, "namespace": namespace, "labels": labels}
    ports = [{"name": "dns", "protocol": "UDP"}, {"name": "dns-tcp", "protocol": "TCP"}]
    # A changed Corefile replaces the pods.
    digest = {ANNOTATION_COREFILE: hashlib.sha256(text.encode()).hexdigest()[:16]}
    spec = {
        "replicas": 2,
        "revisionHistoryLimit": 1,
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": {"matchLabels": own},
        "template": {
            "metadata": {"labels": labels, "annotations": digest},
            "spec": _pod(server.name, own, image),
        },
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {COREFILE: text}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": own, "ports": [{**port, "port": 53, "targetPort": _PORT} for port in ports]},
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec},
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": own}},
        },
    ]


def _pod(name: str, own: dict[str, str], image: str) -> dict[str, Any]:
    """Return the spec of the pods, which Pod Security "restricted" admits."""
    apart = {"labelSelector": {"matchLabels": own}, "topologyKey": names.LABEL_HOSTNAME}
    container = {
        "name": "coredns",
        "image": image,
        "args": ["-conf", f"/etc/coredns/{COREFILE}"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": _READY}, "periodSeconds": 2},
        "livenessProbe": {"httpGet": {"path": "/health", "port": _HEALTH}, "failureThreshold": 5},
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    return {
        "automountServiceAccountToken": False,
        "dnsPolicy": "Default",
        "enableServiceLinks": False,
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]
            }
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": name}}],
    }


@dataclass(frozen=True, slots=True)
class Installed:
    """A name server in a lower cluster."""

    name: str
    """``namespace/name`` of its objects."""
    address: str
    ready: int
    """Number of its pods that are ready."""
    corefile: str = ""
    """Its configuration; empty: unknown."""

    def is_outdated(self, namespaces: NamespaceConfig, *, upper_domain: str, lower_domain: str) -> bool:
        """Report whether its configuration differs from that of the lower cluster; False: it is unknown.

        Args:
            namespaces: settings of the lower cluster.
            upper_domain: DNS domain of the upper cluster.
            lower_domain: that of the lower cluster, if the Corefile does not have it.
        """
        dns, domain = _FORWARD.search(self.corefile), _LOWER_DOMAIN.search(self.corefile)
        if dns is None:
            return False
        domain_text = domain[1] if domain else lower_domain
        return corefile(NameServer("", "", upper_domain, domain_text, dns[1], namespaces)) != self.corefile
