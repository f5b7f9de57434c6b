"""The YAML file of ``--config``, as the virtual node reads it: ``clusterset.validation`` and the rules of its own settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from clusterset import validation as cluster_validation
from clusterset.model.namespace_map import DNS_LABEL
from clusterset.reading import ConfigFile
from controller_runtime.auth.proxies import split_url
from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection import JITTER
from controller_runtime.process.listening import parse_address
from virtual_node.config import types
from virtual_node.config.types import Config

DOMAIN = re.compile(r"(?=.{1,200}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""The DNS domain of a cluster."""
_CSR_NODE_NAME = 64 - len("system:node:")
"""Maximum length of a node's name in a certificate, because RFC 5280 limits a common name to 64 characters."""


def validate(config: Config) -> list[str]:
    """Return the problems of a configuration, each as ``field: problem``; empty: it is valid."""
    return [
        *_process_problems(config),
        *_certificate_problems(config),
        *cluster_validation.problems(config),
    ]


def _process_problems(config: Config) -> Iterator[str]:
    for field, address in (("metricsAddress", config.metrics_address), ("webAddress", config.web_address)):
        try:
            parse_address(address or ":0")
        except ConfigError as error:
            yield f"{field}: {error}"
    yield from _election_problems(config)
    # Without name servers, the domain is only an alias, and tensile-kube accepts any value of its flag.
    if any(cluster.dns.servers for cluster in config.clusters) and not DOMAIN.fullmatch(
        config.cluster_domain
    ):
        yield f"clusterDomain: {config.cluster_domain!r} is not a DNS domain, such as cluster.local"
    if config.kubernetes_service_url and not _has_address(config.kubernetes_service_url):
        yield f"kubernetesServiceURL: {config.kubernetes_service_url!r} is not a URL such as https://10.0.0.1:6443"
    if bool(config.kubelet.tls_cert_file) != bool(config.kubelet.tls_private_key_file):
        yield "kubelet: tlsCertFile and tlsPrivateKeyFile go together"
    limits = config.kubelet.limits
    if limits.connections <= max(limits.streams, limits.unauthorized_connections):
        yield (
            "kubelet.limits.connections: must be greater than streams and than unauthorizedConnections, "
            "or connections of open streams would leave no room for others"
        )


def _has_address(url: str) -> bool:
    """Report whether a URL has a host, and no port that is invalid."""
    parts = split_url(url)
    try:
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


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
        if not DNS_LABEL.fullmatch(cluster.name):
            yield (
                f"clusters[{position}].name: {cluster.name!r} must be a DNS-1123 label of at most 63 characters, because "
                "leaderElection.mode Sharded names a Lease after it"
            )


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


_FILE = ConfigFile(Config, validate, paths=("kubeconfig",))
parse, load_usable = _FILE.parse, _FILE.load_usable


def load(path: str | Path) -> Config:
    """Return the configuration in a file. Relative paths in it are relative to the directory of the file.

    Raises:
        ConfigError: the file cannot be read or is invalid; the error names the source and the field.
    """
    config = _FILE.load(path)
    for cluster in config.clusters:
        # Only the multi-scheduler uses it, so a change must not restart the virtual nodes of the cluster.
        cluster.usage = None
    return config
