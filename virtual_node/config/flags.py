"""The flags of the daemon: those of configuration fields, and those that do not belong to a single field.

The fields in ``types`` declare their own flags. ``command_line`` parses all of them.
"""

from __future__ import annotations

import argparse

from clusterset.config import Cluster
from clusterset.model.policy.presets import DEFAULT_PRESET, PRESETS
from controller_runtime.process import setting
from controller_runtime.process.flags import add_boolean, add_flag, add_log_flags, duration
from controller_runtime.process.setting import KUBELET, LOWER, NODE, PODS, PROCESS, UPPER
from virtual_node.config.kubelet_types import KubeletConfig
from virtual_node.config.types import Config, IdentitiesConfig, LeaderElectionConfig

WITH_FLAGS = (Config, Cluster, KubeletConfig, LeaderElectionConfig, IdentitiesConfig)
"""The structures with fields that declare flags."""
DEFAULT_NODE_NAME = "virtual-kubelet"
WITHOUT_EFFECT = {
    "--provider-config": "the lower cluster is named by --client-kubeconfig or --config",
    "--authentication-token-webhook-cache-ttl": "accepted tokens are cached for 2 minutes",
    "--authorization-webhook-cache-authorized-ttl": "allowed requests are cached for 5 minutes",
    "--authorization-webhook-cache-unauthorized-ttl": "denied requests are cached for 30 seconds",
}
"""tensile-kube's flags without effect, and what applies instead. Any value is accepted, because none is used."""
_COMPATIBLE = (
    (NODE, "--os OS", "read from the lower nodes"),
    (NODE, "--provider-config FILE", WITHOUT_EFFECT["--provider-config"]),
    (NODE, "--enable-node-lease", "Leases are always renewed"),
    (PODS, "--namespace NS", "pods of every namespace are mirrored"),
    (PODS, "--cluster-domain DOMAIN", "the lower cluster's DNS serves its pods"),
    (KUBELET, "--authentication-token-webhook", "bearer tokens are always reviewed"),
    *((KUBELET, f"{flag} D", text) for flag, text in WITHOUT_EFFECT.items() if flag.endswith("-ttl")),
)
"""Group, usage and replacement of each flag that is accepted only for compatibility."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the daemon to a parser."""
    groups = {title: parser.add_argument_group(title) for title in setting.GROUPS}
    lower, node, kubelet = groups[LOWER], groups[NODE], groups[KUBELET]
    for kind in WITH_FLAGS:
        setting.add_flags(groups, kind)
    add_flag(
        groups[UPPER],
        "--startup-timeout D",
        "time limit for the first response of the upper cluster at start (0: none)",
        type=duration,
        default=0.0,
    )
    add_flag(
        lower,
        "--config FILE",
        "YAML that declares many lower clusters; changes of `clusters` are applied live",
    )
    add_boolean(
        lower,
        "--wait-for-config",
        default=False,
        help_text="while the file of --config, or a file that it names, cannot be used, report why and wait, "
        "not ready, instead of exiting",
    )
    add_flag(
        lower,
        "--adopt-namespaces LIST",
        "existing lower namespaces that pods may use: shell patterns, '*' for all (none)",
        default=None,
    )
    lower.add_argument(
        "--policy-preset",
        choices=tuple(PRESETS),
        default=None,
        help=f"preset of the policy: what pods may use of the lower cluster ({DEFAULT_PRESET})",
    )
    add_flag(node, "--provider NAME", "k8s is the only one", default="k8s")
    add_boolean(node, "--disable-taint", default=False, help_text="register without the virtual-node taint")
    add_flag(node, "--taint KEY", "deprecated: key of the taint; use VKUBELET_TAINT_KEY")
    add_boolean(
        kubelet,
        "--no-verify-clients",
        default=False,
        help_text="serve anyone who can reach the port (never in production)",
    )
    add_boolean(
        kubelet,
        "--rotate-server-certificates",
        default=False,
        help_text="serve a certificate that the upper cluster signs (CSR), and renew it (false: self-signed)",
    )
    for title, usage, text in _COMPATIBLE:
        flag, _, metavar = usage.partition(" ")
        about = f"accepted for compatibility; {text}"
        if metavar:
            groups[title].add_argument(flag, default=None, metavar=metavar, help=about)
        else:
            add_boolean(groups[title], flag, default=True, help_text=about)
    add_log_flags(groups[PROCESS])
