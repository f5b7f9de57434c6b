"""The interface that the kubelet API needs from its virtual node: pods and clients of lower clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from controller_runtime.client.client import Client


@dataclass(frozen=True, slots=True)
class PodTarget:
    """The lower pod of an upper pod.

    Attributes:
        cluster: Name of the lower cluster, for messages and logs.
        namespace: Namespace of the lower pod.
        name: Name of the lower pod.
        client: Client of the lower cluster.
        pod: The upper pod, as a plain dict; read only.
    """

    cluster: str
    namespace: str
    name: str
    client: Client
    pod: Mapping[str, Any]


class Backend(Protocol):
    """The virtual node as its kubelet API uses it. Results come from caches, so no method blocks."""

    def resolve(self, namespace: str, name: str, *, uid: str | None = None) -> PodTarget | None:
        """Return the lower pod of an upper pod that is bound to this node.

        Args:
            namespace: Namespace of the upper pod.
            name: Name of the upper pod.
            uid: UID that the pod must have; None: any.

        Returns:
            The target, or None if this node has no such pod.

        Raises:
            Refusal: The upper pod has no lower pod, or the lower pod of that name is unmanaged.
        """

    def pods(self) -> Iterable[Mapping[str, Any]]:
        """Return the upper pods bound to this node, as plain dicts (a generator may decode them lazily)."""

    def running_pods(self) -> Iterable[Mapping[str, Any]]:
        """Return the upper pods of this node whose lower pods run, as plain dicts."""


def container_names(pod: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of a pod's containers, init containers and ephemeral containers."""
    spec = pod.get("spec") or {}
    lists = (spec.get(field) or () for field in ("containers", "initContainers", "ephemeralContainers"))
    return frozenset(container["name"] for containers in lists for container in containers)
