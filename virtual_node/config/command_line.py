"""The command line: tensile-kube's flags and environment unchanged, and our own flags.

tensile-kube's flags describe one lower cluster. ``--config`` describes many, and flags for one lower cluster
then have no effect. A flag overrides the environment, which overrides the default. Booleans have Go's syntax:
``--flag`` and ``--flag=false``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller_runtime.api import names
from controller_runtime.api.policy.config import Policy
from controller_runtime.errors import ConfigError
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import Klog, comma_list, positive, take_klog
from virtual_node.config import file as config_file
from virtual_node.config import program, usable, validation
from virtual_node.config import types as configuration
from virtual_node.config.flags import DEFAULT_NODE_NAME, WITHOUT_EFFECT, add_flags
from virtual_node.config.types import (
    CapacityPolicy,
    ClusterConfig,
    Config,
    KubeletConfig,
    LeaderElectionConfig,
    NamespaceConfig,
    Taint,
)

_EXAMPLES = (
    ("One lower cluster", "--nodename vn-tokyo --kubeconfig upper.yaml --client-kubeconfig tokyo.yaml"),
    ("Many, in a file that is applied live", "--config clusters.yaml"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """A parsed command line: process-wide options and the configuration."""

    config: Config
    config_file: str
    """Path given by ``--config``; empty: flags describe the only lower cluster."""
    log_level: str
    log_format: str
    klog: Klog
    startup_timeout: float
    """Maximum seconds for the upper cluster to answer at start; 0: unlimited."""
    waits: bool
    """``--wait-for-config``: an invalid configuration is reported, and the process waits for a valid one."""
    rejected: str
    """Why the file of ``--config`` is invalid, if that is accepted; ``config`` then contains its valid part.
    Empty: the file is valid."""
    warnings: tuple[str, ...]
    """Flags and variables that are accepted for compatibility but have no effect, for the log."""


def parse(
    argv: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    prog: str = "virtual-node",
    beside: Parser | None = None,
    accept_rejected: bool = False,
) -> Options:
    """Parse a command line and its environment.

    Args:
        argv: the arguments.
        environment: None: the environment of the process.
        prog: the program's name in error messages, as the user typed it.
        beside: the parser of a command that has already read its own flags from the line; error messages
            suggest them too.
        accept_rejected: whether to return options also for an invalid file of ``--config``, as with
            ``--wait-for-config``.

    Raises:
        ConfigError: a value is invalid; the text names the flag or variable and a valid value.
        SystemExit: raised by argparse for unknown flags and ``--help``.
    """
    environment = os.environ if environment is None else environment
    rest, klog = take_klog(argv)
    parser = Parser(
        program.name(),
        about="The daemon: virtual nodes in an upper cluster that stand for lower ones. Commands for people: "
        f"{program.name('help')}.",
        examples=[(what, f"run {line}" if program.is_plugin() else line) for what, line in _EXAMPLES],
        notes="A flag beats the environment, the environment beats the default; --config beats the flags that "
        "describe one lower cluster.",
    )
    parser.prog = prog
    add_flags(parser)
    parser.also_known = beside.flag_names() if beside is not None else ()
    flags = parser.parse_args(rest)
    if flags.provider != "k8s":
        raise ConfigError(f"--provider {flags.provider}: the only provider is k8s")
    warnings = [
        f"{flag} has no effect: {instead}"
        for flag, instead in WITHOUT_EFFECT.items()
        if getattr(flags, flag.removeprefix("--").replace("-", "_")) is not None
    ]
    accept_rejected = bool(flags.config) and (accept_rejected or flags.wait_for_config)
    rejected = ""
    if flags.config:
        try:
            config = config_file.load(flags.config)
        except ConfigError as error:
            if not accept_rejected:
                raise
            config, rejected = usable.load_usable(flags.config), str(error)
        # With --config, flags that were given override the file's values.
        config.kubeconfig = flags.kubeconfig or config.kubeconfig
        config.cluster_id = flags.cluster_id or config.cluster_id
        config.metrics_address = flags.metrics_addr or config.metrics_address
        config.web_address = flags.web_addr or config.web_address
        _fill_kubelet(config.kubelet, flags, environment)
        _fill_leader_election(config.leader_election, flags)
        if flags.client_kubeconfig:
            warnings.append("--client-kubeconfig has no effect beside --config")
        if flags.adopt_namespaces:
            warnings.append(
                "--adopt-namespaces has no effect beside --config; use clusters[].namespaces.adopt"
            )
        if flags.policy_preset:
            warnings.append("--policy-preset has no effect beside --config; use clusters[].policy.preset")
    else:
        config = _single_cluster(flags, environment, warnings)
    # The file is already validated, but flags and environment may contradict it.
    problems = "" if rejected else "; ".join(validation.validate(config))
    if problems and not accept_rejected:
        raise ConfigError(problems)
    config.server = config.server or environment.get("MASTER_URI", "")
    return Options(
        config=config,
        config_file=flags.config,
        log_level=flags.log_level,
        log_format=flags.log_format,
        klog=klog,
        startup_timeout=flags.startup_timeout,
        waits=bool(flags.config and flags.wait_for_config),
        rejected=rejected or problems,
        warnings=tuple(warnings),
    )


def _single_cluster(flags: argparse.Namespace, environment: Mapping[str, str], warnings: list[str]) -> Config:
    if not flags.client_kubeconfig:
        raise ConfigError(
            "--client-kubeconfig: required: the kubeconfig of the lower cluster (or --config for many)"
        )
    node_name = (
        flags.nodename
        or environment.get("DEFAULT_NODE_NAME")
        or environment.get("DEFAULTNODE_NAME")
        or DEFAULT_NODE_NAME
    )
    controllers = []
    for name in comma_list(flags.enable_controllers):
        if name in configuration.KNOWN_CONTROLLERS:
            controllers.append(name)
        else:
            # tensile-kube skips unknown names with a warning, and existing manifests rely on that.
            warnings.append(f"--enable-controllers: {name!r} is unknown and skipped")
    cluster = ClusterConfig(
        name=node_name,
        kubeconfig=flags.client_kubeconfig,
        client_qps=positive("--client-qps", flags.client_qps),
        client_burst=int(positive("--client-burst", flags.client_burst)),
        node_name=node_name,
        labels=_node_label(environment, warnings),
        taints=_taints(flags, environment),
        capacity=CapacityPolicy(),
        namespaces=NamespaceConfig(adopt=comma_list(flags.adopt_namespaces)),
        policy=Policy(preset=flags.policy_preset),
    )
    config = Config(
        kubeconfig=flags.kubeconfig or "",
        cluster_id=flags.cluster_id,
        kube_api_qps=flags.kube_api_qps if flags.kube_api_qps > 0 else 500,
        kube_api_burst=flags.kube_api_burst if flags.kube_api_burst > 0 else 1000,
        enable_controllers=controllers,
        enable_serviceaccount=flags.enable_serviceaccount,
        kubernetes_service="Upper" if flags.kubernetes_service == "upper" else "Lower",
        kubernetes_service_url=flags.kubernetes_service_url,
        ignore_labels=comma_list(flags.ignore_labels),
        pod_sync_workers=int(positive("--pod-sync-workers", flags.pod_sync_workers)),
        full_resync_period=flags.full_resync_period,
        metrics_address=flags.metrics_addr,
        web_address=flags.web_addr,
        clusters=[cluster],
    )
    _fill_kubelet(config.kubelet, flags, environment)
    _fill_leader_election(config.leader_election, flags)
    return config


def _fill_kubelet(kubelet: KubeletConfig, flags: argparse.Namespace, environment: Mapping[str, str]) -> None:
    if port := environment.get("KUBELET_PORT"):
        if not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"KUBELET_PORT: {port!r} is not a port number")
        kubelet.port = int(port)
    kubelet.tls_cert_file = environment.get("APISERVER_CERT_LOCATION", "") or kubelet.tls_cert_file
    kubelet.tls_private_key_file = (
        environment.get("APISERVER_KEY_LOCATION", "") or kubelet.tls_private_key_file
    )
    ca_file = flags.client_verify_ca or environment.get("APISERVER_CA_CERT_LOCATION", "")
    kubelet.client_ca_file = ca_file or kubelet.client_ca_file
    kubelet.node_ip = environment.get("VKUBELET_POD_IP", "") or kubelet.node_ip
    kubelet.external_ip = environment.get("VKUBELET_EXTERNAL_POD_IP", "") or kubelet.external_ip
    if flags.rotate_server_certificates and kubelet.serving_certificate is None:
        kubelet.serving_certificate = "CSR"
    kubelet.approve_serving_certificate |= flags.approve_server_certificates
    if flags.no_verify_clients:
        kubelet.anonymous_auth = True
        kubelet.authorization = False


def _fill_leader_election(election: LeaderElectionConfig, flags: argparse.Namespace) -> None:
    election.enabled = flags.leader_elect or election.enabled
    election.namespace = flags.leader_elect_resource_namespace or election.namespace
    election.name = flags.leader_elect_resource_name or election.name


def _node_label(environment: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    text = environment.get("VKUBELET_NODE_LABEL", "")
    if not text:
        return {}
    key, colon, value = text.partition(":")
    if not colon or ":" in value or not key.strip():
        warnings.append(f"VKUBELET_NODE_LABEL: {text!r} is not key:value and is ignored")
        return {}
    return {key.strip(): value.strip()}


def _taints(flags: argparse.Namespace, environment: Mapping[str, str]) -> list[Taint]:
    if flags.disable_taint:
        return []
    effect = environment.get("VKUBELET_TAINT_EFFECT", "") or "NoSchedule"
    if effect not in configuration.TAINT_EFFECTS:
        raise ConfigError(
            f"VKUBELET_TAINT_EFFECT: {effect!r} is none of {', '.join(configuration.TAINT_EFFECTS)}"
        )
    key = flags.taint or environment.get("VKUBELET_TAINT_KEY", "") or names.TAINT_PROVIDER
    return [
        Taint(key=key, value=environment.get("VKUBELET_TAINT_VALUE", "") or flags.provider, effect=effect)
    ]
