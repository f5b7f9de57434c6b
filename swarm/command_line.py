"""The command line's parser."""

from __future__ import annotations

from controller_runtime.leaderelection.flags import add_election_flags
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import (
    add_duration,
    add_flag,
    add_health_address,
    add_log_flags,
    add_rate_flags,
    add_upper_flags,
)

PROGRAM = "virtual-node-swarm"


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
