"""Reads the acknowledgements of a Swarm's workers, from their Leases or over HTTP.

HTTP requests are made in the background, so that slow workers delay only their own namespace. The writer of a pod status
chooses its IP, so ``WorkerAddresses`` decides to which IPs the controller connects.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from clusterset.model import names
from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object
from swarm import handover
from swarm.controller.delivery import ANNOTATION_ENDED, Delivery
from swarm.handover import Acknowledgement, Holder, Ledger
from swarm.planning import Pod
from swarm.program import Network
from swarm.spec import SwarmSpec

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
"""Metadata services of cloud providers outside of the link-local range: AWS, Google, Alibaba, Azure, Oracle."""


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """Checks pod IPs against the node of the pod.

    The kubelet of a real node reports the IPs of its pods. For a virtual node, the lower cluster reports them. It could
    name any address that the controller can reach, so only the ranges that the operator or the Node names are allowed.
    """

    nodes: Informer
    ranges: Sequence[Network] = ()
    """Ranges of the pods on virtual nodes."""

    def refusal(self, pod: Pod) -> str:
        """Return why the controller does not connect to a pod; empty: it does."""
        node = self.nodes.store.get(pod.node)
        if node is None:
            return f"node {pod.node!r} does not exist"
        spec, status = node.spec or {}, node.status or {}
        if node.labels.get(names.LABEL_NODE_TYPE) != names.NODE_TYPE_VIRTUAL:
            # The address of the node may be any address: pods in the host network have it.
            own = {address.get("address") for address in status.get("addresses") or ()}
            return "" if is_pod_address(pod.ip) or pod.ip in own else f"{pod.ip!r} is no address of a pod"
        if not is_pod_address(pod.ip):
            return f"{pod.ip!r} is no address of a pod"
        address = _plain(pod.ip)
        if any(address in network for network in (*self.ranges, *_networks(spec.get("podCIDRs") or ()))):
            return ""
        return (
            f"{pod.ip} is on virtual node {pod.node} and not in --poll-cidrs of the controller. Let workers write Leases "
            "(httpPort: 0), or let the operator add the pod range of the lower cluster"
        )


def is_pod_address(ip: str) -> bool:
    """Report whether a pod can have this address.

    False for addresses that the API server's pod proxy refuses, and for the metadata services of cloud providers.
    """
    try:
        address = _plain(ip)
    except ValueError:
        return False
    return address not in _METADATA and not (
        address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
    )


def _plain(ip: str) -> Address:
    address = ipaddress.ip_address(ip)
    return getattr(address, "ipv4_mapped", None) or address


def _networks(texts: Sequence[Any]) -> list[Network]:
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            continue  # an unknown notation allows nothing
    return found


_SECONDS = 1.0
_BYTES = 1 << 20
"""Largest size of a report."""
_ROUND_BYTES = 32 << 20
"""Largest size of all reports of a Swarm together."""
_AT_ONCE = 32
"""Connections per namespace."""


@dataclass(slots=True)
class _Round:
    """The running poll of one Swarm's workers, and the reports of the last completed poll."""

    task: asyncio.Task[None]
    reports: Mapping[str, Acknowledgement] = field(default_factory=dict)


@dataclass(eq=False)
class Polls:
    """Polls the workers of Swarms. Pods can send anything, at any speed, so size and time are limited."""

    on_change: Callable[[str], None]
    """Called with the key of a Swarm when a report changed."""
    refusal: Callable[[Pod], str]
    """Returns why a pod is not polled; empty: it is."""

    def __post_init__(self) -> None:
        self._rounds: dict[str, _Round] = {}
        self._limits: dict[str, asyncio.Semaphore] = {}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Stop polling and close the connections."""
        for swarm in list(self._rounds):
            self.forget(swarm)
        if self._session is not None:
            await self._session.close()

    def forget(self, swarm: str) -> None:
        """Stop polling the workers of a Swarm."""
        if swarm in self._rounds:
            self._rounds.pop(swarm).task.cancel()

    def reports(self, swarm: str, pods: Sequence[Pod], port: int) -> Mapping[str, Acknowledgement]:
        """Return the last report of each pod by UID, and start the next poll unless one is running."""
        last = self._rounds.get(swarm)
        if last is None or last.task.done():
            before = last.reports if last else {}
            task = asyncio.create_task(self._poll(swarm, pods, port), name=f"poll {swarm}")
            last = self._rounds[swarm] = _Round(task, before)
        present = {pod.uid for pod in pods}
        return {uid: report for uid, report in last.reports.items() if uid in present}

    async def _poll(self, swarm: str, pods: Sequence[Pod], port: int) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_SECONDS),
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        session, room = self._session, _ROUND_BYTES
        namespace = swarm.partition("/")[0]
        limit = self._limits.setdefault(namespace, asyncio.Semaphore(_AT_ONCE))
        found: dict[str, Acknowledgement] = {}

        async def ask(pod: Pod) -> None:
            nonlocal room
            if self.refusal(pod):
                return
            async with limit:
                body = await _get(session, pod.ip, port)
            room -= len(body)
            report = handover.acknowledgement(body.decode("utf-8", "replace")) if body and room >= 0 else None
            if report is not None:
                found[pod.uid] = report

        await asyncio.gather(*map(ask, pods))
        changed = found != self._rounds[swarm].reports
        self._rounds[swarm].reports = found
        if changed:
            self.on_change(swarm)


async def _get(session: aiohttp.ClientSession, ip: str, port: int) -> bytes:
    """Return the body of ``/internal/version``; empty unless the status is 200 and the size allowed."""
    host = f"[{ip}]" if ":" in ip else ip
    body = bytearray()
    try:
        async with session.get(f"http://{host}:{port}/internal/version", allow_redirects=False) as response:
            if response.status != 200:
                return b""
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _BYTES:
                    return b""
    except (TimeoutError, aiohttp.ClientError, OSError):
        return b""
    return bytes(body)


_FENCE_MARGIN = 1.25
"""Largest ratio of our clock rate to the worker's that fencing tolerates."""
_RETRY = 1.0
"""Seconds until the end of a session is tried again, if its Lease changed or was deleted meanwhile."""


