"""The upper cluster of a descheduler: an API server in memory, kubelets that confirm deletions, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import TooManyRequests
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body, Commit
from tests.unit.descheduler.bodies import now

T = TypeVar("T")
_BUDGET = {
    "metadata": {"name": "budget", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {}}},
    "status": {"disruptionsAllowed": 0},
}
_NAMESPACES = ("default", "kube-system", "kube-node-lease", "ns")


class Cluster(Server):
    """One cluster serves the clients of several processes."""

    def __init__(self) -> None:
        super().__init__(namespaces=_NAMESPACES, now=lambda _version: timestamps.rfc3339(now()))
        self.replace("namespaces", "default", metadata={"name": "default", "uid": "uid-default"})
        self.created: list[str] = []
        """UIDs of all pods that ever existed."""
        self.sheds_load = False
        """Whether evictions are answered with the 429 of API priority and fairness."""
        self.dead_nodes: set[str] = set()
        """Nodes whose kubelets confirm no deletion."""
        self.observers.append(self._act)

    @property
    def budget_denies(self) -> bool:
        """Whether a PodDisruptionBudget refuses all evictions."""
        return bool(self.all("poddisruptionbudgets"))

    @budget_denies.setter
    def budget_denies(self, denies: bool) -> None:
        if denies:
            self.put("poddisruptionbudgets", _BUDGET)
        elif self.budget_denies:
            self.remove("poddisruptionbudgets", "default/budget")

    def evict(self, key: str, body: Mapping[str, Any], *, who: str = "", dry_run: bool = False) -> Body:
        """Evict a pod unless the server is overloaded."""
        if self.sheds_load and self.find("pods", key):
            raise TooManyRequests("too many requests, please try again later", code=429, retry_after=1)
        return super().evict(key, body, who=who, dry_run=dry_run)

    def _act(self, commit: Commit) -> None:
        if commit.plural != "pods" or commit.new is None:
            return
        metadata = commit.new["metadata"]
        if commit.old is None:
            self.created.append(metadata["uid"])
        if metadata.get("deletionTimestamp") and commit.new["spec"].get("nodeName") not in self.dead_nodes:
            asyncio.get_running_loop().call_later(1.0, self._confirm, commit.key, metadata["uid"])

    def _confirm(self, key: str, uid: str) -> None:
        pod = self.find("pods", key)
        if pod is not None and pod["metadata"]["uid"] == uid:
            self.remove("pods", key)


class Client(MemoryClient):
    """The client of one process.

    Attributes:
        writes: verb and resource of every write so far, without dry runs and events.
        before: called before every write; may await, raise or never return.
        after: called after every write, including refused ones.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.writes: list[str] = []
        self.before: Callable[[str], Any] | None = None
        self.after: Callable[[str], Any] | None = None

    async def send(
        self, verb: str, plural: str, key: str, action: Callable[[], T], *, subresource: str | None = None,
        dry_run: bool = False,
    ) -> T:  # fmt: skip
        """Perform a request, with the hooks around a write."""
        await asyncio.sleep(0)
        if dry_run or plural == "events" or verb in {"get", "list", "watch"}:
            return await super().send(verb, plural, key, action, subresource=subresource)
        what = f"{verb} {subresource or plural}"
        if self.before is not None:
            await self.before(what)
        self.writes.append(what)
        try:
            return await super().send(verb, plural, key, action, subresource=subresource)
        finally:
            if self.after is not None:
                await self.after(what)
