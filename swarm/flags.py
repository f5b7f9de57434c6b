"""The command line and its options."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection.flags import ControllerOptions, add_election_flags, lease_times
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import (
    Klog,
    add_duration,
    add_flag,
    add_health_address,
    add_log_flags,
    add_rate_flags,
    add_upper_flags,
    comma_list,
    options,
    positive,
    take_klog,
)
from swarm import compatibility
from swarm.compatibility import Legacy

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PROGRAM = "virtual-node-swarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ControllerOptions):
    """A parsed command line."""

    legacy: Legacy | None = None
    """The Swarm to create for k8s-swarm's command line; None: another command line was given."""
    namespace: str = ""
    """Namespace of the Swarms to reconcile; empty: all namespaces."""
    lease_namespace: str = "kube-system"
    gone_after: float = 60.0
    poll_cidrs: tuple[Network, ...] = ()
    """Ranges of pod IPs on virtual nodes to which the controller connects."""
    qps: float = 200.0
    burst: int = 400


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line.

    Raises:
        ConfigError: a value is wrong; the message names the flag.
        SystemExit: raised by argparse for ``--help`` and unknown flags.
    """
    rest, klog = take_klog(arguments)
    if rest[:1] == [compatibility.COMMAND]:
        return _legacy(rest[1:], klog)
    given = parser().parse_args(rest)
    return options(
        Options,
        given,
        gone_after=positive("--gone-after", given.gone_after),
        poll_cidrs=_networks("--poll-cidrs", given.poll_cidrs),
        qps=given.kube_api_qps,
        burst=given.kube_api_burst,
        lease=lease_times(given),
        klog=klog,
    )


def _networks(flag: str, text: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(one) for one in comma_list(text))
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}; write ranges such as 10.42.0.0/16") from None


def _legacy(arguments: Sequence[str], klog: Klog) -> Options:
    given = compatibility.parser(PROGRAM).parse_args(arguments)
    legacy = compatibility.read(given)
    return options(
        Options,
        given,
        legacy=legacy,
        lease_namespace=legacy.namespace,
        health_addr=f":{legacy.http_port}" if legacy.http_port else "",
        klog=klog,
    )


def parser() -> Parser:
    """Return the parser with all flags."""
    whole = Parser(
        PROGRAM,
        about="Assigns the jobs of Swarms to worker pods and hands them over. With `worker`, runs one worker.",
        examples=[
            ("Reconcile all Swarms of a cluster", "--kubeconfig upper.yaml"),
            ("Run one worker with a process per job", "worker --swarm streams --exec 'consume {job}'"),
        ],
    )
    cluster = whole.add_argument_group("upper cluster")
    add_upper_flags(cluster)
    add_rate_flags(cluster, qps=200.0, burst=400)
    add_flag(cluster, "--namespace NS", "only Swarms of this namespace (all)")
    what = whole.add_argument_group("hand-over")
    add_duration(
        what,
        "--gone-after",
        60.0,
        "how long the node of a deleted pod without final status must be healthy before its jobs are reassigned (1m)",
    )
    add_flag(
        what,
        "--poll-cidrs CIDR,...",
        "ranges of the pod IPs on virtual nodes that may be polled for workers.httpPort (none)",
        default="",
    )
    process = whole.add_argument_group("process")
    add_flag(
        process,
        "--lease-namespace NS",
        "namespace of the Lease by which replicas elect one (kube-system)",
        default="kube-system",
    )
    add_health_address(process)
    add_election_flags(process)
    add_log_flags(process)
    return whole
