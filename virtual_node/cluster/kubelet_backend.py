"""Finds the pods of a virtual node in the informers' caches, for its kubelet API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from virtual_node.controllers.base.context import ClusterContext, PodCaches
from virtual_node.kubelet.base.backend import PodTarget
from virtual_node.kubelet.base.errors import Refusal, quoted
from virtual_node.translate.nodes.prometheus_text import PodNames


@dataclass(eq=False, repr=False)
class CachedPods:
    """Implements ``kubelet.base.backend.Backend``."""

    context: ClusterContext
    caches: PodCaches
    node_name: str

    def __post_init__(self) -> None:
        """Find the cache of the node's upper pods."""
        self._upper = self.caches.upper[self.node_name].store

    def resolve(self, namespace: str, name: str, *, uid: str | None = None) -> PodTarget | None:
        """Return the lower pod of an upper pod on this node; None: no upper pod of this name (and ``uid``).

        Raises:
            Refusal: the upper pod has no lower pod now.
        """
        pod = self._upper.get(f"{namespace}/{name}")
        if pod is None or (uid and pod.uid != uid):
            return None
        cluster = self.context.name
        lower = self.caches.lower_of(pod)
        if lower is None:
            raise Refusal(400, f"pod {quoted(name)} is not in cluster {quoted(cluster)} now; see its events")
        return PodTarget(
            cluster=cluster,
            namespace=lower.namespace,
            name=lower.name,
            client=self.context.lower,
            pod=pod.to_dict(),
        )

    def pods(self) -> Iterator[Mapping[str, Any]]:
        """Return every upper pod bound to this node."""
        return (pod.to_dict() for pod in self._upper.list())

    def running_pods(self) -> Iterator[Mapping[str, Any]]:
        """Yield every upper pod of this node whose lower pod runs."""
        for pod in self._upper.list():
            lower = self.caches.lower_of(pod)
            if lower is not None and (lower.status or {}).get("phase") == "Running":
                yield pod.to_dict()

    def upper_pods_by_lower_name(self) -> dict[tuple[str, str], PodNames]:
        """Return names and UID of the upper pods that have a lower pod, by the lower pod's namespace and name."""
        found = {}
        for pod in self._upper.list():
            lower = self.caches.lower_of(pod)
            if lower is not None:
                found[lower.namespace, lower.name] = PodNames(pod.namespace, pod.name, pod.uid)
        return found
