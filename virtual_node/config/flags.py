"""The flags of the daemon: tensile-kube's unchanged, and our own. ``command_line`` parses them."""

from __future__ import annotations

import argparse

from controller_runtime.api.policy.presets import DEFAULT_PRESET, PRESETS
from controller_runtime.process.flags import add_boolean, add_log_flags, address, duration
from virtual_node.config import types as configuration

DEFAULT_NODE_NAME = "virtual-kubelet"
WITHOUT_EFFECT = {
    "--provider-config": "the lower cluster is named by --client-kubeconfig or --config",
    "--authentication-token-webhook-cache-ttl": "a good token is remembered for 2 minutes",
    "--authorization-webhook-cache-authorized-ttl": "a yes is remembered for 5 minutes",
    "--authorization-webhook-cache-unauthorized-ttl": "a no is remembered for 30 seconds",
}
"""tensile-kube's flags without effect, and what applies instead. Any value is accepted because none is used."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the daemon to a parser."""
    upper = parser.add_argument_group("upper cluster")
    upper.add_argument(
        "--kubeconfig",
        default=None,
        metavar="FILE",
        help="upper cluster's kubeconfig ($KUBECONFIG, ~/.kube/config, in-cluster)",
    )
    upper.add_argument(
        "--kube-api-qps",
        type=float,
        default=0,
        metavar="N",
        help="requests per second to the upper apiserver (500)",
    )
    upper.add_argument(
        "--kube-api-burst",
        type=int,
        default=0,
        metavar="N",
        help="requests at once to the upper apiserver (1000)",
    )
    upper.add_argument(
        "--cluster-id",
        default="",
        metavar="ID",
        help="the upper cluster's identity on objects made below (uid of its kube-system namespace)",
    )
    upper.add_argument(
        "--startup-timeout",
        type=duration,
        default=0.0,
        metavar="D",
        help="how long the upper cluster may take to answer at start (0: for ever)",
    )

    lower = parser.add_argument_group("lower cluster (one; use --config for many)")
    lower.add_argument(
        "--client-kubeconfig",
        default="",
        metavar="FILE",
        help="lower cluster's kubeconfig (required without --config)",
    )
    lower.add_argument(
        "--client-qps",
        type=float,
        default=500,
        metavar="N",
        help="requests per second to the lower apiserver (500)",
    )
    lower.add_argument(
        "--client-burst",
        type=int,
        default=1000,
        metavar="N",
        help="requests at once to the lower apiserver (1000)",
    )
    lower.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="YAML that declares many lower clusters; watched and applied live",
    )

    add_boolean(
        lower,
        "--wait-for-config",
        default=False,
        help_text="while the file of --config, or a file that it names, cannot be used, report why and wait, not ready, "
        "instead of ending",
    )
    lower.add_argument(
        "--adopt-namespaces",
        default="",
        metavar="LIST",
        help="existing lower namespaces that pods may use: shell patterns, '*' for all (none)",
    )
    lower.add_argument(
        "--policy-preset",
        choices=tuple(PRESETS),
        default=None,
        help=f"what pods may ask of the lower cluster ({DEFAULT_PRESET})",
    )

    node = parser.add_argument_group("node")
    node.add_argument(
        "--nodename", default=None, metavar="NODE", help=f"name of the virtual node ({DEFAULT_NODE_NAME})"
    )
    node.add_argument("--provider", default="k8s", metavar="NAME", help="k8s is the only one")
    node.add_argument(
        "--os", default="Linux", metavar="OS", help="accepted for compatibility; read from the lower nodes"
    )
    _add_without_effect(node, "--provider-config", metavar="FILE")
    add_boolean(node, "--disable-taint", default=False, help_text="register without the virtual-node taint")
    node.add_argument(
        "--taint", default="", metavar="KEY", help="deprecated: key of the taint; use VKUBELET_TAINT_KEY"
    )
    add_boolean(
        node,
        "--enable-node-lease",
        default=True,
        help_text="accepted for compatibility; Leases are always renewed",
    )

    pods = parser.add_argument_group("pods")
    pods.add_argument(
        "--enable-controllers",
        default=",".join(configuration.KNOWN_CONTROLLERS),
        metavar="CONTROLLERS",
        help="which optional controllers run (PVControllers,ServiceControllers)",
    )
    add_boolean(
        pods,
        "--enable-serviceaccount",
        default=True,
        help_text="pods below get tokens of the upper cluster (true)",
    )
    pods.add_argument(
        "--kubernetes-service",
        default="lower",
        choices=("lower", "upper"),
        help="whose apiserver KUBERNETES_SERVICE_HOST names in pods (lower)",
    )
    pods.add_argument(
        "--kubernetes-service-url",
        default="",
        metavar="URL",
        help="the upper apiserver as pods below reach it (the URL that we use ourselves)",
    )
    pods.add_argument(
        "--ignore-labels",
        default="group.batch.scheduler.tencent.com",
        metavar="LIST",
        help="pod labels not carried below (group.batch.scheduler.tencent.com)",
    )
    pods.add_argument(
        "--pod-sync-workers", type=int, default=50, metavar="N", help="pods reconciled at the same time (50)"
    )
    pods.add_argument(
        "--full-resync-period",
        type=duration,
        default=600.0,
        metavar="D",
        help="how often every pod is compared again, from the caches (10m)",
    )
    pods.add_argument(
        "--namespace",
        default="",
        metavar="NS",
        help="accepted for compatibility; pods of every namespace are mirrored",
    )
    pods.add_argument(
        "--cluster-domain",
        default="cluster.local",
        metavar="DOMAIN",
        help="accepted for compatibility; the lower cluster's DNS serves its pods",
    )

    kubelet = parser.add_argument_group("kubelet API")
    kubelet.add_argument(
        "--client-verify-ca",
        default=None,
        metavar="FILE",
        help="CA of the upper apiserver's client certificate ($APISERVER_CA_CERT_LOCATION, else the upper cluster's own)",
    )
    add_boolean(
        kubelet,
        "--no-verify-clients",
        default=False,
        help_text="serve anyone who can reach the port (never in production)",
    )
    add_boolean(
        kubelet,
        "--authentication-token-webhook",
        default=True,
        help_text="accepted for compatibility; bearer tokens are always reviewed",
    )
    for flag in WITHOUT_EFFECT:
        if flag.endswith("-ttl"):
            _add_without_effect(kubelet, flag, metavar="D")
    add_boolean(
        kubelet,
        "--rotate-server-certificates",
        default=False,
        help_text="serve a certificate that the upper cluster signs (CSR), and renew it (false: self-signed)",
    )
    add_boolean(
        kubelet,
        "--approve-server-certificates",
        default=False,
        help_text="approve our own requests for serving certificates (false: an administrator does)",
    )

    process = parser.add_argument_group("process")
    process.add_argument(
        "--metrics-addr",
        type=address,
        default="",
        metavar="HOST:PORT",
        help="serve /healthz, /readyz and /metrics there (off)",
    )
    process.add_argument(
        "--web-addr",
        type=address,
        default="",
        metavar="HOST:PORT",
        help="serve a read-only page about clusters, pods and events there (off)",
    )
    add_boolean(
        process,
        "--leader-elect",
        default=False,
        help_text="several replicas: one works, the others wait for its lease (false)",
    )
    process.add_argument(
        "--leader-elect-resource-namespace",
        default="",
        metavar="NS",
        help="namespace of the Lease in the upper cluster (kube-system)",
    )
    process.add_argument(
        "--leader-elect-resource-name", default="", metavar="NAME", help="name of the Lease (virtual-node)"
    )
    add_log_flags(process)


def _add_without_effect(group: argparse._ActionsContainer, flag: str, *, metavar: str) -> None:
    group.add_argument(
        flag,
        default=None,
        metavar=metavar,
        help=f"accepted for compatibility; {WITHOUT_EFFECT[flag]}",
    )
