"""The one etcd of a sandbox; each cluster has a prefix in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from hack.sandbox.cluster import GO_ENVIRONMENT, LOOPBACK
from hack.sandbox.errors import SandboxError
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process

_HEALTHY_SECONDS = 150.0


def process(binary: Path, directory: Path, *, dies_with_parent: bool) -> tuple[Process, str]:
    """Return etcd, not yet started, and its URL."""
    client, peer = free_ports(2)
    url = f"http://{LOOPBACK}:{client}"
    argv: list[str | Path] = [
        binary,
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls=http://{LOOPBACK}:{peer}",
        f"--initial-advertise-peer-urls=http://{LOOPBACK}:{peer}",
        f"--initial-cluster=default=http://{LOOPBACK}:{peer}",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
    ]
    return Process(
        "etcd", argv, directory=directory, env=GO_ENVIRONMENT, dies_with_parent=dies_with_parent
    ), url


async def wait_healthy(etcd: Process, url: str) -> None:
    """Wait until etcd is healthy.

    Raises:
        SandboxError: it does not become healthy; quotes its log.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _HEALTHY_SECONDS
    async with aiohttp.ClientSession() as session:
        while loop.time() < deadline:
            etcd.check()
            try:
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise SandboxError(f"etcd is not healthy: {etcd.last_line()} (log: {etcd.log})")
