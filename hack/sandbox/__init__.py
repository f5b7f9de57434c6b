"""Real Kubernetes clusters on loopback, for the demo, the tests and experiments.

``async with Sandbox(lower=2) as sandbox:`` gives an upper cluster and two lower clusters. They share one etcd.
Each has a kube-apiserver, a controller manager, a scheduler, and nodes by kwok or a real containerd and kubelet.
"""

from hack.sandbox.cluster import Cluster
from hack.sandbox.command import Completed
from hack.sandbox.errors import SandboxError
from hack.sandbox.sandbox import Sandbox

__all__ = ["Cluster", "Completed", "Sandbox", "SandboxError"]
