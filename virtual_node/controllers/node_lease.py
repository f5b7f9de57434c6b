"""The Lease of a virtual node: taken before the node is registered, renewed while it is mirrored, then released.

For real nodes, the kubelet renews this Lease. An annotation names the process that holds it, so that only
one process mirrors a node. A waiting process takes the Lease when the holder has released it, or has not renewed it
for ``leaseDurationSeconds`` by the waiting process's own clock.

A process killed by SIGKILL cannot release the Lease. So that a restart on the same machine does not wait for
the Lease to expire, all processes of one network namespace (of a pod or a host) use the same identity. A
local socket, which the kernel closes when its process ends, ensures that only one of them uses it at a time.

The Lease is renewed every quarter of its duration from the cached copy, as a kubelet does, so a renewal is one request
without a read. The lower cluster's health does not affect it, because the Ready condition shows that.

``spec.holderIdentity`` is the node's name, as a kubelet writes it, because other programs read it. The process is in
annotation ``virtual-node.io/process``, together with the Lease's ``leaseTransitions``. Earlier releases write the process
to ``holderIdentity``, increase ``leaseTransitions`` when they take the Lease, and keep annotations that they do not know.
So the annotation counts only while both fields are as its process wrote them.

An earlier release treats a Lease with the node's name as free, because that is how both releases leave a released Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from clusterset.model import names
from controller_runtime import leaderelection, resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.client.client import find
from controller_runtime.errors import AlreadyExists, ApiError, ConfigError, Conflict, NotFound
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.nodes import NodeController
from virtual_node.examine.leases import Report

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL = 2.0
_FIRST_RETRY = 0.1
_RELEASING = 2.0
"""Seconds that a release may take when the process stops; otherwise the Lease expires."""
_RETRY = 2.0
_LONG_AGO = 3
"""Number of lease durations after renewTime after which the holder counts as gone, even if the clocks of the
two machines differ by a minute."""


class HeldElsewhereError(ConfigError):
    """Another process has taken the Lease and mirrors the node."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that a process writes to its virtual nodes' Leases."""

    name: str
    is_exclusive: bool
    """Whether only one process uses ``name``, as under leader election. Otherwise a socket per node decides which
    process uses it."""


