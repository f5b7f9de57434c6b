"""What the kubelet API needs from the virtual node behind it: names, pods and a way to the lower cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from controller_runtime.client.client import Client


@dataclass(frozen=True, slots=True)
class PodTarget:
    """Where a pod of the upper cluster really runs.

    Attributes:
        cluster: Name of the lower cluster, for messages and logs.
        namespace: Namespace of the mirror in the lower cluster.
        name: Name of the mirror in the lower cluster.
        client: Client of the lower cluster.
        pod: The upper pod, as a plain dict; read only.
    """

    cluster: str
    namespace: str
    name: str
    client: Client
    pod: Mapping[str, Any]


class Backend(Protocol):
    """The virtual node as its kubelet API sees it. Answers come from caches: nothing here waits."""

    def resolve(self, namespace: str, name: str, *, uid: str | None = None) -> PodTarget | None:
        """Find the mirror of an upper pod that is bound to this node.

        Args:
            namespace: Namespace of the upper pod.
            name: Name of the upper pod.
            uid: When given, the pod must have this UID.

        Returns:
            The target, or None when this node has no such pod.

        Raises:
            Refusal: It has one that is not in the lower cluster. What has its name there is somebody else's.
        """

    def pods(self) -> Iterable[Mapping[str, Any]]:
        """Give the upper pods bound to this node, as plain dicts (a generator may decode them lazily)."""

    def running_pods(self) -> Iterable[Mapping[str, Any]]:
        """Give the pods that run in the lower cluster for this node, as plain dicts."""


def container_names(pod: Mapping[str, Any]) -> frozenset[str]:
    """Name every container of a pod: ordinary, init and ephemeral ones."""
    spec = pod.get("spec") or {}
    lists = (spec.get(field) or () for field in ("containers", "initContainers", "ephemeralContainers"))
    return frozenset(container["name"] for containers in lists for container in containers)
