"""A complete sandbox: one etcd, an upper cluster, lower clusters, and the processes started in it."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hack.sandbox import directory as folder
from hack.sandbox import etcd, inotify
from hack.sandbox.api import wait_healthy
from hack.sandbox.builds import binaries
from hack.sandbox.builds.packages import ensure_packages
from hack.sandbox.builds.programs import (
    CONTROL_PLANE,
    KUBERNETES_MINOR,
    NODE,
    SIMULATION,
    Progress,
    apiserver,
)
from hack.sandbox.cluster import LOOPBACK, Cluster
from hack.sandbox.errors import SandboxError, together
from hack.sandbox.janitor import Janitor
from hack.sandbox.nodes import services
from hack.sandbox.nodes.kwok import add_nodes, kwok_process
from hack.sandbox.nodes.network import Bridge, connect, make_bridge, remove_bridge
from hack.sandbox.nodes.real_node import RealNode
from hack.sandbox.process import Process
from hack.sandbox.stopping import running, silent


class Sandbox:
    """Real clusters on loopback; an async context manager that removes everything at the end.

    Attributes:
        upper: the cluster of the users.
        lower: the clusters that run the pods.
        directory: certificates, kubeconfigs and logs.
    """

    def __init__(
        self,
        *,
        lower: int = 2,
        directory: Path | None = None,
        kwok_nodes: int = 1,
        real_node: bool = False,
        upper_real_node: bool = False,
        upper_kwok_nodes: int = 0,
        bridged: bool = False,
        versions: Mapping[str, Sequence[str]] | None = None,
        keep: bool = False,
        upper_apiserver_args: Sequence[str] = (),
        upper_features: Sequence[str] = (),
        progress: Progress = silent,
    ) -> None:
        """Create a sandbox; entering the context starts it.

        Args:
            lower: number of lower clusters.
            directory: for all files; None: a temporary folder, removed at the end.
            kwok_nodes: simulated nodes per lower cluster.
            real_node: the first lower cluster gets a containerd and kubelet node instead (needs root).
            upper_real_node: the upper cluster gets such a node, for pods that helm installs there.
            upper_kwok_nodes: simulated nodes of the upper cluster; kwok reports their pods as Running.
            bridged: the apiservers listen on a bridge (needs root), as for real nodes, instead of on loopback.
            versions: cluster → minor versions of its API server, such as ``1.34``: the first one at the start, and
                those of later calls of ``upgrade``. All other programs have the default version.
            keep: the processes outlive this one (``make demo``); ``down`` stops them.
            upper_apiserver_args: further flags of the upper cluster's kube-apiserver.
            upper_features: feature gates to turn on in the upper cluster's control plane.
            progress: called with one line per step.
        """
        self._count = lower
        self._kwok_nodes = kwok_nodes
        self._real_node = real_node
        self._upper_real_node = upper_real_node
        self._upper_kwok_nodes = upper_kwok_nodes
        self._bridged = bridged
        self._versions = dict(versions or {})
        self._keep = keep
        self._upper_apiserver_args = tuple(upper_apiserver_args)
        self._upper_features = tuple(upper_features)
        self._progress = progress
        self._temporary = directory is None
        self.directory = (directory or Path(tempfile.mkdtemp(prefix="virtual-node-sandbox-"))).absolute()
        self.binaries: dict[str, Path] = {}
        self.etcd: Process | None = None
        self.clusters: list[Cluster] = []
        self.processes: list[Process] = []
        """Processes of ``start_process``, such as virtual nodes."""
        self.bridge: Bridge | None = None
        """Bridge on which the apiservers listen, for real nodes; None: they listen on loopback."""
        self.real_node: RealNode | None = None
        """Real node of the first lower cluster; None: none."""
        self.upper_node: RealNode | None = None
        self._bridges: list[Bridge] = []
        self._remains: list[dict[str, str]] = []
        """State of real nodes on the machine, to be removed."""
        self._janitor: Janitor | None = None
        self._cleanups: list[Any] = []

    @property
    def upper(self) -> Cluster:
        """Return the upper cluster."""
        return self.clusters[0]

    @property
    def lower(self) -> list[Cluster]:
        """Return the lower clusters."""
        return self.clusters[1:]

    async def __aenter__(self) -> Self:
        """Start all clusters.

        Raises:
            SandboxError: something is missing or does not start; nothing is left running.
        """
        try:
            with folder.claimed(self.directory):
                await self._up()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything, unless the sandbox is kept."""
        if self._keep:
            await self.disconnect()
        else:
            await self.close()

    async def start_process(
        self, name: str, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None
    ) -> Process:
        """Run a program as part of the sandbox: logged, and stopped with it.

        Raises:
            SandboxError: it cannot be started, or one with that name runs already.
        """
        process = Process(name, argv, directory=self.directory, env=env, dies_with_parent=not self._keep)
        if any(other.pid_file == process.pid_file and other.running for other in self.processes):
            raise SandboxError(f"a process named {name} runs in this sandbox already; give it another name")
        await process.start()
        self.processes.append(process)
        return process

    async def start_virtual_node(
        self, *arguments: str, name: str = "virtual-node", env: Mapping[str, str] | None = None
    ) -> Process:
        """Run ``virtual-node`` against the upper cluster with these arguments, its kubelet on loopback."""
        return await self.start_process(
            name,
            [sys.executable, "-m", "virtual_node", f"--kubeconfig={self.upper.kubeconfig}", *arguments],
            env={"VKUBELET_POD_IP": LOOPBACK, **(env or {})},
        )

    async def add_lower(self, *, kwok_nodes: int | None = None) -> Cluster:
        """Start one more lower cluster."""
        assert self.etcd is not None
        cluster = self._cluster(f"lower{len(self.clusters)}")
        self.clusters.append(cluster)
        await cluster.start()
        await self._add_nodes(cluster, self._kwok_nodes if kwok_nodes is None else kwok_nodes)
        self._save()
        return cluster

    def add_namespace(self) -> Bridge:
        """Make one more bridge and network namespace; its programs reach the first real node and its pods."""
        self._bridges.append(make_bridge())
        self._save()
        connect(self._bridges[0], self._bridges[-1])
        return self._bridges[-1]

    async def disconnect(self) -> None:
        """Close the connections to the API servers."""
        await asyncio.gather(*(cluster.api.close() for cluster in self.clusters))

    async def close(self) -> None:
        """Stop everything, in the reverse order of starting, and remove a temporary folder."""
        await asyncio.gather(*(process.stop() for process in self.processes))
        while self._cleanups:
            await self._cleanups.pop()()
        await asyncio.gather(*(process.stop() for cluster in self.clusters for process in cluster.nodes))
        await self.disconnect()
        # Not stopped gracefully, because control planes are stateless and only this sandbox uses etcd.
        await asyncio.gather(*(process.kill() for cluster in self.clusters for process in cluster.processes))
        if self.etcd is not None:
            await self.etcd.kill()
        for bridge in self._bridges:
            remove_bridge(bridge.name)
        if self._janitor is not None:
            await self._janitor.stop()
        if self._temporary:
            folder.remove(self.directory)

    async def _up(self) -> None:
        older = {apiserver(minor) for minors in self._versions.values() for minor in minors}
        wanted = [*CONTROL_PLANE, *sorted(older - {"kube-apiserver"})]
        if self._kwok_nodes or self._upper_kwok_nodes:
            wanted += SIMULATION
        if self._real_node or self._upper_real_node:
            wanted += [*NODE, *services.PROGRAMS]
            await asyncio.to_thread(ensure_packages, self._progress)
        self.binaries = await binaries.ensure(wanted, progress=self._progress)
        if running(self.directory):
            raise SandboxError(f"a sandbox runs in {self.directory} already; stop it first (make demo-down)")
        real_nodes = self._real_node + self._upper_real_node
        instances = inotify.PER_CLUSTER * (1 + self._count) + inotify.PER_REAL_NODE * real_nodes
        await inotify.available(instances)
        await self._start_clusters(max(real_nodes, int(self._bridged)))

    async def _start_clusters(self, bridges: int) -> None:
        folder.empty(self.directory)
        self._save()
        if not self._keep:
            self._janitor = await Janitor.start(self.directory, remove=self._temporary)
        for _ in range(bridges):
            self._bridges.append(make_bridge())
            self._save()
        # Pods of a real node must reach the apiservers, so these listen on a bridge instead of loopback.
        self.bridge = next(iter(self._bridges), None)
        self._progress("starting etcd")
        self.etcd, self._etcd_url = etcd.process(
            self.binaries["etcd"], self.directory, dies_with_parent=not self._keep
        )
        await self.etcd.start()
        await wait_healthy(self.etcd, f"{self._etcd_url}/health")
        self.clusters = [self._cluster(name) for name in self._names()]
        self._progress(f"starting {len(self.clusters)} control planes: {', '.join(self._names())}")
        self._save()
        await together(self._start(cluster) for cluster in self.clusters)
        self._save()

    async def _start(self, cluster: Cluster) -> None:
        """Start a control plane, then its nodes."""
        await cluster.start()
        if cluster is self.upper:
            if self._upper_real_node:
                self._progress(f"adding a node to {cluster.name}")
                self.upper_node = await self._add_real_node(cluster, self._bridges[-1])
            await self._add_nodes(cluster, self._upper_kwok_nodes)
            return
        self._progress(f"adding nodes to {cluster.name}")
        if self._real_node and cluster is self.lower[0]:
            self.real_node = await self._add_real_node(cluster, self._bridges[0])
        else:
            await self._add_nodes(cluster, self._kwok_nodes)

    def _names(self) -> list[str]:
        return ["upper", *(f"lower{number + 1}" for number in range(self._count))]

    def _cluster(self, name: str) -> Cluster:
        return Cluster(
            name,
            directory=self.directory / name,
            binaries=self.binaries,
            etcd_url=self._etcd_url,
            number=len(self.clusters) if self.clusters else self._names().index(name),
            dies_with_parent=not self._keep,
            address=self.bridge.address if self.bridge is not None else LOOPBACK,
            apiserver_args=self._upper_apiserver_args if name == "upper" else (),
            features=self._upper_features if name == "upper" else (),
            minor=next(iter(self._versions.get(name, ())), KUBERNETES_MINOR),
        )

    async def _add_nodes(self, cluster: Cluster, count: int) -> None:
        if not count:
            return
        process = kwok_process(
            cluster,
            self.binaries,
            every_node=cluster is not self.upper,
            dies_with_parent=not self._keep,
        )
        await process.start()
        cluster.nodes.append(process)
        await add_nodes(cluster, process, [f"{cluster.name}-node-{number}" for number in range(count)])

    async def _add_real_node(self, cluster: Cluster, bridge: Bridge) -> RealNode:
        node = RealNode(
            cluster,
            bridge=bridge,
            binaries=self.binaries,
            dies_with_parent=not self._keep,
        )
        self._remains.append({"directory": str(cluster.directory / "node"), "cgroup": node.cgroup})
        self._save()
        self._cleanups.append(node.stop)
        await node.start()
        return node

    def _save(self) -> None:
        """Write the state that other commands need to show and stop the sandbox; processes have pid files of their own."""
        state = {
            "clusters": {cluster.name: str(cluster.kubeconfig) for cluster in self.clusters},
            "real_nodes": self._remains,
            "bridges": [bridge.name for bridge in self._bridges],
        }
        (self.directory / folder.STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
