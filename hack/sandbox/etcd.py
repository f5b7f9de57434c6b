"""The one etcd of a sandbox; each cluster has a prefix in it."""

from __future__ import annotations

from pathlib import Path

from hack.sandbox.cluster import GO_ENVIRONMENT, LOOPBACK
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process


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
        # A single member waits for its own election: 0.8 s with the defaults.
        "--heartbeat-interval=20",
        "--election-timeout=100",
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
    ]
    return Process(
        "etcd", argv, directory=directory, env=GO_ENVIRONMENT, dies_with_parent=dies_with_parent
    ), url
