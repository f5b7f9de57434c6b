"""The command line: tensile-kube's flags and environment unchanged, and our own flags.

A flag overrides the environment, which overrides the file of ``--config``, which overrides the default, as in
the kubelet. With a file, flags that describe the only lower cluster have no effect, which a warning reports.
Booleans have Go's syntax: ``--flag`` and ``--flag=false``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterset.config import CapacityPolicy, Cluster
from clusterset.model import names
from clusterset.model.autoscaling import TAINT_EFFECTS, Taint
from clusterset.model.namespace_map import NamespaceConfig
from clusterset.model.pod.eligibility import KNOWN_CONTROLLERS
from clusterset.model.policy.config import Policy
from controller_runtime.errors import ConfigError
from controller_runtime.process import setting
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import LogOptions, comma_list, take_klog
from virtual_node.config import file as config_file
from virtual_node.config import program, validation
from virtual_node.config import types as configuration
from virtual_node.config.flags import DEFAULT_NODE_NAME, WITH_FLAGS, WITHOUT_EFFECT, add_flags
from virtual_node.config.types import Config

_EXAMPLES = (
    ("One lower cluster", "--nodename vn-tokyo --kubeconfig upper.yaml --client-kubeconfig tokyo.yaml"),
    ("Many, in a file that is applied live", "--config clusters.yaml"),
)
_OF_CLUSTER = {
    **{declared.flag: field.encode_name for field, declared in setting.settings(Cluster)},
    "--adopt-namespaces": "namespaces.adopt",
    "--policy-preset": "policy.preset",
    "--disable-taint": "taints",
    "--taint": "taints",
}
"""Flags that describe the only lower cluster, with the field of ``clusters[]`` that each sets."""
_OVERRIDES = (
    *(declared.dest for kind in WITH_FLAGS for _, declared in setting.settings(kind) if declared.flag),
    "rotate_server_certificates",
    "no_verify_clients",
    "disable_taint",
    "taint",
)
"""Parsed flags that override the file. Each is None if it was not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(LogOptions):
    """A parsed command line: process-wide options and the configuration."""

    config: Config
    config_file: str
    """Path given by ``--config``; empty: flags describe the only lower cluster."""
    startup_timeout: float
    """Maximum seconds for the upper cluster to answer at start; 0: unlimited."""
    waits: bool
    """``--wait-for-config``: if the configuration is invalid, the process reports that and waits for a valid one."""
    rejected: str
    """Why the file of ``--config`` is invalid, if the caller accepts that; ``config`` then contains its valid
    part. Empty: the configuration is valid."""
    warnings: tuple[str, ...]
    """Texts for the log about flags and variables that have no effect or are skipped."""


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
        beside: the parser of a command that has already read its own flags from the line, so that error
            messages suggest these flags, too.
        accept_rejected: whether to return options even if the file of ``--config`` is invalid, as with
            ``--wait-for-config``.

    Raises:
        ConfigError: a value is invalid; the text names the flag or variable and a valid value.
        SystemExit: raised by argparse for unknown flags and ``--help``.
    """
    environment = os.environ if environment is None else environment
    rest, klog = take_klog(argv)
    flags_of = parser()
    flags_of.prog = prog
    flags_of.also_known = beside.flag_names() if beside is not None else ()
    # argparse sets a default only if the attribute is missing, so flags that are not given stay None.
    flags = flags_of.parse_args(rest, argparse.Namespace(**dict.fromkeys(_OVERRIDES)))
    if flags.provider != "k8s":
        raise ConfigError(f"--provider {flags.provider}: the only provider is k8s")
    warnings = [
        f"{flag} has no effect: {instead}"
        for flag, instead in WITHOUT_EFFECT.items()
        if getattr(flags, setting.dest(flag)) is not None
    ]
    accept_rejected = bool(flags.config) and (accept_rejected or flags.wait_for_config)
    rejected = ""
    if flags.config:
        try:
            config = config_file.load(flags.config)
        except ConfigError as error:
            if not accept_rejected:
                raise
            config, rejected = config_file.load_usable(flags.config), str(error)
        warnings += [
            f"{flag} has no effect beside --config; set clusters[].{field}"
            for flag, field in _OF_CLUSTER.items()
            if getattr(flags, setting.dest(flag)) is not None
        ]
    else:
        config = Config(clusters=[_single_cluster(flags, environment, warnings)])
    _override(config, flags, environment, warnings)
    # The file is already validated, but flags and environment may contradict it.
    problems = "" if rejected else "; ".join(validation.validate(config))
    if problems and not accept_rejected:
        raise ConfigError(problems)
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


def parser() -> Parser:
    """Return the daemon's parser."""
    whole = Parser(
        program.name(),
        about="The daemon: virtual nodes in an upper cluster that stand for lower ones. Commands for people: "
        f"{program.name('help')}.",
        examples=[(what, f"run {line}" if program.is_plugin() else line) for what, line in _EXAMPLES],
        notes="A flag overrides the environment, the environment the file of --config, the file the default. "
        "Beside --config, flags that describe one lower cluster have no effect.",
    )
    add_flags(whole)
    return whole


def _single_cluster(
    flags: argparse.Namespace, environment: Mapping[str, str], warnings: list[str]
) -> Cluster:
    if not flags.client_kubeconfig:
        raise ConfigError(
            "--client-kubeconfig: required: the kubeconfig of the lower cluster (or --config for many)"
        )
    cluster = Cluster(
        name="",
        labels=_node_label(environment, warnings),
        taints=_taints(flags, environment),
        capacity=CapacityPolicy(),
        namespaces=NamespaceConfig(adopt=comma_list(flags.adopt_namespaces or "")),
        policy=Policy(preset=flags.policy_preset),
    )
    setting.apply(cluster, flags, environment)
    cluster.name = cluster.node_name = cluster.node_name or DEFAULT_NODE_NAME
    return cluster


def _override(
    config: Config, flags: argparse.Namespace, environment: Mapping[str, str], warnings: list[str]
) -> None:
    """Set the process-wide fields whose flag or environment variable is given, even with a configuration file."""
    kubelet = config.kubelet
    for target in (config, kubelet, config.leader_election, config.identities):
        setting.apply(target, flags, environment)
    if config.workers > 1:
        config.leader_election.enabled, config.leader_election.mode = True, configuration.SHARDED
    if flags.enable_controllers is not None:
        # tensile-kube skips unknown names with a warning, and existing manifests depend on that.
        unknown = [one for one in config.enable_controllers if one not in KNOWN_CONTROLLERS]
        warnings += [f"--enable-controllers: {name!r} is unknown and skipped" for name in unknown]
        config.enable_controllers = [one for one in config.enable_controllers if one not in unknown]
    if flags.rotate_server_certificates:
        kubelet.serving_certificate = "CSR"
    elif flags.rotate_server_certificates is False and kubelet.serving_certificate == "CSR":
        kubelet.serving_certificate = None
    if flags.no_verify_clients is not None:
        kubelet.anonymous_auth, kubelet.authorization = flags.no_verify_clients, not flags.no_verify_clients


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
    if effect not in TAINT_EFFECTS:
        raise ConfigError(f"VKUBELET_TAINT_EFFECT: {effect!r} is not one of {', '.join(TAINT_EFFECTS)}")
    key = flags.taint or environment.get("VKUBELET_TAINT_KEY", "") or names.TAINT_PROVIDER
    return [
        Taint(key=key, value=environment.get("VKUBELET_TAINT_VALUE", "") or flags.provider, effect=effect)
    ]
