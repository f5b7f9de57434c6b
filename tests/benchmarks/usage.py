"""CPU time and memory of processes, from /proc, also while they are idle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.sandbox import Sandbox
from tests.background import working
from tests.benchmarks import request_counts

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU seconds and memory of a process."""

    cpu: float
    peak_mib: float
    rss_mib: float


def usage(pid: int) -> ProcessUsage:
    """Read a process's CPU time and memory from /proc."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return ProcessUsage(
        cpu=(int(stat[11]) + int(stat[12])) / _TICKS,
        peak_mib=int(status["VmHWM"].split()[0]) / 1024,
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
    )


@contextlib.asynccontextmanager
async def sampled(pid: int, *, every: float = 1.0) -> AsyncIterator[list[list[float]]]:
    """Yield a list that grows by ``[seconds, share of one core, MiB]`` of a process until the context ends."""
    samples: list[list[float]] = []

    async def sample() -> None:
        start = before = time.monotonic()
        cpu = usage(pid).cpu
        while True:
            await asyncio.sleep(every)
            now, found = time.monotonic(), usage(pid)
            samples.append([now - start, (found.cpu - cpu) / (now - before), found.rss_mib])
            before, cpu = now, found.cpu

    async with working(sample()):
        yield samples


async def idle(sandbox: Sandbox, pid: int, *, seconds: float, limit: float = 3600.0) -> tuple[float, float]:
    """Return the share of one core that a process uses when idle, and its memory in MiB.

    The first period of ``seconds`` without a write to any cluster counts. After the last pod is Running, events are still
    written for minutes.

    Raises:
        TimeoutError: every period within ``limit`` seconds had writes.
    """
    async with asyncio.timeout(limit):
        while True:
            served, before, begun = await request_counts.served_by(sandbox), usage(pid).cpu, time.monotonic()
            await asyncio.sleep(seconds)
            after, taken = usage(pid), time.monotonic() - begun
            if not request_counts.writes_by(served, await request_counts.served_by(sandbox)):
                return (after.cpu - before) / taken, after.rss_mib


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by nearest rank, such as 0.99; 0 without values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, int(len(values) * share) - 1)]
