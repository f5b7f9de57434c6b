"""Model of a lower cluster: nodes, pods, and a scheduler that is free in its choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

FAST = "fast"
"""Value of the label ``disk`` of some nodes."""


@dataclass(eq=False)
class Node:
    """A lower node."""

    name: str
    cpu: int
    is_fast: bool = False
    is_cordoned: bool = False


@dataclass(eq=False)
class LowerPod:
    """A lower pod; ``upper`` is the UID of its upper pod, empty for pods of lower users."""

    name: str
    cpu: int
    upper: str = ""
    needs_fast: bool = False
    preferred: str = ""
    """The lower node that the pod prefers."""
    node: str = ""
    lacked_room: bool = False
    """Whether the scheduler ever found no node."""
    claims: str = ""
    """UID of an upper pod that a lower user writes into the label."""


@dataclass(eq=False)
class LowerCluster:
    """The true state, which others see late."""

    name: str
    random: Random
    strategy: str
    """best-fit, least-allocated, or random."""
    nodes_changed: Callable[[Node, str], None]
    """Called with a node and the kind of its change: ADDED, MODIFIED, DELETED."""
    pods_changed: Callable[[LowerPod, str], None]
    ignoring: float = 0.0
    """Probability that the scheduler ignores a preferred node that has room, because its other scores weigh more."""
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, LowerPod] = field(default_factory=dict)
    disturbed: float = -1.0
    """When a lower user or administrator last took room away."""

    def free(self, node: str) -> int:
        """Return the free cpu of a node."""
        return self.nodes[node].cpu - sum(pod.cpu for pod in self.pods.values() if pod.node == node)

    def fitting(self, pod: LowerPod) -> list[str]:
        """Return the nodes on which a pod fits."""
        return [
            name
            for name, node in self.nodes.items()
            if not node.is_cordoned and (node.is_fast or not pod.needs_fast) and self.free(name) >= pod.cpu
        ]

    def put(self, node: Node) -> None:
        """Add or change a node."""
        kind = "MODIFIED" if node.name in self.nodes else "ADDED"
        self.nodes[node.name] = node
        self.nodes_changed(node, kind)

    def remove_node(self, name: str) -> None:
        """Delete a node with its pods, as the node controller does later."""
        self.nodes_changed(self.nodes.pop(name), "DELETED")
        for pod in [pod for pod in self.pods.values() if pod.node == name and not pod.upper]:
            self.delete(pod.name)

    def create(self, pod: LowerPod) -> None:
        """Create a pod."""
        self.pods[pod.name] = pod
        self.pods_changed(pod, "ADDED")

    def delete(self, name: str) -> None:
        """Delete a pod."""
        if (pod := self.pods.pop(name, None)) is not None:
            self.pods_changed(pod, "DELETED")

    def schedule(self) -> list[LowerPod]:
        """Bind the pods that fit, in random order; return those of upper pods that lacked room."""
        waiting = [pod for pod in self.pods.values() if not pod.node]
        self.random.shuffle(waiting)
        lacking = []
        for pod in waiting:
            if fitting := self.fitting(pod):
                pod.node = self._choice(pod, fitting)
                self.pods_changed(pod, "MODIFIED")
            else:
                pod.lacked_room = True
                if pod.upper:
                    lacking.append(pod)
        return lacking

    def _choice(self, pod: LowerPod, fitting: list[str]) -> str:
        if pod.preferred in fitting and (not self.ignoring or self.random.random() >= self.ignoring):
            return pod.preferred
        if self.strategy == "random":
            return self.random.choice(fitting)
        sign = 1 if self.strategy == "best-fit" else -1
        return min(fitting, key=lambda name: (sign * self.free(name), self.random.random()))
