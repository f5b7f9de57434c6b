"""Validation of a configuration beyond its types: names, pairs of fields and contradictions."""

from __future__ import annotations

import re

from controller_runtime.api import autoscaling, matching, quantity
from controller_runtime.api.autoscaling import TAINT_EFFECTS
from controller_runtime.api.decoding import convert
from controller_runtime.api.overrides import validation as overrides_validation
from controller_runtime.api.policy import validation as policy_validation
from controller_runtime.auth.proxies import split_url
from controller_runtime.errors import ConfigError
from controller_runtime.inventory import settings
from controller_runtime.leaderelection.elector import JITTER
from controller_runtime.process.listening import parse_address
from virtual_node.config import namespace_validation
from virtual_node.config.types import (
    API_VERSION,
    KIND,
    KNOWN_CONTROLLERS,
    SERVICE_CONTROLLERS,
    SHARDED,
    Config,
    LowerClusterConfig,
    NodeConfig,
)

_DNS1123 = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

_CLUSTERS = 500
"""Maximum number of clusters per process, because each has watches and caches, and all pairs are compared."""
_CSR_NODE_NAME = 64 - len("system:node:")
"""Maximum length of a node's name in a certificate, because RFC 5280 limits a common name to 64 characters."""


def validate(config: Config) -> list[str]:
    """Return the problems of a configuration, each as ``field: problem``; empty: it is valid."""
    problems: list[str] = []
    if config.api_version != API_VERSION:
        problems.append(f"apiVersion: expected {API_VERSION}, got {config.api_version!r}")
    if config.kind != KIND:
        problems.append(f"kind: expected {KIND}, got {config.kind!r}")
    problems += [
        f"enableControllers: unknown {name!r}, known are {', '.join(KNOWN_CONTROLLERS)}"
        for name in config.enable_controllers
        if name not in KNOWN_CONTROLLERS
    ]
    for field, address in (("metricsAddress", config.metrics_address), ("webAddress", config.web_address)):
        try:
            parse_address(address or ":0")
        except ConfigError as error:
            problems.append(f"{field}: {error}")
    election = config.leader_election
    if not election.lease_duration > election.renew_deadline > election.retry_period * JITTER:
        problems.append(
            "leaderElection: leaseDuration must be greater than renewDeadline, and that greater than "
            f"{JITTER} × retryPeriod"
        )
    if election.mode == SHARDED:
        if not election.enabled:
            problems.append("leaderElection.mode: Sharded needs leaderElection.enabled (--leader-elect)")
        problems += [
            f"clusters[{position}].name: {cluster.name!r} must be a DNS-1123 label of at most 63 characters, because "
            "leaderElection.mode Sharded names a Lease after it"
            for position, cluster in enumerate(config.clusters)
            if not _DNS1123.fullmatch(cluster.name) or "." in cluster.name or len(cluster.name) > 63
        ]
    if config.kubernetes_service_url and not split_url(config.kubernetes_service_url).hostname:
        problems.append(
            f"kubernetesServiceUrl: {config.kubernetes_service_url!r} is not a URL such as https://10.0.0.1:6443"
        )
    if bool(config.kubelet.tls_cert_file) != bool(config.kubelet.tls_private_key_file):
        problems.append("kubelet: tlsCertFile and tlsPrivateKeyFile go together")
    limits = config.kubelet.limits
    if limits.connections <= max(limits.streams, limits.unauthorized_connections):
        problems.append(
            "kubelet.limits.connections: must be greater than streams and than unauthorizedConnections, "
            "or connections of open streams would leave no room for others"
        )
    if len(config.clusters) > _CLUSTERS:
        return [
            *problems,
            f"clusters: {len(config.clusters)} are too many for one process; at most {_CLUSTERS}",
        ]
    problems += _certificate_problems(config)
    problems += _profile_problems(config)
    return problems + _cluster_problems(config)


def _shared_storage_problems(where: str, cluster: LowerClusterConfig) -> list[str]:
    problems, names, drivers = [], set[str](), set[str]()
    for position, storage in enumerate(cluster.volumes.shared):
        if storage.name in names:
            problems.append(f"{where}[{position}].name: {storage.name!r} is there twice")
        if again := drivers.intersection(storage.drivers):
            problems.append(f"{where}[{position}].drivers: {min(again)!r} is in another entry, too")
        names.add(storage.name)
        drivers.update(storage.drivers)
    return problems


