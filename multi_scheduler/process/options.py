"""Options that the programs of this package share: the configuration file, the upper cluster, health and logs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import Klog, LogOptions, add_boolean, add_flag, add_upper_flags
from multi_scheduler import config as configuration
from multi_scheduler.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions(LogOptions):
    """The options that both programs share."""

    config: Config
    config_file: str
    waits: bool
    """``--wait-for-config``: report an unusable configuration and wait for a usable one."""
    rejected: str
    """Why the configuration cannot be used, with ``--wait-for-config``; empty: it can be parsed."""
    kubeconfig: str
    master: str
    health_addr: str
    """Address for health and metrics without TLS; empty: none."""


def add_config_flags(group: argparse._ActionsContainer) -> None:
    """Add ``--config``, ``--wait-for-config`` and the flags of the upper cluster."""
    add_flag(group, "--config FILE", "lower clusters, agents and weights: YAML, or tensile-kube's JSON")
    add_boolean(
        group,
        "--wait-for-config",
        default=False,
        help_text="while --config, or a file that it names, cannot be used: report the error and wait, not ready, instead of exiting",
    )
    add_upper_flags(group)


def process_options(given: argparse.Namespace, klog: Klog) -> dict[str, Any]:
    """Return the fields of ``ProcessOptions`` that are not flags of the same name, after reading the configuration.

    Raises:
        ConfigError: ``--config`` is missing, or the configuration is unusable and ``--wait-for-config`` is off.
    """
    if not given.config:
        raise ConfigError("--config: required; the file lists the lower clusters")
    shared = {"config_file": given.config, "waits": given.wait_for_config, "klog": klog}
    try:
        return {**shared, "config": configuration.load(given.config), "rejected": ""}
    except ConfigError as error:
        if not given.wait_for_config:
            raise
        return {**shared, "config": Config(), "rejected": str(error)}
