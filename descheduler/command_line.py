"""The command line: the flags of tensile-kube under the same names, and additional flags."""

from __future__ import annotations

import argparse

from controller_runtime.leaderelection.flags import add_election_flags
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import (
    add_boolean,
    add_duration,
    add_flag,
    add_health_address,
    add_log_flags,
    add_rate_flags,
    add_upper_flags,
)

PROGRAM = "virtual-node-descheduler"


def parser() -> Parser:
    """Return the parser of all flags."""
    flags = Parser(
        PROGRAM,
        about="Moves pods that their lower cluster cannot start, and pods of lost clusters, to other ones.",
        examples=[
            ("Report the moves without moving pods", "--kubeconfig upper.yaml --dry-run"),
            (
                "Use a policy file of kubernetes-sigs/descheduler",
                "--policy-config-file policy.yaml",
            ),
        ],
    )
    cluster = flags.add_argument_group("upper cluster")
    add_upper_flags(cluster)
    add_rate_flags(cluster, qps=50.0, burst=100)
    add_flag(cluster, "--node-selector SELECTOR", "virtual nodes to deschedule from (all)")

    strategies = flags.add_argument_group("strategies")
    add_flag(
        strategies,
        "--policy-config-file FILE",
        "DeschedulerPolicy, v1alpha1 or v1alpha2; replaces the flags of strategies",
    )
    add_duration(
        strategies,
        "--descheduling-interval",
        0.0,
        "time between two passes of periodic strategies (0: only one pass, at start)",
    )
    add_duration(
        strategies,
        "--unschedulable-threshold",
        180.0,
        "how long a lower cluster may try to schedule a pod (3m)",
    )
    add_flag(
        strategies,
        "--include-failures LIST",
        "failures in a lower cluster that also count: image, quota, admission (none)",
    )
    add_boolean(
        strategies,
        "--move-off-lost-clusters",
        default=True,
        help_text="move pods off lost clusters (true)",
    )
    add_duration(
        strategies,
        "--stale-after",
        20.0,
        "time of NotReady or of a silent Lease after which a virtual node is lost (20s)",
    )
    add_duration(
        strategies,
        "--heal-after",
        30.0,
        "time a lost virtual node must be healthy before it is used again (30s)",
    )
    add_flag(
        strategies,
        "--stale-pods-per-second N",
        "moves per second off lost clusters (5)",
        type=float,
        default=5.0,
    )
    _add_moving(flags.add_argument_group("moving"))
    process = flags.add_argument_group("process")
    add_health_address(process)
    add_election_flags(process)
    add_log_flags(process)
    return flags


def _add_moving(group: argparse._ArgumentGroup) -> None:
    add_boolean(
        group, "--dry-run", default=False, help_text="move no pods; report planned moves in log and events"
    )
    add_flag(
        group,
        "--max-pods-to-evict-per-node N",
        "moves off a node per pass, or per minute without --descheduling-interval (0: no limit)",
        type=int,
        default=None,
    )
    add_boolean(
        group,
        "--make-before-break",
        default=True,
        help_text="evict a Ready pod of a Deployment only after its replacement is Ready (true)",
    )
    add_flag(
        group,
        "--pods-per-wave N",
        "pods whose replacements start at the same time (20)",
        type=int,
        default=20,
    )
    add_boolean(
        group,
        "--evict-local-storage-pods",
        default=None,  # type: ignore[arg-type] # None: the policy file decides
        help_text="also move pods with emptyDir or hostPath volumes",
    )
    add_flag(
        group,
        "--freeze-namespace NS",
        "namespace of the descheduler's ConfigMaps, its records of moves and their key (kube-system)",
        default="kube-system",
    )
    add_duration(
        group,
        "--freeze-period",
        300.0,
        "how long an owner's pods avoid a node that could not schedule them (5m)",
    )
    add_flag(
        group,
        "--max-deschedules N",
        "rounds of moves per owner, after which its pods stay (5; 0: no limit)",
        type=int,
        default=5,
    )
    add_duration(
        group,
        "--deschedule-window",
        7200.0,
        "time without a round after which an owner's rounds are forgotten (2h)",
    )
    add_duration(
        group, "--backoff", 60.0, "time between an owner's first and second round; doubles every round (1m)"
    )
