"""The declaration of ``virtual-node-swarm``, and the rights that it needs in the upper cluster."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from clusterset.model import names
from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection import ControllerSettings
from controller_runtime.process.flags import duration
from controller_runtime.process.program import Program
from controller_runtime.process.settings import PROCESS, Positive, Setting
from controller_runtime.process.settings import UPPER as UPPER_CLUSTER
from controller_runtime.rights import READ, Right, leader_election
from swarm.spec import GROUP

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_HAND_OVER = "hand-over"


class SwarmSettings(ControllerSettings, kw_only=True):
    """The flags of the controller."""

    qps: Annotated[Positive, Setting(UPPER_CLUSTER, "--kube-api-qps N")] = 200.0
    burst: Annotated[int, Setting(UPPER_CLUSTER, "--kube-api-burst N")] = 400
    namespace: Annotated[str, Setting(UPPER_CLUSTER, "--namespace NS")] = ""
    """Only Swarms of this namespace. Empty: all."""
    gone_after: Annotated[Positive, Setting(_HAND_OVER, "--gone-after D", parse=duration)] = 60.0
    """How long the node of a deleted pod without final status must be healthy before its jobs are reassigned."""
    poll_cidrs: Annotated[tuple[str, ...], Setting(_HAND_OVER, "--poll-cidrs CIDR,...")] = ()
    """Ranges of the pod IPs on virtual nodes that may be polled for workers.httpPort. Empty: none."""
    lease_namespace: Annotated[str, Setting(PROCESS, "--lease-namespace NS")] = "kube-system"
    """Namespace of the Lease by which replicas elect one."""

    def check(self) -> None:
        """Check the settings together, see ``ProgramSettings.check``."""
        super().check()
        _ = self.networks

    @property
    def networks(self) -> tuple[Network, ...]:
        """Return the ranges of pod IPs on virtual nodes to which the controller connects.

        Raises:
            ConfigError: a text is not a range.
        """
        try:
            return tuple(map(ipaddress.ip_network, self.poll_cidrs))
        except ValueError as error:
            raise ConfigError(f"--poll-cidrs: {error}; write ranges such as 10.42.0.0/16") from None


PROGRAM = Program(
    name="virtual-node-swarm",
    about="Assigns the jobs of Swarms to worker pods and hands them over. With `worker`, runs one worker.",
    settings=SwarmSettings,
    run="swarm.app:run",
    rights="swarm.program",
    examples=[
        ("Reconcile all Swarms of a cluster", "--kubeconfig upper.yaml"),
        ("Run one worker with a process per job", "worker --swarm streams --exec 'consume {job}'"),
    ],
    commands={
        "worker": "swarm.worker.sidecar:main",
        "controller": "swarm.compatibility:PROGRAM",
    },
)

UPPER: tuple[Right, ...] = (
    Right("", "nodes", READ, "whether a deleted pod's node is healthy"),
    Right("coordination.k8s.io", "leases", READ, "heartbeats of nodes", namespace=names.NODE_LEASES),
    *leader_election(PROGRAM.name, "only one of several replicas works"),
)

SWARMS: tuple[Right, ...] = (
    Right(GROUP, "swarms", (*READ, "patch"), "Swarms; their finalizer"),
    Right(GROUP, "swarms", ("update",), "assignments, and the record of grants", "status"),
    Right("", "configmaps", (*READ, "create", "update", "delete"), "lists of jobs; the share of each worker"),
    Right(
        "coordination.k8s.io",
        "leases",
        (*READ, "create", "update", "delete"),
        "acknowledgements of workers; slots of Deployments",
    ),
    Right("", "pods", READ, "workers"),
    Right("", "pods", ("create",), "restart workers (refresh: Restart)", "eviction"),
    Right("apps", "statefulsets", READ, "how many workers there are"),
    Right("apps", "deployments", READ, "how many workers there are"),
    Right("", "events", ("create", "patch"), "Events about Swarms"),
)
"""Needed in the namespace of ``--namespace``, or without this flag in all namespaces."""
