"""What a virtual-node process runs now, and why parts of it do not work. No IO.

The process (``app``) and the tasks of its lower clusters (``Supervisor``) change it. Probes, metrics, the page and the reports
on the virtual nodes' Leases read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from controller_runtime.leaderelection import LeaderElector
from controller_runtime.serving.health import Check
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.config.types import Config
from virtual_node.examine.expiry import ending
from virtual_node.examine.leases import Report
from virtual_node.sharding import Shards


@dataclass(eq=False, repr=False)
class ProcessState:
    """The lower clusters of one process, and its place among the replicas."""

    config: Config
    """The applied configuration."""
    cluster_id: str = ""
    """Identity of the upper cluster; empty: it has not answered yet."""
    clusters: dict[str, LowerCluster] = field(default_factory=dict)
    """The running lower clusters, by name."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a lower cluster does not run and is restarted later, by name."""
    incorrect: dict[str, str] = field(default_factory=dict)
    """Why the last start of a lower cluster failed because of names, kubeconfigs or files, by name."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Why kubeconfigs are not applied, by lower cluster; the empty key is for the configuration file."""
    optional: frozenset[str] = frozenset()
    """Lower clusters that do not affect readiness, because not only the administrator can add them."""
    is_standby: bool = False
    """Another replica leads."""
    elector: LeaderElector | None = None
    """None: this process is the only replica."""
    shards: Shards | None = None
    """None: the replica that leads runs all lower clusters."""

    @property
    def own(self) -> Config:
        """Return the configuration with the lower clusters of this replica only."""
        if self.shards is None:
            return self.config
        held = self.shards.held
        clusters = [cluster for cluster in self.config.clusters if cluster.name in held]
        return msgspec.structs.replace(self.config, clusters=clusters)

    @property
    def configured(self) -> Sequence[str]:
        """Return the names of the lower clusters in the applied configuration that this replica shall run."""
        return [cluster.name for cluster in self.own.clusters]

    @property
    def failed(self) -> dict[str, str]:
        """Return why lower clusters do not work although their API servers may answer, by name."""
        unwritten = {
            cluster: f"virtual node {name} cannot be registered or patched: {node.error}"
            for cluster, running in self.clusters.items()
            for name, node in running.nodes.items()
            if node.error
        }
        return {**unwritten, **self.failures}

    @property
    def unusable(self) -> dict[str, str]:
        """Return why lower clusters cannot run until the user corrects names, kubeconfigs or files, by name."""
        return {
            name: why
            for name, why in self.incorrect.items()
            if (running := self.clusters.get(name)) is None or running.pods is None
        }

    @property
    def expiring(self) -> dict[str, str]:
        """Return why the serving certificates of lower API servers need attention soon, by lower cluster."""
        now = datetime.now(UTC)
        return {
            name: why
            for name, cluster in self.clusters.items()
            if cluster.health is not None and (why := ending(cluster.health.served_certificate, now))
        }

    def report(self) -> Report:
        """Return what the process reports on its virtual nodes' Leases."""
        return Report(self.rejected, self.failed, self.expiring)

    def leader(self) -> str:
        """Return the host name of the leader while this replica stands by, otherwise an empty string."""
        return self.elector.leader.partition("_")[0] if self.is_standby and self.elector is not None else ""

    def elsewhere(self) -> Mapping[str, str]:
        """Return the host names of the other replicas that run lower clusters, by cluster."""
        return self.shards.elsewhere() if self.shards else {}

    def checks(self) -> Mapping[str, Check]:
        """Return the checks of the readiness probe, by name."""

        def clusters() -> str | None:
            if not self.cluster_id:
                return "the upper cluster has not answered yet"
            # A replica that stands by is ready to take over.
            return None if self.is_standby else self.trouble() or None

        return {"ping": lambda: None, "clusters": clusters}

    def trouble(self) -> str:
        """Return why lower clusters do not mirror; empty: all do that are not optional."""
        if unusable := {name: why for name, why in self.unusable.items() if name not in self.optional}:
            return "; ".join(f"{name} cannot be used: {why}" for name, why in sorted(unusable.items()))
        silent = [
            f"{name} ({cluster.waits_for})" if cluster.waits_for else name
            for name, cluster in sorted(self.clusters.items())
            if cluster.pods is None and name not in self.optional
        ]
        return f"not mirroring yet: {', '.join(silent)}" if silent else ""