def this_process() -> Identity:
    """Return the identity of every process with this host name in this network namespace of this machine.

    Machines may have the same host name, and the number of the first network namespace is the same on all of
    them. So the kernel's boot id is part of the identity, because the local socket works only between
    processes of one kernel.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(_BOOT_ID.read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/net").stat().st_ino))
    return Identity("_".join(parts), is_exclusive=False)


@dataclass(eq=False, repr=False)
class NodeLease:
    """Takes a virtual node's Lease before the node is registered, renews it, and releases it when mirroring has ended."""

    context: ClusterContext
    name: str
    """Name of the virtual node and of its Lease."""
    identity: Identity
    waits_for: str = ""
    """Why nothing is mirrored yet, with the holder of the Lease. Empty: not waiting."""
    spec: dict[str, Any] = field(default_factory=dict)
    """The Lease's spec as last renewed; empty: never."""
    _lease: dict[str, Any] | None = None
    _socket: socket.socket | None = None

    def __post_init__(self) -> None:
        """Choose an identity that no other process has."""
        self._unique = f"{self.identity.name}_{os.getpid()}_{secrets.token_hex(4)}"

    @property
    def holder(self) -> str:
        """Return the process to write to the Lease: the shared identity if only this process uses it."""
        alone = self.identity.is_exclusive or self._socket is not None
        return self.identity.name if alone else self._unique

    async def acquire(self) -> None:
        """Wait until the Lease is ours.

        Raises:
            ApiError: the upper cluster does not answer, or refuses.
        """
        loop = asyncio.get_running_loop()
        seen: dict[str, Any] = {}
        seen_at = loop.time()
        try:
            while True:
                self._lock()
                lease = await find(
                    self.context.upper, resources.LEASES, self.name, namespace=names.NODE_LEASES
                )
                # If the holder's Lease was deleted meanwhile, its last state counts, because the holder
                # recreates it.
                if lease is not None and lease != seen:
                    seen, seen_at = lease, loop.time()
                if may_hold(
                    seen,
                    process=self.holder,
                    node=self.name,
                    unchanged_for=loop.time() - seen_at,
                    now=datetime.now(UTC),
                ):
                    if await self._take(lease):
                        return
                else:
                    self._report_holder(process_of(seen, self.name))
                await asyncio.sleep(_POLL if self.waits_for else _FIRST_RETRY)
        finally:
            self.waits_for = ""

    async def run(self, node: NodeController, report: Callable[[], Report] = Report) -> None:
        """Renew the Lease until cancelled, after the node was registered.

        Args:
            node: registers the node, to which the Lease then belongs.
            report: returns problems that only this process knows, published with the next renewal.

        Raises:
            HeldElsewhereError: another process has taken the Lease.
        """
        await node.registered.wait()
        interval = self.context.settings.lease_duration / 4
        while True:
            try:
                await self._renew(node.uid, report())
            except HeldElsewhereError:
                raise
            except (ApiError, ConfigError) as error:
                if isinstance(error, (Conflict, NotFound)) and self._lease is not None:
                    self._lease = None  # changed by another client, so read it again at once
                    await asyncio.sleep(0.1)
                    continue
                self.context.log.warning("lease not renewed", node=self.name, error=str(error))
                await asyncio.sleep(_RETRY)
                continue
            self.spec = dict((self._lease or {}).get("spec") or {})
            await asyncio.sleep(interval)

    async def release(self) -> None:
        """Release the Lease, so that another process can take it before it expires. Errors are only logged."""
        try:
            async with asyncio.timeout(_RELEASING):
                upper = self.context.upper
                lease = await upper.get(resources.LEASES, self.name, namespace=names.NODE_LEASES)
                if process_of(lease, self.name) == self.holder:
                    await upper.update(resources.LEASES, released(lease, self.name))
        except Exception as error:  # noqa: BLE001 - after any error the Lease expires
            self.context.log.debug("lease not released", node=self.name, error=str(error))
        finally:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    async def _take(self, lease: Mapping[str, Any] | None) -> bool:
        """Take or create the Lease; return False if another process was faster."""
        upper = self.context.upper
        try:
            if lease is not None:
                await upper.update(resources.LEASES, self._held(lease))
            else:
                body = self._held(leaderelection.new(names.NODE_LEASES, self.name))
                await upper.create(resources.LEASES, body, namespace=names.NODE_LEASES)
        except (AlreadyExists, Conflict):
            return False
        except NotFound as error:  # an upper cluster without kube-node-lease has no Lease to hold
            self.context.log.warning("lease not made", node=self.name, error=str(error))
        return True

    async def _renew(self, node_uid: str, report: Report) -> None:
        if self._lease is None:
            self._lease = await self._get_or_create(node_uid)
            if (holder := process_of(self._lease, self.name)) not in {"", self.holder}:
                raise HeldElsewhereError(
                    f"node {self.name}: another process, {holder}, has taken its Lease over"
                )
        lease = self._held(self._lease, node_uid=node_uid)
        annotations = dict(lease["metadata"].get("annotations") or {})
        annotations.pop(names.ANNOTATION_FAULTS, None)
        annotations[names.ANNOTATION_REPLICA] = socket.gethostname()
        if text := report.text():
            annotations[names.ANNOTATION_FAULTS] = text
        lease["metadata"]["annotations"] = annotations
        self._lease = await self.context.upper.update(resources.LEASES, lease)

    async def _get_or_create(self, node_uid: str) -> dict[str, Any]:
        upper = self.context.upper
        if (lease := await find(upper, resources.LEASES, self.name, namespace=names.NODE_LEASES)) is not None:
            return lease
        body = self._held(leaderelection.new(names.NODE_LEASES, self.name), node_uid=node_uid)
        try:
            return await upper.create(resources.LEASES, body, namespace=names.NODE_LEASES)
        except AlreadyExists:
            return await upper.get(resources.LEASES, self.name, namespace=names.NODE_LEASES)

    def _held(self, lease: Mapping[str, Any], *, node_uid: str = "") -> dict[str, Any]:
        """Return the Lease as this process writes it to take or renew it; ``node_uid``: of its Node, if it is registered."""
        duration = self.context.settings.lease_duration
        if node_uid:
            # Garbage collection deletes the Lease with its Node. A Node that was registered again has a new uid.
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": node_uid}
            lease = {**lease, "metadata": {**lease["metadata"], "ownerReferences": [owner]}}
        now = datetime.now(UTC)
        return held(lease, process=self.holder, node=self.name, duration=duration, now=now)

    def _report_holder(self, holder: str) -> None:
        why = f"node {self.name} is mirrored by another process, {holder}: waiting until it ends"
        if why != self.waits_for:
            self.waits_for = why
            self.context.log.warning(
                "another process mirrors this virtual node; waiting until it ends",
                node=self.name,
                holder=holder,
                next="stop one of the two, or choose another node name; --leader-elect is for replicas",
            )

    def _lock(self) -> None:
        """Bind the socket that makes the shared identity exclusive; if that fails, a unique identity is used."""
        if self.identity.is_exclusive or self._socket is not None:
            return
        key = f"{self.context.cluster_id}/{self.name}".encode()
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0virtual-node-{hashlib.sha256(key).hexdigest()}")
        except OSError:
            lock.close()
        else:
            self._socket = lock


