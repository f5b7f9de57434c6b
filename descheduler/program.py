"""The declaration of ``virtual-node-descheduler``, with tensile-kube's flags and its own, and the rights that it needs.

A policy file chooses the strategies and gives values that flags override.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec

from clusterset.model import names
from clusterset.model.moving import node_avoidance
from clusterset.model.rights import VIRTUAL_NODE
from controller_runtime.apimachinery import matching
from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection import ControllerSettings
from controller_runtime.process.flags import duration
from controller_runtime.process.program import Program
from controller_runtime.process.settings import UPPER as UPPER_CLUSTER
from controller_runtime.process.settings import NotNegative, Positive, Setting, settings
from controller_runtime.rights import READ, Right, in_own_namespace, leader_election
from descheduler import config as policies
from descheduler import memory
from descheduler.config import MOVING, EvictionOptions, StrategyConfig
from descheduler.moving import record
from descheduler.strategies import registry
from descheduler.strategies.base import BY_FLAGS
from descheduler.strategies.drain import Drain
from descheduler.strategies.stale_cluster import StaleCluster, StaleClusterParams
from descheduler.strategies.unschedulable import Unschedulable, UnschedulableParams

_STRATEGIES = "strategies"


class DeschedulerSettings(ControllerSettings, kw_only=True):
    """The flags of the descheduler, and the content of its policy file."""

    node_selector: Annotated[str, Setting(UPPER_CLUSTER, "--node-selector SELECTOR")] = ""
    """Virtual nodes to deschedule from. Empty: all."""
    policy_file: Annotated[str, Setting(_STRATEGIES, "--policy-config-file FILE")] = ""
    """DeschedulerPolicy, v1alpha1 or v1alpha2; replaces the flags of strategies."""
    interval: Annotated[NotNegative, Setting(_STRATEGIES, "--descheduling-interval D", parse=duration)] = 0.0
    """Time between two passes of periodic strategies. 0: only one pass, at start."""
    unschedulable: UnschedulableParams = msgspec.field(default_factory=UnschedulableParams)
    move_off_lost_clusters: Annotated[bool, Setting(BY_FLAGS, "--move-off-lost-clusters")] = True
    """Move pods off lost clusters."""
    stale_cluster: StaleClusterParams = msgspec.field(default_factory=StaleClusterParams)
    freeze_namespace: Annotated[str, Setting(MOVING, "--freeze-namespace NS")] = "kube-system"
    """Namespace of the descheduler's ConfigMaps, its records of moves and their key."""
    freeze_period: Annotated[Positive, Setting(MOVING, "--freeze-period D", parse=duration)] = 300.0
    """How long an owner's pods avoid a node that could not schedule them."""
    eviction: EvictionOptions = msgspec.field(default_factory=EvictionOptions)
    strategies: tuple[StrategyConfig, ...] = ()
    """The strategies to run."""
    warnings: tuple[str, ...] = ()
    """Texts for the log about flags without effect."""

    def load(self) -> None:
        """Choose the strategies by the policy file or by flags; read the values of the file, see ``ProgramSettings.load``."""
        if self.policy_file:
            self._load_policy()
        else:
            self.strategies = (
                StrategyConfig(Unschedulable.name, self.unschedulable, "--unschedulable-threshold"),
                *(
                    [StrategyConfig(StaleCluster.name, self.stale_cluster, "--stale-after")]
                    if self.move_off_lost_clusters
                    else []
                ),
            )
        if all(strategy.name != Drain.name for strategy in self.strategies):  # a drain works with any policy
            self.strategies += (StrategyConfig(Drain.name, Drain.params_type(), Drain.name),)

    def _load_policy(self) -> None:
        known = registry.strategies()
        policy = policies.load(self.policy_file, known=registry.known_names(known))
        self.strategies = tuple(
            replace(
                each, params=policies.convert(each.params, known[each.name].params_type, where=each.where)
            )
            for each in policy.strategies
        )
        self.node_selector = policy.node_selector or ""
        for name, value in policy.eviction.items():
            setattr(self.eviction, name, value)
        self.warnings = tuple(
            f"{setting.flag} has no effect: --policy-config-file configures all strategies"
            for kind in (type(self), UnschedulableParams, StaleClusterParams)
            for _, setting in settings(kind)
            if setting.group == BY_FLAGS and setting.dest in self.given
        )

    def check(self) -> None:
        """Check and complete the settings together, see ``ProgramSettings.check``."""
        super().check()
        try:
            matching.parse_selector(self.node_selector)
        except ValueError as error:
            raise ConfigError(f"--node-selector: {error}") from None
        eviction = self.eviction
        eviction.limits.backoff_maximum = max(eviction.limits.backoff, eviction.limits.backoff_maximum)
        eviction.pass_seconds = self.interval or eviction.pass_seconds
        if eviction.dry_run:
            # A dry run takes no part in leader election, because it must not write a Lease. Its replicas cannot
            # conflict, because they write nothing.
            self.election.enabled = False


PROGRAM = Program(
    name="virtual-node-descheduler",
    about="Moves pods that their lower cluster cannot start, and pods of lost clusters, to other ones.",
    settings=DeschedulerSettings,
    run="descheduler.app:run",
    rights="descheduler.program",
    examples=[
        ("Report the moves without moving pods", "--kubeconfig upper.yaml --dry-run"),
        ("Use a policy file of kubernetes-sigs/descheduler", "--policy-config-file policy.yaml"),
    ],
)


_MEMORY = "the memory of full nodes and of moves"

UPPER: tuple[Right, ...] = (
    Right("", "nodes", READ, "virtual nodes"),
    Right("", "nodes", ("patch",), "taint virtual nodes of lost clusters", names=(VIRTUAL_NODE,)),
    Right("", "pods", (*READ, "create", "delete"), "move bare pods"),
    Right(
        "",
        "pods",
        ("patch",),
        "start the replacement of a pod before its eviction, and keep divisions when workloads scale down",
    ),
    Right("", "services", ("list",), "whether a Service would lose such a pod"),
    *(
        Right(
            "apps", resource, ("get",), "how many pods an owner needs, and how many additional pods it allows"
        )
        for resource in ("deployments", "replicasets", "statefulsets")
    ),
    Right("", "pods", ("create",), "move pods that a controller replaces", "eviction"),
    Right(
        "lifecycle.k8s.io",
        "evictionrequests",
        ("get", "list", "create", "delete"),
        "let the evictionResponders of a pod act before it is moved",
    ),
    Right("", "namespaces", ("get",), "never create a pod in a later namespace of the same name"),
    in_own_namespace("", "configmaps", ("create",), _MEMORY),
    in_own_namespace("", "configmaps", ("get", "patch"), _MEMORY, node_avoidance.CONFIG_MAP, memory.HISTORY),
    in_own_namespace(
        "apps",
        "controllerrevisions",
        (*READ, "create", "delete"),
        "durable records of pods that are being moved",
    ),
    in_own_namespace(
        "",
        "secrets",
        ("get", "update"),
        "the key of the records' hashes. Create the Secret empty, or grant create too",
        record.KEY_OBJECT,
    ),
    Right("", "persistentvolumeclaims", ("get",), "claims that tie a pod to a cluster"),
    Right("", "persistentvolumes", ("get",), "volumes that tie a pod to a cluster"),
    Right("", "events", ("create", "patch"), "report in kubectl describe"),
    Right("coordination.k8s.io", "leases", READ, "heartbeats of virtual nodes", "", names.NODE_LEASES),
    *leader_election(PROGRAM.name, "only one of several replicas works"),
)