def _cluster_problems(config: Config) -> list[str]:
    problems: list[str] = []
    seen_clusters: set[str] = set()
    seen_nodes: set[str] = set()
    for position, cluster in enumerate(config.clusters):
        where = f"clusters[{position}]"
        if not cluster.name:
            problems.append(f"{where}.name: required")
        if cluster.name in seen_clusters:
            problems.append(f"{where}.name: {cluster.name!r} is there twice")
        seen_clusters.add(cluster.name)
        if not cluster.kubeconfig:
            problems.append(f"{where}.kubeconfig: required (the lower cluster {cluster.name!r})")
        problems += matching.selector_problems(f"{where}.podSelector", cluster.pod_selector)
        problems += policy_validation.problems(f"{where}.policy", cluster.policy)
        problems += [
            f"{where}.follow: {kind} needs {SERVICE_CONTROLLERS} in enableControllers"
            for kind in ("ingresses", "gateways")
            if kind in cluster.follow and SERVICE_CONTROLLERS not in config.enable_controllers
        ]
        problems += _shared_storage_problems(f"{where}.volumes.shared", cluster)
        for kind, field, classes in (
            ("ingresses", "ingressClasses", cluster.ingress_classes),
            ("gateways", "gatewayClasses", cluster.gateway_classes),
        ):
            if classes and kind not in cluster.follow:
                problems.append(f"{where}.{field}: has no effect without {kind} in follow")
            if "" in {*classes, *classes.values()}:
                problems.append(f"{where}.{field}: a class has no name")
        problems += overrides_validation.problems(f"{where}.overrides", cluster.overrides)
        if cluster.nodes:
            problems += [
                f"{where}.{field}: has no effect beside nodes; put it into each of them"
                for field, given in (
                    ("nodeName", cluster.node_name),
                    ("nodeSelector", cluster.node_selector),
                    ("labels", cluster.labels),
                    ("taints", cluster.taints is not None),
                    ("capacity", cluster.capacity),
                    ("autoscaling", cluster.autoscaling),
                    ("port", cluster.port is not None),
                )
                if given
            ]
        for node in cluster.virtual_nodes():
            problems += _node_problems(where, node)
            if node.name in seen_nodes:
                problems.append(f"{where}: the node name {node.name!r} is there twice")
            seen_nodes.add(node.name)
    return problems + list(namespace_validation.problems(config.clusters))


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


def _certificate_problems(config: Config) -> list[str]:
    kubelet = config.kubelet
    problems: list[str] = []
    if kubelet.certificate_source == "Files":
        if not kubelet.tls_cert_file:
            problems.append("kubelet.servingCertificate: Files needs tlsCertFile and tlsPrivateKeyFile")
    elif kubelet.tls_cert_file:
        problems.append(
            f"kubelet.servingCertificate: {kubelet.certificate_source} contradicts tlsCertFile; leave one of them out"
        )
    if kubelet.certificate_source != "CSR":
        if kubelet.approve_serving_certificate:
            problems.append("kubelet.approveServingCertificate: needs servingCertificate: CSR")
        return problems
    problems += [
        f"kubelet.servingCertificate: CSR: the node name {node.name!r} is too long for a certificate's common name "
        f"(at most {_CSR_NODE_NAME} characters)"
        for cluster in config.clusters
        for node in cluster.virtual_nodes()
        if len(node.name) > _CSR_NODE_NAME
    ]
    return problems


def _node_problems(where: str, node: NodeConfig) -> list[str]:
    problems: list[str] = []
    if not _DNS1123.fullmatch(node.name) or len(node.name) > 63:
        problems.append(
            f"{where}: node name {node.name!r} must be a DNS-1123 name of at most 63 characters (it is also a label value)",
        )
    problems += [
        f"{where}.taints: effect {taint.effect!r} is not one of {', '.join(TAINT_EFFECTS)}"
        for taint in node.taints or []
        if taint.effect not in TAINT_EFFECTS
    ]
    problems += [
        f"{where}.capacity.reserve.{resource}: {reserve!r} is neither a quantity nor a percentage"
        for resource, reserve in node.capacity.reserve.items()
        if not _is_reserve(reserve)
    ]
    if node.autoscaling is not None:
        problems += autoscaling.problems(f"{where}.autoscaling", node.autoscaling)
    return problems


def _is_reserve(text: str) -> bool:
    if text.endswith("%"):
        return text[:-1].replace(".", "", 1).isdigit() and float(text[:-1]) <= 100
    try:
        return quantity.milli(text) >= 0
    except ValueError:
        return False
