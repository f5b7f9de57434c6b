"""Reads reports of workers over HTTP in the background, so that slow workers delay only their own namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from swarm.handover import ledger as ledgers
from swarm.handover.ledger import Acknowledgement
from swarm.slots import Pod

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
            report = ledgers.acknowledgement(body.decode("utf-8", "replace")) if body and room >= 0 else None
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