class Renewals:
    """Notes when each Lease was last written. A standby replica does this, too, so that its term begins with them."""

    def __init__(self, leases: Informer, *, needed: Sequence[Informer] = ()) -> None:
        """Follow the Leases.

        Args:
            leases: their informer.
            needed: what the controller needs, too, to give a worker its jobs. A worker that returns after an outage renews
                its Lease only with these.
        """
        self._leases = leases
        self._followed = (leases, *needed)
        self._seen: dict[str, float] = {}
        """UID of the Lease → when its last change arrived, on the event loop's clock."""
        leases.on_change(self._changed, self._deleted)

    def silence(self, lease: Object) -> float:
        """Return for how many seconds a Lease was not written, although the API server could be reached."""
        if any(informer.last_error is not None for informer in self._followed):
            return 0.0
        now = asyncio.get_running_loop().time()
        # After an outage of the API server, workers need time to renew their Leases. Informers return one after the other.
        return now - max(
            self._seen.get(lease.uid, now), *(informer.followed_since for informer in self._followed)
        )

    def _changed(self, lease: Object) -> None:
        self._seen[lease.uid] = asyncio.get_running_loop().time()

    def _deleted(self, lease: Object) -> None:
        self._seen.pop(lease.uid, None)


@dataclass(frozen=True, slots=True)
class Fenced:
    """Workers that provably stopped their jobs, because their Lease was not renewed."""

    uids: frozenset[str] = frozenset()
    """UIDs of pods with an ended session."""
    next_in: float | None = None
    """Seconds until the next session may be over; None: no session has a fence."""


class Reports:
    """Reads acknowledgements. A worker's report affects only its own Swarm."""

    def __init__(self, delivery: Delivery, polls: Polls, renewals: Renewals) -> None:
        self._delivery = delivery
        self._polls = polls
        self._renewals = renewals
        self._plain: dict[str, dict[str, list[str]]] = {}

    def forget(self, swarm: str) -> None:
        """Stop reading the reports of a deleted Swarm."""
        self._polls.forget(swarm)
        self._plain.pop(swarm, None)

    def of(
        self, swarm: Object, parsed: SwarmSpec, ledger: Ledger, pods: Sequence[Pod]
    ) -> dict[str, Acknowledgement]:
        """Return the newest report of each pod, by UID."""
        found: dict[str, Acknowledgement] = {}
        names = {holder.uid: holder.pod for holder in ledger.holders.values()}
        names |= {pod.uid: pod.name for pod in pods}
        for name, (uid, text, _) in self._delivery.acknowledgements(swarm).items():
            # The UID is an annotation of the Lease, and a worker could write another worker's UID.
            if not text or names.get(uid) != name:
                continue
            report = handover.acknowledgement(text)
            if report is not None and report.pod_uid == uid:
                found[uid] = report
        if parsed.workers.http_port:
            silent = [pod for pod in pods if pod.uid not in found and pod.ip and not pod.finished]
            polled = self._polls.reports(swarm.key, silent, parsed.workers.http_port)
            # A report without the pod's UID may come from another pod that has the IP now.
            found |= {uid: report for uid, report in polled.items() if report.pod_uid == uid}
            self._plain[swarm.key] = {
                uid: report.jobs or [] for uid, report in polled.items() if not report.session
            }
        return found

    def plain(self, swarm: Object) -> Mapping[str, list[str]]:
        """Return by pod UID the jobs of workers that do not acknowledge, such as k8s-swarm's."""
        return self._plain.get(swarm.key, {})

    async def fenced(self, swarm: Object, ledger: Ledger) -> Fenced:
        """End sessions that have not renewed their Lease for 1.25 × their fence time.

        Only workers with a known fence time are affected, because others do not stop by themselves.
        """
        uids = set()
        waits = []
        for name, (uid, text, lease) in self._delivery.acknowledgements(swarm).items():
            holder = ledger.holders.get(uid)
            if holder is None or holder.pod != name or not holder.session:
                continue
            if lease.annotations.get(ANNOTATION_ENDED) == holder.session:
                # An earlier reconcile ended this session, but failed to store the record.
                uids.add(uid)
                continue
            if not holder.fence:
                continue
            left = holder.fence * _FENCE_MARGIN - self._renewals.silence(lease)
            if left > 0:
                waits.append(left)
            elif _is_reported_by(holder, text) and await self._delivery.end_session(lease, holder.session):
                uids.add(uid)
            else:
                waits.append(_RETRY)
        return Fenced(frozenset(uids), min(waits, default=None))


def _is_reported_by(holder: Holder, text: str) -> bool:
    """Report whether a Lease's text is empty, invalid, or of the holder's session: no other session has replaced it."""
    report = handover.acknowledgement(text) if text else None
    return report is None or report.session == holder.session
