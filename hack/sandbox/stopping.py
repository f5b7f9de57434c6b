"""Find and stop the processes of a sandbox' folder from any process, using only its files."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hack.sandbox import directory as folder
from hack.sandbox.nodes.network import remove_bridge
from hack.sandbox.nodes.remains import clean_directory, clean_node
from hack.sandbox.process import Identity, stop

_PID_FILES = ("*.pid", "*/*.pid", "*/node/*.pid")
"""The sandbox's pid files; containerd's own are in deeper folders."""
_DISPOSABLE = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"),
    *("kube-proxy", "coredns"),
)
"""Stopped without a grace period, because their data is removed with the folder."""
_NODE = ("kubelet", "containerd")


def silent(_line: str) -> None:
    """Discard progress."""


def read_state(directory: Path) -> dict[str, Any]:
    """Return the state that ``Sandbox`` wrote to its folder; empty without a state file."""
    try:
        state: dict[str, Any] = json.loads((directory / folder.STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state


def running(directory: Path) -> dict[str, Identity]:
    """Return the processes of a folder that still run, by names such as ``lower1/kube-apiserver``."""
    found = {}
    for pattern in _PID_FILES:
        for path in sorted(directory.glob(pattern)):
            identity = Identity.read(path)
            if identity is not None and identity.alive():
                found[str(path.relative_to(directory).with_suffix(""))] = identity
    return found


async def stop_all(directory: Path, *, progress: Callable[[str], None] = silent, remove: bool = True) -> int:
    """Stop the processes of a folder, by pid, and remove what a real node made.

    Args:
        directory: the sandbox' folder.
        progress: called with one line per process.
        remove: whether to remove the folder, too.

    Returns:
        Number of processes that ran.

    Raises:
        SandboxError: the folder is not a sandbox's, another command uses it, or another user owns the processes.
    """
    if not directory.is_dir():
        return 0
    with folder.claimed(directory):
        found = running(directory)
        for name, identity in found.items():
            progress(f"stopping {name} (pid {identity.pid})")
        await _stop_processes(found, real_nodes=read_state(directory).get("real_nodes") or [])
        for bridge in read_state(directory).get("bridges") or []:
            remove_bridge(bridge)
        if remove:
            folder.remove(directory)
    return len(found)


async def _stop_processes(found: dict[str, Identity], *, real_nodes: list[dict[str, str]]) -> None:
    """Stop virtual nodes and other programs first, then nodes, then control planes."""

    def of_kind(*kinds: str) -> list[str]:
        return [name for name in found if Path(name).name in kinds]

    polite = found.keys() - of_kind(*_DISPOSABLE, *_NODE)
    await asyncio.gather(*(stop(found[name]) for name in polite))
    await asyncio.gather(*(stop(found[name], seconds=5) for name in of_kind("kubelet")))
    for real_node in real_nodes:
        await asyncio.to_thread(clean_node, Path(real_node["directory"]), real_node["cgroup"])
    await asyncio.gather(*(stop(found[name], seconds=5) for name in of_kind("containerd")))
    for real_node in real_nodes:
        await asyncio.to_thread(clean_directory, Path(real_node["directory"]))
    await asyncio.gather(*(stop(found[name], first=signal.SIGKILL) for name in of_kind(*_DISPOSABLE)))
