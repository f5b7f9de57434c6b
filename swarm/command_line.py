"""The command line's parser."""

from __future__ import annotations

from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import (
    add_boolean,
    add_duration,
    add_health_address,
    add_log_flags,
    add_upper_flags,
)

PROGRAM = "virtual-node-swarm"
LEADER_FLAGS = ("leader_elect_lease_duration", "leader_elect_renew_deadline", "leader_elect_retry_period")


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
    cluster.add_argument(
        "--kube-api-qps", type=float, default=200.0, metavar="N", help="requests per second (200)"
    )
    cluster.add_argument(
        "--kube-api-burst", type=int, default=400, metavar="N", help="burst of requests (400)"
    )
    cluster.add_argument("--namespace", default="", metavar="NS", help="only Swarms of this namespace (all)")
    what = whole.add_argument_group("hand-over")
    add_duration(
        what,
        "--gone-after",
        60.0,
        "how long the node of a deleted pod without final status must be healthy before its jobs are reassigned (1m)",
    )
    process = whole.add_argument_group("process")
    process.add_argument(
        "--lease-namespace",
        default="kube-system",
        metavar="NS",
        help="namespace of the Lease by which replicas elect one (kube-system)",
    )
    add_health_address(process)
    add_boolean(
        process, "--leader-elect", default=True, help_text="only one of several replicas works (true)"
    )
    for flag, default in zip(LEADER_FLAGS, (15.0, 10.0, 2.0), strict=True):
        add_duration(process, f"--{flag.replace('_', '-')}", default, f"({default:g}s)")
    add_log_flags(process)
    return whole
