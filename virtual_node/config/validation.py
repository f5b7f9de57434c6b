"""Validation of a configuration beyond its types: names, pairs of fields and contradictions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterset.inventory import settings
from clusterset.model import autoscaling
from clusterset.model.autoscaling import TAINT_EFFECTS
from clusterset.model.overrides import validation as overrides_validation
from clusterset.model.pod.eligibility import KNOWN_CONTROLLERS, SERVICE_CONTROLLERS
from clusterset.model.policy import validation as policy_validation
from controller_runtime.apimachinery import matching, quantity
from controller_runtime.apimachinery.decoding import convert
from controller_runtime.auth.proxies import split_url
from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection.elector import JITTER
from controller_runtime.process.listening import parse_address
from virtual_node.config import namespace_validation, types
from virtual_node.config.types import Config, LowerClusterConfig, NodeConfig

_DNS1123 = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

_OF_NODE = {
    "node_name": "nodeName",
    "node_selector": "nodeSelector",
    **{field: field for field in ("labels", "taints", "capacity", "autoscaling", "port")},
}
"""Fields of a cluster that describe its only virtual node, with their names in the file."""
_CLUSTERS = 500
"""Maximum number of clusters per process, because each has watches and caches, and all pairs are compared."""
_CSR_NODE_NAME = 64 - len("system:node:")
"""Maximum length of a node's name in a certificate, because RFC 5280 limits a common name to 64 characters."""


def validate(config: Config) -> list[str]:
    """Return the problems of a configuration, each as ``field: problem``; empty: it is valid."""
    problems = list(_process_problems(config))
    if len(config.clusters) > _CLUSTERS:
        return [
            *problems,
            f"clusters: {len(config.clusters)} are too many for one process; at most {_CLUSTERS}",
        ]
    return [
        *problems,
        *_certificate_problems(config),
        *_profile_problems(config),
        *_cluster_problems(config),
    ]


def _process_problems(config: Config) -> Iterator[str]:
    if config.api_version != types.API_VERSION:
        yield f"apiVersion: expected {types.API_VERSION}, got {config.api_version!r}"
    if config.kind != types.KIND:
        yield f"kind: expected {types.KIND}, got {config.kind!r}"
    for name in config.enable_controllers:
        if name not in KNOWN_CONTROLLERS:
            yield f"enableControllers: unknown {name!r}, known are {', '.join(KNOWN_CONTROLLERS)}"
    for field, address in (("metricsAddress", config.metrics_address), ("webAddress", config.web_address)):
        try:
            parse_address(address or ":0")
        except ConfigError as error:
            yield f"{field}: {error}"
    yield from _election_problems(config)
    if config.kubernetes_service_url and not split_url(config.kubernetes_service_url).hostname:
        yield f"kubernetesServiceUrl: {config.kubernetes_service_url!r} is not a URL such as https://10.0.0.1:6443"
    if bool(config.kubelet.tls_cert_file) != bool(config.kubelet.tls_private_key_file):
        yield "kubelet: tlsCertFile and tlsPrivateKeyFile go together"
    limits = config.kubelet.limits
    if limits.connections <= max(limits.streams, limits.unauthorized_connections):
        yield (
            "kubelet.limits.connections: must be greater than streams and than unauthorizedConnections, "
            "or connections of open streams would leave no room for others"
        )


def _election_problems(config: Config) -> Iterator[str]:
    election = config.leader_election
    if not election.lease_duration > election.renew_deadline > election.retry_period * JITTER:
        yield (
            "leaderElection: leaseDuration must be greater than renewDeadline, and that greater than "
            f"{JITTER} × retryPeriod"
        )
    if election.mode != types.SHARDED:
        return
    if not election.enabled:
        yield "leaderElection.mode: Sharded needs leaderElection.enabled (--leader-elect)"
    for position, cluster in enumerate(config.clusters):
        if not _DNS1123.fullmatch(cluster.name) or "." in cluster.name or len(cluster.name) > 63:
            yield (
                f"clusters[{position}].name: {cluster.name!r} must be a DNS-1123 label of at most 63 characters, because "
                "leaderElection.mode Sharded names a Lease after it"
            )


def _shared_storage_problems(where: str, cluster: LowerClusterConfig) -> Iterator[str]:
    names, drivers = set[str](), set[str]()
    for position, storage in enumerate(cluster.volumes.shared):
        if storage.name in names:
            yield f"{where}[{position}].name: {storage.name!r} is there twice"
        if again := drivers.intersection(storage.drivers):
            yield f"{where}[{position}].drivers: {min(again)!r} is in another entry, too"
        names.add(storage.name)
        drivers.update(storage.drivers)


