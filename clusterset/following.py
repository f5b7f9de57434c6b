"""Follows the kubeconfigs of lower clusters, and remembers which cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

from clusterset.config import Cluster
from clusterset.connection import trouble
from controller_runtime import log
from controller_runtime.util.file_changes import FileChanges


class KubeconfigFollower:
    """The state of the kubeconfigs in a process.

    Attributes:
        refused: why the changed kubeconfig of a running cluster is not applied, by the cluster's name.
    """

    def __init__(self, clusters: Sequence[Cluster], *, component: str) -> None:
        """Begin with the current content of the files; ``component`` is the program's name in the log."""
        self.refused: dict[str, str] = {}
        self._changes = FileChanges(_files(clusters))
        self._log = log.get_logger(component=component)

    def skip(self, clusters: Sequence[Cluster]) -> None:
        """Ignore changes until now: clusters that start now read the new files."""
        self._changes.changed(_files(clusters))

    async def reread(self, clusters: Sequence[Cluster]) -> list[str]:
        """Return the clusters whose changed kubeconfig can be used; log the others and keep them in ``refused``.

        Args:
            clusters: the running clusters.
        """
        changed = {*self.refused, *self._changes.changed(_files(clusters))}
        refused, rotated = {}, []
        for cluster in clusters:
            if cluster.name not in changed:
                continue
            why = await trouble(cluster)
            if not why:
                rotated.append(cluster.name)
                continue
            if why != self.refused.get(cluster.name):
                self._log.error("kubeconfig not applied", cluster=cluster.name, error=why)
            refused[cluster.name] = why
        self.refused = refused
        return rotated


def _files(clusters: Sequence[Cluster]) -> dict[str, str]:
    return {cluster.name: cluster.kubeconfig for cluster in clusters}