def process_of(lease: Mapping[str, Any], node: str) -> str:
    """Return the process that holds the Lease of a node; empty: it was released, or never held."""
    holder = leaderelection.holder_of(lease)
    if holder not in {"", node}:
        return holder  # an earlier release
    annotations = (lease.get("metadata") or {}).get("annotations") or {}
    process, _, transitions = str(annotations.get(names.ANNOTATION_PROCESS) or "").rpartition(" ")
    return process if holder and transitions == _transitions(lease) else ""


def held(
    lease: Mapping[str, Any], *, process: str, node: str, duration: float, now: datetime
) -> dict[str, Any]:
    """Return the Lease as a process writes it to take or renew it; other content is kept.

    Args:
        lease: as read, or a new one.
        process: identity of the process.
        node: name of the node.
        duration: seconds for which the Lease is valid, rounded up.
        now: wall clock, timezone-aware.
    """
    if spec := leaderelection.spec_of(lease):
        # So that the transitions are counted by processes.
        lease = {**lease, "spec": {**spec, "holderIdentity": process_of(lease, node)}}
    made = leaderelection.held(lease, identity=process, duration=duration, now=now)
    spec = {**made["spec"], "holderIdentity": node}
    return _annotated({**made, "spec": spec}, f"{process} {_transitions(made)}")


def released(lease: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return the Lease without a process.

    Other components judge the node by ``renewTime``, so it changes only by a microsecond. It must change: the node
    controller of Kubernetes 1.37 stops to judge all nodes while the Lease of a silent node has another version than that
    with the last renewal which it saw.
    """
    spec = {**leaderelection.spec_of(lease), "holderIdentity": node}
    with contextlib.suppress(KeyError, ValueError):
        renewed = timestamps.parse(str(spec["renewTime"]))
        spec["renewTime"] = timestamps.micro_time(renewed + timedelta(microseconds=1))
    return _annotated({**lease, "spec": spec}, None)


def may_hold(
    lease: Mapping[str, Any], *, process: str, node: str, unchanged_for: float, now: datetime
) -> bool:
    """Report whether a process may take a node's Lease.

    Args:
        lease: as read.
        process: identity of the process.
        node: name of the node and of its Lease.
        unchanged_for: seconds for which the process has not seen a renewal.
        now: wall clock, timezone-aware.
    """
    if process_of(lease, node) in {"", process}:
        return True
    spec = leaderelection.spec_of(lease)
    duration = float(spec.get("leaseDurationSeconds") or 0)
    if unchanged_for >= duration:
        return True
    try:
        age = (now - timestamps.parse(str(spec.get("renewTime")))).total_seconds()
    except ValueError:
        return False
    return age >= _LONG_AGO * duration


def _transitions(lease: Mapping[str, Any]) -> str:
    return str(leaderelection.spec_of(lease).get("leaseTransitions") or 0)


def _annotated(lease: Mapping[str, Any], value: str | None) -> dict[str, Any]:
    metadata = lease.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), names.ANNOTATION_PROCESS: value}
    kept = {key: text for key, text in annotations.items() if text is not None}
    return {**lease, "metadata": {**metadata, "annotations": kept}}