def _cluster_problems(config: Config) -> Iterator[str]:
    seen_clusters: set[str] = set()
    seen_nodes: set[str] = set()
    for position, cluster in enumerate(config.clusters):
        where = f"clusters[{position}]"
        if not cluster.name:
            yield f"{where}.name: required"
        if cluster.name in seen_clusters:
            yield f"{where}.name: {cluster.name!r} is there twice"
        seen_clusters.add(cluster.name)
        if not cluster.kubeconfig:
            yield f"{where}.kubeconfig: required (the lower cluster {cluster.name!r})"
        yield from matching.selector_problems(f"{where}.podSelector", cluster.pod_selector)
        yield from policy_validation.problems(f"{where}.policy", cluster.policy)
        has_services = SERVICE_CONTROLLERS in config.enable_controllers
        yield from _follow_problems(where, cluster, has_services=has_services)
        yield from _shared_storage_problems(f"{where}.volumes.shared", cluster)
        yield from overrides_validation.problems(f"{where}.overrides", cluster.overrides)
        if cluster.nodes:
            given = [
                name for field, name in _OF_NODE.items() if getattr(cluster, field) not in ("", {}, None)
            ]
            yield from (
                f"{where}.{name}: has no effect beside nodes; put it into each of them" for name in given
            )
        for node in cluster.virtual_nodes():
            yield from _node_problems(where, node)
            if node.name in seen_nodes:
                yield f"{where}: the node name {node.name!r} is there twice"
            seen_nodes.add(node.name)
    yield from namespace_validation.problems(config.clusters)


def _follow_problems(where: str, cluster: LowerClusterConfig, *, has_services: bool) -> Iterator[str]:
    for kind, field, classes in (
        ("ingresses", "ingressClasses", cluster.ingress_classes),
        ("gateways", "gatewayClasses", cluster.gateway_classes),
    ):
        if kind in cluster.follow and not has_services:
            yield f"{where}.follow: {kind} needs {SERVICE_CONTROLLERS} in enableControllers"
        if classes and kind not in cluster.follow:
            yield f"{where}.{field}: has no effect without {kind} in follow"
        if "" in {*classes, *classes.values()}:
            yield f"{where}.{field}: a class has no name"


def _profile_problems(config: Config) -> list[str]:
    """Return what is wrong with ``clusterProfiles``; its defaults are validated as those of an ordinary cluster."""
    if (profiles := config.cluster_profiles) is None:
        return []
    problems = list(settings.problems(profiles))
    if problems:
        return problems
    where = "clusterProfiles.defaults"
    sample = {**profiles.defaults, "name": "profile", "kubeconfig": "profile"}
    try:
        cluster = convert(sample, LowerClusterConfig, where=where)
    except ValueError as error:
        return [str(error)]
    sample_config = Config(clusters=[cluster], enable_controllers=config.enable_controllers)
    return [one.replace("clusters[0]", where, 1) for one in _cluster_problems(sample_config)]


def _certificate_problems(config: Config) -> Iterator[str]:
    kubelet = config.kubelet
    if kubelet.certificate_source == "Files":
        if not kubelet.tls_cert_file:
            yield "kubelet.servingCertificate: Files needs tlsCertFile and tlsPrivateKeyFile"
    elif kubelet.tls_cert_file:
        yield f"kubelet.servingCertificate: {kubelet.certificate_source} contradicts tlsCertFile; leave one of them out"
    if kubelet.certificate_source != "CSR":
        if kubelet.approve_serving_certificate:
            yield "kubelet.approveServingCertificate: needs servingCertificate: CSR"
        return
    for node in (node for cluster in config.clusters for node in cluster.virtual_nodes()):
        if len(node.name) > _CSR_NODE_NAME:
            yield (
                f"kubelet.servingCertificate: CSR: the node name {node.name!r} is too long for a certificate's common name "
                f"(at most {_CSR_NODE_NAME} characters)"
            )


def _node_problems(where: str, node: NodeConfig) -> Iterator[str]:
    if not _DNS1123.fullmatch(node.name) or len(node.name) > 63:
        yield f"{where}: node name {node.name!r} must be a DNS-1123 name of at most 63 characters (it is also a label value)"
    for taint in node.taints or []:
        if taint.effect not in TAINT_EFFECTS:
            yield f"{where}.taints: effect {taint.effect!r} is not one of {', '.join(TAINT_EFFECTS)}"
    for resource, reserve in node.capacity.reserve.items():
        if not _is_reserve(reserve):
            yield f"{where}.capacity.reserve.{resource}: {reserve!r} is neither a quantity nor a percentage"
    if node.autoscaling is not None:
        yield from autoscaling.problems(f"{where}.autoscaling", node.autoscaling)


def _is_reserve(text: str) -> bool:
    if text.endswith("%"):
        return text[:-1].replace(".", "", 1).isdigit() and float(text[:-1]) <= 100
    try:
        return quantity.milli(text) >= 0
    except ValueError:
        return False
