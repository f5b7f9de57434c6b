"""The command line: the flags of tensile-kube under the same names, and additional flags."""

from __future__ import annotations

import argparse

from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_boolean, add_log_flags, add_upper_flags, address, duration

PROGRAM = "virtual-node-descheduler"
LEADER_FLAGS = ("leader_elect_lease_duration", "leader_elect_renew_deadline", "leader_elect_retry_period")


def parser() -> Parser:
    """Return the parser of all flags."""
    whole = Parser(
        PROGRAM,
        about="Moves pods that their lower cluster cannot start, and pods of lost clusters, to other ones.",
        examples=[
            ("What would be done, without doing it", "--kubeconfig upper.yaml --dry-run"),
            (
                "By a policy file, as kubernetes-sigs/descheduler has them",
                "--policy-config-file policy.yaml",
            ),
        ],
    )
    cluster = whole.add_argument_group("upper cluster")
    add_upper_flags(cluster)
    cluster.add_argument(
        "--kube-api-qps", type=float, default=50.0, metavar="N", help="requests per second (50)"
    )
    cluster.add_argument(
        "--kube-api-burst", type=int, default=100, metavar="N", help="requests at once (100)"
    )
    cluster.add_argument(
        "--node-selector", default="", metavar="SELECTOR", help="which virtual nodes to look after (all)"
    )

    what = whole.add_argument_group("strategies")
    what.add_argument(
        "--policy-config-file",
        default="",
        metavar="FILE",
        help="DeschedulerPolicy, v1alpha1 or v1alpha2; decides alone which strategies run",
    )
    what.add_argument(
        "--descheduling-interval",
        type=duration,
        default=0.0,
        metavar="D",
        help="between two passes of the periodic strategies (0: one pass at start)",
    )
    what.add_argument(
        "--unschedulable-threshold",
        type=duration,
        default=180.0,
        metavar="D",
        help="how long a lower cluster may try to schedule a pod (3m)",
    )
    what.add_argument(
        "--include-failures",
        default="",
        metavar="LIST",
        help="failures below that count, too: image, quota, admission (none)",
    )
    add_boolean(
        what,
        "--move-off-lost-clusters",
        default=True,
        help_text="move pods off clusters that are lost (true)",
    )
    what.add_argument(
        "--stale-after",
        type=duration,
        default=20.0,
        metavar="D",
        help="a virtual node NotReady or silent for longer is lost (20s)",
    )
    what.add_argument(
        "--heal-after",
        type=duration,
        default=30.0,
        metavar="D",
        help="a virtual node well for this long is used again (30s)",
    )
    what.add_argument(
        "--stale-pods-per-second",
        type=float,
        default=5.0,
        metavar="N",
        help="how fast pods leave a lost cluster (5)",
    )
    _add_moving(whole.add_argument_group("moving"))
    _add_process(whole.add_argument_group("process"))
    return whole


def _add_moving(group: argparse._ArgumentGroup) -> None:
    add_boolean(
        group, "--dry-run", default=False, help_text="only tell, in log and events, what would be done"
    )
    group.add_argument(
        "--max-pods-to-evict-per-node",
        type=int,
        default=None,
        metavar="N",
        help="per pass, or minute without --descheduling-interval (0: no limit)",
    )
    add_boolean(
        group,
        "--evict-local-storage-pods",
        default=None,  # type: ignore[arg-type] # None: the policy file decides
        help_text="pods with emptyDir or hostPath volumes may go, too",
    )
    group.add_argument(
        "--freeze-namespace",
        default="kube-system",
        metavar="NS",
        help="the descheduler's own namespace: its memory, records of moves and their key (kube-system)",
    )
    group.add_argument(
        "--freeze-period",
        type=duration,
        default=300.0,
        metavar="D",
        help="how long an owner's pods avoid a node that could not schedule them (5m)",
    )
    group.add_argument(
        "--max-deschedules",
        type=int,
        default=5,
        metavar="N",
        help="rounds of moving per owner until it is given up (5; 0: never)",
    )
    group.add_argument(
        "--deschedule-window",
        type=duration,
        default=7200.0,
        metavar="D",
        help="time without a round after which an owner starts anew (2h)",
    )
    group.add_argument(
        "--backoff",
        type=duration,
        default=60.0,
        metavar="D",
        help="between an owner's first round and its second; doubles (1m)",
    )


def _add_process(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--health-addr",
        type=address,
        default="",
        metavar="HOST:PORT",
        help="serve /healthz, /readyz and /metrics there (off)",
    )
    add_boolean(group, "--leader-elect", default=True, help_text="only one of several replicas works (true)")
    for flag, default in zip(LEADER_FLAGS, (15.0, 10.0, 2.0), strict=True):
        group.add_argument(
            f"--{flag.replace('_', '-')}", type=duration, default=default, metavar="D", help=f"({default:g}s)"
        )
    add_log_flags(group)
