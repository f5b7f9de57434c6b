"""Options from the command line."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller_runtime.leaderelection.flags import LeaseTimes
from controller_runtime.process.flags import Klog
from swarm.compatibility import Legacy


@dataclass(frozen=True, slots=True)
class Options:
    """A parsed command line."""

    legacy: Legacy | None = None
    """The Swarm of k8s-swarm's command line; None: not that command line."""
    kubeconfig: str = ""
    master: str = ""
    namespace: str = ""
    """Namespace of the Swarms to reconcile; empty: all namespaces."""
    lease_namespace: str = "kube-system"
    gone_after: float = 60.0
    qps: float = 200.0
    burst: int = 400
    leader_elect: bool = True
    lease: LeaseTimes = field(default_factory=LeaseTimes)
    health_addr: str = ""
    log_level: str = "info"
    log_format: str = "auto"
    klog: Klog = field(default_factory=Klog)
