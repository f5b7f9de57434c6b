"""Removes what a real node leaves on the machine: containers, cgroups, namespaces, mounts, links.

Works while containerd and the kubelet run, after they have ended, and after they were killed with
their owner.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from hack.sandbox.directory import mounts_in

_CGROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = Path("/run/netns")
_CNI_RESULTS = Path("/var/lib/cni/results")
_LOG_LINKS = Path("/var/log/containers")
_KILL_SECONDS = 10.0


def clean_node(directory: Path, cgroup: str) -> None:
    """Kill a node's containers, then remove their network namespaces, cgroups and log links."""
    socket = str(directory / "c.sock")
    # Namespaces are found by their processes, so they are read before the processes end.
    namespaces = _network_namespaces(_processes_in(cgroup))
    pods = set(_shims(socket).values())
    deadline = time.monotonic() + _KILL_SECONDS
    while (found := {*_processes_in(cgroup), *_shims(socket)}) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    for name in namespaces:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
    _forget_results(pods)
    _remove_cgroups(cgroup, deadline=time.monotonic() + _KILL_SECONDS)
    _remove_links_into(directory)


def clean_directory(directory: Path) -> None:
    """Unmount everything in a folder, deepest first."""
    for mount in mounts_in(directory):
        subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True)


def cgroup_hierarchies() -> list[Path]:
    """Return the cgroup hierarchies of this machine: one for v2, one per controller for v1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _remove_cgroups(cgroup: str, *, deadline: float) -> None:
    """Remove a cgroup and its children. A cgroup is busy until its last process has ended."""
    homes = [hierarchy / cgroup for hierarchy in cgroup_hierarchies()]
    while any(home.exists() for home in homes) and time.monotonic() < deadline:
        for home in homes:
            for inner, _, _ in os.walk(home, topdown=False):
                with contextlib.suppress(OSError):
                    Path(inner).rmdir()
        time.sleep(0.02)


def _processes_in(cgroup: str) -> set[int]:
    found: set[int] = set()
    for hierarchy in cgroup_hierarchies():
        # Cgroups may vanish during the walk, because containers also end by themselves.
        for directory, _, files in os.walk(hierarchy / cgroup):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    text = (Path(directory) / "cgroup.procs").read_text(encoding="utf-8")
                    found |= {int(line) for line in text.split()}
    return found


def _shims(socket: str) -> dict[int, str]:
    """Return containerd's shims of this node, which outlive containerd by design: pid → id of the pod's sandbox."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if "containerd-shim" in arguments[0] and socket in arguments and "-id" in arguments:
                    found[int(entry.name)] = arguments[arguments.index("-id") + 1]
    return found


def _network_namespaces(processes: Iterable[int]) -> set[str]:
    """Return names of the network namespaces that processes are in; the machine's own has no name."""
    inodes = set()
    for process in processes:
        with contextlib.suppress(OSError):
            inodes.add(Path(f"/proc/{process}/ns/net").stat().st_ino)
    found = set()
    for entry in _NAMESPACES.iterdir() if _NAMESPACES.is_dir() else ():
        with contextlib.suppress(OSError):
            if entry.stat().st_ino in inodes:
                found.add(entry.name)
    return found


def _forget_results(pods: set[str]) -> None:
    """Remove the results that libcni keeps for these pods; their location is not configurable."""
    for entry in _CNI_RESULTS.iterdir() if _CNI_RESULTS.is_dir() else ():
        # <network>-<container>-<interface>
        if any(f"-{pod}-" in entry.name for pod in pods):
            entry.unlink(missing_ok=True)


def _remove_links_into(directory: Path) -> None:
    """Remove the links to container logs that the kubelet makes in a fixed folder."""
    for entry in _LOG_LINKS.iterdir() if _LOG_LINKS.is_dir() else ():
        with contextlib.suppress(OSError):
            if entry.is_symlink() and entry.readlink().is_relative_to(directory):
                entry.unlink()
